// StreamLane is a rank's DeviceLane on CUDA: a stream of LibTorch's pool, staging buffers of its
// caching allocators, and an event for each mark, all through c10's virtual device interface. The
// stream has high priority, because a lane's traffic is small and others may wait for it.
//
// A lane's buffers return to the allocators with it. The allocators reuse memory only after the
// work of the lane's stream: device memory belongs to the stream, and pinned memory has an event
// after its last copy. Thread rule: as DeviceLane.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/transport/nccl/device_lane.h"

namespace cox::detail {

class StreamLane final : public transport::DeviceLane {
 public:
  // failed_precondition if `device` has no streams (the CPU); unavailable with the device's own
  // message after a device error.
  static Result<std::unique_ptr<transport::DeviceLane>> make(c10::Device device);

  Status select_device() override;
  void* stream() const override { return stream_.native_handle(); }
  Result<transport::StagingBuffer> staging(std::size_t bytes) override;
  Status upload(const transport::StagingBuffer& buffer, std::size_t bytes) override;
  Status download(const transport::StagingBuffer& buffer, std::size_t bytes) override;
  Status mark(Mark mark) override { return mark_on(stream_, mark); }
  Result<transport::Progress> passed(Mark mark) override;
  Status mark_current(Mark mark) override { return mark_on(current(), mark); }
  Status follow(Mark mark) override { return block(stream_, mark); }
  Status hold_current_until(Mark mark) override { return block(current(), mark); }

 private:
  struct Buffer {
    at::Tensor host;  // pinned
    at::Tensor device;
  };
  explicit StreamLane(c10::Stream stream);
  Result<Buffer> buffer_of(const transport::StagingBuffer& buffer, std::size_t bytes) const;
  c10::Stream current() const;
  Status mark_on(const c10::Stream& stream, Mark mark);
  Status block(const c10::Stream& stream, Mark mark) const;

  const c10::Stream stream_;
  std::vector<Buffer> buffers_;
  std::vector<std::optional<c10::Event>> marks_;  // by number
};

}  // namespace cox::detail
