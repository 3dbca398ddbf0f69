// Streams and a DeviceLane in plain host memory, so that NCCL's transport is tested without any
// part of CUDA. A stream is a list of work that is done in order and late: nothing happens in the
// call that gives it, so who reads a result before its mark has passed reads old bytes, and who
// overwrites what an upload has not read yet sends the wrong ones. Work is done by whoever asks a
// mark, or by the fake NCCL, whose collectives stay pending in a stream until they are over.
//
// "Device" memory is other memory than its host part. Any thread may call anything; one lock
// guards all streams of the process.
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
  // Gives the stream work: it is called, perhaps often, until it says that it is done.
  void give(std::function<bool()> work);
  // Does what can be done now. Returns whether nothing is left.
  bool drain();

 private:
  std::deque<std::function<bool()>> work_;
  bool is_draining_ = false;
};

class HostLane : public transport::DeviceLane {
 public:
  // `training` stands for the calling thread's current stream; it must outlive the lane.
  explicit HostLane(HostStream& training) : training_(training) {}
  // A lane whose rank has no other stream.
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
  std::vector<std::shared_ptr<bool>> marks_;  // by number: whether it has passed
};

// Lets the fake NCCL in this file use host streams from now on. Returns why it could not.
std::string use_host_streams(const std::string& fake_nccl);

}  // namespace cox::test
