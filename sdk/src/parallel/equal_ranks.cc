#include "sdk/src/parallel/equal_ranks.h"

#include <torch/torch.h>

#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

constexpr std::uint64_t kNobody = ~std::uint64_t{0};

std::vector<NamedTensor> numbered(const std::vector<at::Tensor>& tensors, const char* prefix) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) {
    const char* kind = tensor.requires_grad() ? " with gradient" : "";
    named.push_back({prefix + std::to_string(named.size()) + kind, tensor});
  }
  return named;
}

}  // namespace

std::vector<at::Tensor> each_once(std::vector<at::Tensor> tensors) {
  std::unordered_set<const void*> seen;
  std::erase_if(tensors, [&](const at::Tensor& tensor) {
    return !seen.insert(tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
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
  const auto wait = transport::wait_policy(communicator.ranks_on_node(), transport::usable_cores());
  for (const at::Tensor& tensor : tensors) {
    at::Tensor staged = tensor.detach().to(at::kCPU).contiguous();
    const std::span<std::byte> bytes(static_cast<std::byte*>(staged.mutable_data_ptr()),
                                     static_cast<std::size_t>(staged.nbytes()));
    if (bytes.empty()) continue;
    Status sent = transport::finish(communicator, communicator.start_broadcast(bytes, kRoot), wait);
    if (!sent.ok()) return sent;
    tensor.detach().copy_(staged);
  }
  return ok_status();
}

BufferSync::BufferSync(std::vector<at::Tensor> buffers)
    : buffers_(std::move(buffers)), seen_(versions()) {}

std::uint64_t BufferSync::versions() const {
  std::uint64_t sum = 0;
  for (const at::Tensor& buffer : buffers_) sum += static_cast<std::uint64_t>(buffer._version());
  return sum;
}

std::uint64_t BufferSync::vote(RankId rank) const {
  return versions() == seen_ ? kNobody : static_cast<std::uint64_t>(rank.value());
}

// All buffers in one message: they are small and many.
Status BufferSync::follow(std::uint64_t from, transport::Communicator& ranks,
                          const transport::WaitPolicy& wait) {
  if (from == kNobody) return ok_status();
  if (ranks.size() == 1) {
    seen_ = versions();
    return ok_status();
  }
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.numel() == 0) continue;
    flat.push_back(buffer.detach().to(at::kCPU).contiguous().reshape({-1}).view(at::kByte));
  }
  if (flat.empty()) return ok_status();
  at::Tensor message = at::cat(flat);
  const RankId root(static_cast<std::int32_t>(from));
  Status sent = transport::finish(
      ranks,
      ranks.start_broadcast({static_cast<std::byte*>(message.mutable_data_ptr()), message.nbytes()},
                            root),
      wait);
  if (!sent.ok()) return sent.with_context("buffers");
  std::int64_t at = 0;
  for (at::Tensor& buffer : buffers_) {
    const auto bytes = static_cast<std::int64_t>(buffer.nbytes());
    if (bytes == 0) continue;
    if (ranks.rank() != root) {
      buffer.detach().copy_(
          message.narrow(0, at, bytes).clone().view(buffer.scalar_type()).view(buffer.sizes()));
    }
    at += bytes;
  }
  seen_ = versions();
  return ok_status();
}

}  // namespace cox::detail
