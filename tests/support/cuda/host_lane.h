// Streams and a DeviceLane in plain host memory, to test NCCL's transport without CUDA.
//
// A stream is a queue of work. give() only appends; the work runs later, in order: in calls of
// passed(), or in the fake NCCL, whose collectives stay pending in a stream until they end. So a
// read before a mark has passed gets old bytes, and overwriting the source of an unfinished upload
// sends wrong bytes.
//
// "Device" memory is separate from its host part. Any thread may call any function; one lock guards
// all streams of the process.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/transport/nccl/device_lane.h"
#include "tests/support/cuda/nccl/stream_seam.h"

namespace cox::test {

class HostStream {
 public:
  // Appends work to the stream. `work` is called repeatedly until it returns true.
  void give(std::function<bool()> work);
  // Runs the work that can run now. Returns whether the stream is empty.
  bool drain();

 private:
  std::deque<std::function<bool()>> work_;
  bool is_draining_ = false;
};

class HostLane : public transport::DeviceLane {
 public:
  // `training` represents the calling thread's current stream, and must outlive the lane.
  explicit HostLane(HostStream& training) : training_(training) {}
  // Makes a lane with a training stream of its own.
  HostLane() : own_(std::make_unique<HostStream>()), training_(*own_) {}

  Status select_device() override { return ok_status(); }
  void* stream() const override { return const_cast<HostStream*>(&stream_); }
  Result<transport::StagingBuffer> staging(std::size_t bytes) override;
  Status upload(const transport::StagingBuffer& buffer, std::size_t bytes) override;
  Status download(const transport::StagingBuffer& buffer, std::size_t bytes) override;
  Status mark(Mark mark) override;
  Result<transport::Progress> passed(Mark mark) override;
  Status mark_current(Mark mark) override;
  Status follow(Mark mark) override;
  Status hold_current_until(Mark mark) override;

 private:
  std::shared_ptr<bool>& flag(Mark mark);

  std::unique_ptr<HostStream> own_;
  HostStream& training_;
  HostStream stream_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::shared_ptr<bool>> marks_;  // by mark: whether the mark has passed
};

// Makes the fake NCCL use host streams from now on. `fake_nccl` is the path of its library. Returns
// the error, empty on success.
std::string use_host_streams(const std::string& fake_nccl);

}  // namespace cox::test
