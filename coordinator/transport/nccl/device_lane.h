// DeviceLane: what the coordinator needs of a device, without a header of CUDA: one stream of its
// own, staging buffers that lie in host memory and on the device, asynchronous copies between the
// two, and marks that tell how far the stream has come. Nothing in this interface waits for the
// device, and nothing in it makes the host or the training stream wait for the lane, unless the
// caller asks for that with hold_current_until().
//
//   NcclGroup   -- collectives on stream() -->  the lane's stream, in order
//   the lane    -- upload(), download(), mark() -->  the same stream, in the same order
//
// The SDK implements it over c10's virtual device interface (sdk/src/device); tests implement it
// in plain host memory (tests/support/cuda/host_lane.h). A lane belongs to one rank and one device.
//
// What an implementation owes:
// - Work is given to the stream in the order of calls; stream() is the native handle (cudaStream_t)
//   of that same stream, and is neither the default stream nor the training stream.
// - A staging buffer stays where it is and stays allocated until the lane is destroyed. Its host
//   part is pinned, so that copies are asynchronous. After the lane is destroyed, work that is
//   still on its way must not touch memory that somebody else got: wait for the stream, or leave
//   the memory to the end of the process.
// - An error of the device (unavailable, with the device's own words) is final for the lane.
//
// Thread rule: one thread at a time. On CUDA that is the training thread, or autograd's thread of
// the device while the training thread waits inside backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"

namespace cox::transport {

// StagingBuffer is the same number of bytes twice: `host` is pinned memory that the CPU reads and
// writes, `device` an address that only the device (and NCCL) may use.
struct StagingBuffer {
  std::span<std::byte> host;
  void* device = nullptr;
};

class DeviceLane {
 public:
  // A place in the order of the lane's work, numbered from 0: by a caller that has the lane to
  // itself, or by take_mark() for callers that share it. A small set of numbers is used again and
  // again, so an implementation keeps one event for each.
  using Mark = std::uint32_t;

  // Returns a mark that nobody else gets until it is given back.
  Mark take_mark() {
    if (returned_.empty()) return taken_++;
    const Mark mark = returned_.back();
    returned_.pop_back();
    return mark;
  }
  void give_back(Mark mark) { returned_.push_back(mark); }

  virtual ~DeviceLane() = default;

  // Makes this lane's device the calling thread's current device, as NCCL's start expects.
  virtual Status select_device() = 0;

  // Returns the native handle of the lane's stream.
  virtual void* stream() const = 0;

  // Returns a new buffer, zeroed on the host, aligned to 64 bytes, which lives as long as the lane.
  // For the start of a job: it may wait for the device. resource_exhausted when there is no room.
  virtual Result<StagingBuffer> staging(std::size_t bytes) = 0;

  // Gives the stream a copy of the first `bytes` bytes: host to device, device to host. The host
  // part must stay untouched until a mark behind the copy has passed. REQUIRES: bytes <=
  // buffer.host.size().
  virtual Status upload(const StagingBuffer& buffer, std::size_t bytes) = 0;
  virtual Status download(const StagingBuffer& buffer, std::size_t bytes) = 0;

  // Puts `mark` behind all work that the stream has been given so far. A mark that was set before
  // moves here.
  virtual Status mark(Mark mark) = 0;
  // Returns done once all work in front of the mark is over. Never waits. A mark that was never
  // set has passed.
  virtual Result<Progress> passed(Mark mark) = 0;

  // Puts `mark` behind all work that the calling thread's current stream has been given so far;
  // passed() asks for it as for any other.
  virtual Status mark_current(Mark mark) = 0;
  // Lets what the lane is given from here on wait, on the device, for the mark.
  virtual Status follow(Mark mark) = 0;
  // Lets the calling thread's current stream wait, on the device, for the mark. The host goes on.
  virtual Status hold_current_until(Mark mark) = 0;

 private:
  Mark taken_ = 0;
  std::vector<Mark> returned_;
};

}  // namespace cox::transport
