#include "sdk/src/parallel/agreement.h"

#include <sched.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "coordinator/core/hash.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/device/transfer.h"

namespace cox::detail {
namespace {

// Sent as it is; another rank's bytes may be anything.
struct Verdict {
  std::int32_t code = 0;
  char message[1020] = {};

  std::string text() const { return {message, strnlen(message, sizeof message)}; }
  StatusCode status_code() const {
    constexpr auto kLast = static_cast<std::int32_t>(StatusCode::internal);
    return code > 0 && code <= kLast ? static_cast<StatusCode>(code) : StatusCode::internal;
  }
};

constexpr std::size_t kMostNamed = 8;

// In the order of CallKind.
constexpr std::string_view kCallNames[] = {
    "sync_parameters", "sync_buffers", "all_reduce_gradients", "close", "a call that was refused"};

std::string text_of(const CallMark& mark) {
  const auto kind = static_cast<std::size_t>(mark.kind);
  if (kind >= std::size(kCallNames)) return "a call of another version";
  const bool has_tensors = mark.kind < CallKind::close;
  return std::string(kCallNames[kind]) +
         (has_tensors ? " of " + std::to_string(mark.tensors) + " tensors" : "");
}

constexpr std::uint64_t kNobody = ~std::uint64_t{0};

std::vector<NamedTensor> numbered(const std::vector<at::Tensor>& tensors, const char* prefix) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& tensor : tensors) {
    const char* kind = tensor.requires_grad() ? " with gradient" : "";
    named.push_back({prefix + std::to_string(named.size()) + kind, tensor});
  }
  return named;
}

// Runs an operation. With `pump`, works on a copy of the bytes, which stays allocated if an
// exception ends the wait.
template <class Start>
Status run_collective(transport::Communicator& ranks, std::span<std::byte> bytes,
                      const BetweenPolls& pump, Start&& start) {
  if (!pump) return transport::finish(ranks, start(bytes), wait_policy_of(ranks));
  auto copy = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
  const Status done = attend(ranks, start(std::span<std::byte>(*copy)), copy, pump);
  if (!done.ok()) return done;
  std::ranges::copy(*copy, bytes.begin());
  return ok_status();
}

}  // namespace

Status reduce_bytes(transport::Communicator& ranks, std::span<std::byte> bytes,
                    const transport::Reduction& reduction, const BetweenPolls& pump) {
  return run_collective(ranks, bytes, pump, [&](std::span<std::byte> all) {
    return ranks.start_all_reduce(all, reduction);
  });
}

Status broadcast(transport::Communicator& ranks, std::span<std::byte> bytes, RankId from,
                 const BetweenPolls& pump) {
  return run_collective(ranks, bytes, pump,
                        [&](std::span<std::byte> all) { return ranks.start_broadcast(all, from); });
}

Status agree_on_status(transport::Communicator& communicator, const Status& mine,
                       const BetweenPolls& pump) {
  Verdict verdict;
  verdict.code = static_cast<std::int32_t>(mine.code());
  mine.message().copy(verdict.message, sizeof(verdict.message) - 1);
  const auto gathered = gather_values(communicator, verdict, pump);
  if (!gathered.ok()) return gathered.status();
  const std::vector<Verdict>& all = *gathered;
  const auto is_ok = [](const Verdict& each) { return each.code == 0; };
  const auto first = std::ranges::find_if_not(all, is_ok);
  if (first == all.end()) return ok_status();
  const std::string why = first->text();
  const bool is_everywhere =
      std::ranges::all_of(all, [&](const Verdict& each) { return each.text() == why; });
  const std::string where = "rank " + std::to_string(first - all.begin()) + ": ";
  return Status(first->status_code(), (is_everywhere && !why.empty() ? "" : where) + why);
}

std::string first_text(transport::Communicator& ranks, const std::string& mine) {
  Verdict text;
  mine.copy(text.message, sizeof(text.message) - 1);
  const auto all = gather_values(ranks, text);
  if (!all.ok()) return {};
  const auto first = std::ranges::find_if(*all, [](const Verdict& t) { return t.message[0] != 0; });
  return first == all->end() ? std::string() : first->text();
}

