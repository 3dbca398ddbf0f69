#include "sdk/src/device/stream_lane.h"

#include <torch/torch.h>

#include <algorithm>

#include "coordinator/core/text.h"
#include "coxswain/error.h"

namespace cox::detail {
namespace {

using transport::Progress;
using transport::StagingBuffer;

// Converts LibTorch's exceptions to a status with the first line of the message.
template <class Work>
Status tried(const char* what, const Work& work) {
  try {
    work();
    return ok_status();
  } catch (const std::exception& error) {
    return unavailable(concat(what, ": ", first_line(error.what())));
  }
}

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// Streams wait for these events on the device, so they need no clock.
c10::Event new_event(const c10::Stream& stream) {
  return c10::Event(stream.device_type(), c10::EventFlag::PYTORCH_DEFAULT);
}

}  // namespace

StreamLane::StreamLane(c10::Stream stream) : stream_(stream) {}

Result<std::unique_ptr<transport::DeviceLane>> StreamLane::make(c10::Device device) {
  if (device.is_cpu()) {
    return failed_precondition(
        "CUDA stream: expected a rank on a CUDA device, found one on the CPU");
  }
  std::unique_ptr<transport::DeviceLane> lane;
  const Status made = tried("making a stream", [&] {
    lane.reset(new StreamLane(guard_of(device).getStreamFromGlobalPool(device, true)));
  });
  if (!made.ok()) return made;
  return lane;
}

Status StreamLane::select_device() {
  return tried("choosing the device",
               [this] { guard_of(stream_.device()).setDevice(stream_.device()); });
}

c10::Stream StreamLane::current() const {
  return guard_of(stream_.device()).getStream(stream_.device());
}

Result<StagingBuffer> StreamLane::staging(std::size_t bytes) {
  Buffer buffer;
  const auto size = static_cast<std::int64_t>(std::max<std::size_t>(1, bytes));
  const Status made = tried("allocating staging memory", [&] {
    const c10::StreamGuard guard(stream_);
    const auto options = at::TensorOptions(at::kByte);
    buffer.host = at::zeros({size}, options).pin_memory();
    buffer.device = at::empty({size}, options.device(stream_.device()));
  });
  if (!made.ok()) return resource_exhausted(made.message());
  buffers_.push_back(buffer);
  return StagingBuffer{{static_cast<std::byte*>(buffer.host.mutable_data_ptr()), bytes},
                       buffer.device.mutable_data_ptr()};
}

Result<StreamLane::Buffer> StreamLane::buffer_of(const StagingBuffer& buffer,
                                                 std::size_t bytes) const {
  const auto found = std::ranges::find_if(
      buffers_, [&](const Buffer& each) { return each.device.data_ptr() == buffer.device; });
  if (found == buffers_.end() || bytes > buffer.host.size()) {
    return invalid_argument("CUDA copy: expected a staging buffer of this stream and at most its ",
                            "size, found another buffer or more bytes");
  }
  const auto size = static_cast<std::int64_t>(bytes);
  return Buffer{found->host.narrow(0, 0, size), found->device.narrow(0, 0, size)};
}

Status StreamLane::upload(const StagingBuffer& buffer, std::size_t bytes) {
  const auto part = buffer_of(buffer, bytes);
  if (!part.ok()) return part.status();
  return tried("a copy to the device", [&] {
    const c10::StreamGuard guard(stream_);
    at::Tensor(part->device).copy_(part->host, /*non_blocking=*/true);
  });
}

Status StreamLane::download(const StagingBuffer& buffer, std::size_t bytes) {
  const auto part = buffer_of(buffer, bytes);
  if (!part.ok()) return part.status();
  return tried("a copy from the device", [&] {
    const c10::StreamGuard guard(stream_);
    at::Tensor(part->host).copy_(part->device, /*non_blocking=*/true);
  });
}

Status StreamLane::mark_on(const c10::Stream& stream, Mark mark) {
  return tried("an event", [&] {
    if (marks_.size() <= mark) marks_.resize(mark + 1);
    if (!marks_[mark]) marks_[mark].emplace(new_event(stream_));
    marks_[mark]->record(stream);
  });
}

Result<Progress> StreamLane::passed(Mark mark) {
  if (mark >= marks_.size() || !marks_[mark]) return Progress::done;
  bool is_over = false;
  const Status asked = tried("the device", [&] { is_over = marks_[mark]->query(); });
  if (!asked.ok()) return asked;
  return is_over ? Progress::done : Progress::pending;
}

// A mark that was never set has passed.
Status StreamLane::block(const c10::Stream& stream, Mark mark) const {
  if (mark >= marks_.size() || !marks_[mark]) return ok_status();
  return tried("an event", [&] { marks_[mark]->block(stream); });
}

}  // namespace cox::detail
