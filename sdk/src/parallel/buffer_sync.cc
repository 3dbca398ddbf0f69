#include "sdk/src/parallel/buffer_sync.h"

#include <torch/torch.h>

#include <cstring>
#include <utility>

namespace cox::detail {
namespace {

constexpr std::uint64_t kNobody = ~std::uint64_t{0};

}  // namespace

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