std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers) {
  std::string ranks;
  for (std::size_t r = 1; r < numbers.size(); ++r) {
    if (numbers[r] == numbers[0]) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

namespace {

// The kind of device counts too: gradients and buffers outside of the CPU take other ways.
std::uint64_t layout_print(const std::vector<NamedTensor>& tensors) {
  Fnv1a64 hash;
  hash.add(fingerprint(tensors));
  for (const NamedTensor& each : tensors)
    hash.add(static_cast<std::uint64_t>(each.tensor.device().type()));
  return hash.value();
}

}  // namespace

CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors) {
  return {kind, tensors.size(), layout_print(numbered(tensors, "")), 0};
}

Status check_matched(const std::vector<CallMark>& marks) {
  std::string others;
  std::size_t count = 0;
  for (std::size_t rank = 1; rank < marks.size(); ++rank) {
    if (marks[rank] == marks[0] || ++count > kMostNamed) continue;
    const bool differs_in_layout_only =
        marks[rank].kind == marks[0].kind && marks[rank].tensors == marks[0].tensors;
    others += ", " + text_of(marks[rank]) + (differs_in_layout_only ? " of other tensors" : "") +
              " on rank " + std::to_string(rank);
  }
  if (count == 0) return ok_status();
  if (count > kMostNamed)
    others += " and others on " + std::to_string(count - kMostNamed) + " more";
  return invalid_argument(
      "expected the same call with the same tensors on all ranks, found " + text_of(marks[0]) +
      " on rank 0" + others +
      "; all ranks must make the same calls in the loop: a rank without samples passes weight 0");
}

Result<ArrivalStamp> match_calls(transport::Communicator& ranks, const CallMark& mine,
                                 const ArrivalStamp& arrival, const BetweenPolls& pump) {
  struct Arriving {
    CallMark mark;
    ArrivalStamp arrival;
  };
  if (ranks.size() == 1) return arrival;
  const auto all = gather_values(ranks, Arriving{mine, arrival}, pump);
  if (!all.ok()) return all.status();
  std::vector<CallMark> marks;
  ArrivalStamp latest;
  for (const Arriving& each : *all) {
    marks.push_back(each.mark);
    merge_into(latest, each.arrival);
  }
  const Status matched = check_matched(marks);
  if (!matched.ok()) return matched;
  return latest;
}

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
  auto prints = gather_values(communicator, layout_print(all));
  if (!prints.ok()) return prints.status();
  const std::string different = ranks_that_differ(*prints);
  if (different.empty()) return ok_status();
  return invalid_argument(
      "expected the same parameters and buffers (number, shapes, types, order, which are frozen, "
      "CPU or device) on all ranks, found different ones from rank 0's on rank " +
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
    if (Status sent = broadcast(communicator, bytes, kRoot); !sent.ok()) return sent;
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

namespace {

// Buffers of one device. One message carries all of them, because buffers are small and many.
struct BuffersThere {
  c10::Device device;
  std::vector<at::Tensor> tensors;  // those with elements
  std::int64_t bytes = 0;
};

std::vector<BuffersThere> by_device(const std::vector<at::Tensor>& buffers) {
  std::vector<BuffersThere> all;
  for (const at::Tensor& buffer : buffers) {
    if (buffer.numel() == 0) continue;
    auto found = std::ranges::find(all, buffer.device(), &BuffersThere::device);
    if (found == all.end()) found = all.insert(all.end(), {buffer.device(), {}});
    found->tensors.push_back(buffer.detach());
    found->bytes += static_cast<std::int64_t>(buffer.nbytes());
  }
  return all;
}

// Returns the bytes of all buffers, one after the other, on the host: one copy, without a blocking
// wait.
at::Tensor gathered(const BuffersThere& from, const BetweenPolls& pump) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : from.tensors)
    flat.push_back(tensor.contiguous().reshape({-1}).view(at::kByte));
  const HostCopy copy(at::cat(flat));
  while (!copy.has_come()) {
    if (pump) pump();
    sched_yield();
  }
  return copy.tensor();
}

// Requires the bytes on the buffers' device.
void spread(const at::Tensor& bytes, const BuffersThere& to) {
  std::int64_t at = 0;
  for (const at::Tensor& tensor : to.tensors) {
    const auto size = static_cast<std::int64_t>(tensor.nbytes());
    const at::Tensor aligned = bytes.narrow(0, at, size).clone();
    at::Tensor(tensor).copy_(aligned.view(tensor.scalar_type()).view(tensor.sizes()));
    at += size;
  }
}

}  // namespace

// Only the sending rank reads its device.
Status BufferSync::follow(std::uint64_t from, transport::Communicator& ranks,
                          const BetweenPolls& pump) {
  if (from == kNobody) return ok_status();
  if (ranks.size() == 1) {
    seen_ = versions();
    return ok_status();
  }
  const torch::NoGradGuard no_grad;
  const RankId root(static_cast<std::int32_t>(from));
  const bool gives = ranks.rank() == root;
  for (const BuffersThere& each : by_device(buffers_)) {
    const at::Tensor message =
        gives ? gathered(each, pump) : at::empty({each.bytes}, at::TensorOptions(at::kByte));
    const std::span<std::byte> bytes(static_cast<std::byte*>(message.mutable_data_ptr()),
                                     message.nbytes());
    if (Status sent = broadcast(ranks, bytes, root, pump); !sent.ok())
      return sent.with_context("buffers");
    if (!gives) spread(sent_to(message, each.device), each);
  }
  seen_ = versions();
  return ok_status();
}

}  // namespace cox::detail
