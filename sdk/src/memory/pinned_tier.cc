#include "sdk/src/memory/pinned_tier.h"

#include <c10/core/Event.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "coxswain/error.h"
#include "sdk/src/device/choice.h"

namespace cox::detail {

struct PinnedTier::Copy {
  explicit Copy(const c10::Device& device) : over(device.type()) {}

  at::Tensor pinned;
  c10::Event over;  // recorded after the newest copy
};

PinnedTier::PinnedTier(c10::Device device)
    : device_(device),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

c10::Stream PinnedTier::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

at::Tensor PinnedTier::on_device(const Transfer& transfer) const {
  return at::for_blob(transfer.data, {transfer.bytes})
      .options(at::TensorOptions(device_).dtype(at::kByte))
      .target_device(device_)
      .make_tensor();
}

void PinnedTier::copy(Transfer& transfer) {
  if (!transfer.kept) transfer.kept = std::make_shared<Copy>(device_);
  Copy& copy = *std::static_pointer_cast<Copy>(transfer.kept);
  const torch::NoGradGuard no_grad;
  c10::Event ready(device_.type());
  ready.record(current());
  ready.block(stream_);
  const c10::StreamGuard guard(stream_);
  at::Tensor here = on_device(transfer);
  if (transfer.kind == Transfer::Kind::write) {
    copy.pinned = at::empty({transfer.bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
    copy.pinned.copy_(here, /*non_blocking=*/true);
  } else {
    here.copy_(copy.pinned, /*non_blocking=*/true);
  }
  copy.over.record(stream_);
}

void PinnedTier::start(Transfer& transfer) {
  try {
    copy(transfer);
    transfer.state = Transfer::State::running;
  } catch (const std::exception& error) {
    transfer.error = resource_exhausted("pinned memory: ", first_line(error.what()));
    transfer.state = Transfer::State::failed;
  }
}

// Makes the current stream wait for the copy, in each call, because each caller may use another
// stream. Never waits on the host. Reports a lost device in `error` instead of throwing, because
// releasing saved tensors must not throw.
Transfer::State PinnedTier::finish(Transfer& transfer) {
  const bool was_started =
      transfer.state == Transfer::State::running || transfer.state == Transfer::State::done;
  if (!was_started) return transfer.state;
  try {
    std::static_pointer_cast<Copy>(transfer.kept)->over.block(current());
    return transfer.state = Transfer::State::done;
  } catch (const std::exception& error) {
    transfer.error = unavailable("pinned memory: ", first_line(error.what()));
    return transfer.state = Transfer::State::failed;
  }
}

void PinnedTier::cancel(Transfer& transfer) {
  static_cast<void>(finish(transfer));
  transfer.state = Transfer::State::idle;
}

Result<std::int64_t> measure_pinned(c10::Device device, std::int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  const torch::NoGradGuard no_grad;
  const auto per_ms = [&](const auto& work) {
    work();
    wait_for_current_stream(device);
    const auto began = Clock::now();
    work();
    wait_for_current_stream(device);
    const std::chrono::duration<double, std::milli> spent = Clock::now() - began;
    return static_cast<std::int64_t>(static_cast<double>(bytes) / std::max(1e-3, spent.count()));
  };
  try {
    at::Tensor here = at::zeros({bytes}, at::TensorOptions(device).dtype(at::kByte));
    at::Tensor pinned = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
    const std::int64_t written = per_ms([&] { pinned.copy_(here, true); });
    return std::min(written, per_ms([&] { here.copy_(pinned, true); }));
  } catch (const std::exception& error) {
    return unavailable("pinned memory: ", first_line(error.what()));
  }
}

}  // namespace cox::detail
