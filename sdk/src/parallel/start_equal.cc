#include "sdk/src/parallel/start_equal.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "coordinator/transport/wait.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"

namespace cox::detail {
namespace {

std::vector<NamedTensor> numbered(const std::vector<at::Tensor>& tensors, const char* prefix) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) {
    const char* kind = tensor.requires_grad() ? " with gradient" : "";
    named.push_back({prefix + std::to_string(named.size()) + kind, tensor});
  }
  return named;
}

Status finish(transport::Communicator& communicator, Result<transport::Request> request) {
  const auto policy =
      transport::wait_policy(communicator.ranks_on_node(), transport::usable_cores());
  return transport::finish(communicator, std::move(request), policy);
}

struct Verdict {
  std::int32_t code = 0;
  char message[508] = {};
};

}  // namespace

Result<std::vector<std::uint64_t>> gather_numbers(transport::Communicator& communicator,
                                                  std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  Status gathered =
      finish(communicator,
             communicator.start_all_gather(std::as_bytes(std::span<const std::uint64_t>(&mine, 1)),
                                           std::as_writable_bytes(std::span<std::uint64_t>(all))));
  if (!gathered.ok()) return gathered;
  return all;
}

Status agree_on_status(transport::Communicator& communicator, const Status& mine) {
  Verdict verdict;
  verdict.code = static_cast<std::int32_t>(mine.code());
  std::snprintf(verdict.message, sizeof(verdict.message), "%s", mine.message().c_str());
  std::vector<Verdict> all(static_cast<std::size_t>(communicator.size()));
  Status gathered = finish(communicator, communicator.start_all_gather(
                                             std::as_bytes(std::span<const Verdict>(&verdict, 1)),
                                             std::as_writable_bytes(std::span<Verdict>(all))));
  if (!gathered.ok()) return gathered;
  const auto is_ok = [](const Verdict& each) { return each.code == 0; };
  const auto first = std::find_if_not(all.begin(), all.end(), is_ok);
  if (first == all.end()) return ok_status();
  const bool is_everywhere = std::all_of(all.begin(), all.end(), [&](const Verdict& each) {
    return std::strcmp(each.message, first->message) == 0;
  });
  const std::string where = "rank " + std::to_string(first - all.begin()) + ": ";
  return Status(static_cast<StatusCode>(first->code),
                (is_everywhere ? "" : where) + first->message);
}

std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers) {
  std::string ranks;
  for (std::size_t r = 1; r < numbers.size(); ++r) {
    if (numbers[r] == numbers[0]) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

Status check_equal_layout(transport::Communicator& communicator,
                          const std::vector<at::Tensor>& parameters,
                          const std::vector<at::Tensor>& buffers) {
  std::vector<NamedTensor> all = numbered(parameters, "parameter ");
  for (NamedTensor& buffer : numbered(buffers, "buffer ")) all.push_back(std::move(buffer));
  auto prints = gather_numbers(communicator, fingerprint(all));
  if (!prints.ok()) return prints.status();
  const std::string different = ranks_that_differ(*prints);
  if (different.empty()) return ok_status();
  return invalid_argument(
      "expected the same parameters and buffers (number, shapes, types, order, which are frozen) "
      "on all ranks, found others than rank 0's on rank " +
      different + "; build the same model on every rank");
}

Status broadcast_from_root(transport::Communicator& communicator,
                           const std::vector<at::Tensor>& tensors) {
  if (communicator.size() == 1) return ok_status();
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor staged = tensor.detach().to(at::kCPU).contiguous();
    const std::span<std::byte> bytes(static_cast<std::byte*>(staged.mutable_data_ptr()),
                                     static_cast<std::size_t>(staged.nbytes()));
    if (bytes.empty()) continue;
    Status sent = finish(communicator, communicator.start_broadcast(bytes, kRoot));
    if (!sent.ok()) return sent;
    tensor.detach().copy_(staged);
  }
  return ok_status();
}

}  // namespace cox::detail
