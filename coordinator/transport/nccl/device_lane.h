// DeviceLane is the coordinator's view of a device, without headers of CUDA. A lane has a stream,
// staging buffers in host memory and on the device, and asynchronous copies between the two. Marks
// show the stream's progress. Only staging() may wait for the device. Only hold_current_until()
// makes the training stream wait for the lane.
//
//   NcclGroup   -- collectives on stream() -->  the lane's stream, in order
//   the lane    -- upload(), download(), mark() -->  the same stream, in the same order
//
// Implemented by the SDK over c10's virtual device interface (sdk/src/device), and by tests in host
// memory (tests/support/cuda/host_lane.h). A lane belongs to one rank and one device. Thread rule:
// one thread at a time. On CUDA the thread is the training thread, or autograd's thread of the
// device while the training thread waits inside backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"

namespace cox::transport {

// StagingBuffer is a pair of buffers of equal size. `host` is pinned memory for the CPU. `device`
// is an address for the device and NCCL only.
struct StagingBuffer {
  std::span<std::byte> host;
  void* device = nullptr;
};

// Rules for implementations:
//
// - The stream gets its work in the order of calls. stream() is the native handle (cudaStream_t) of
//   the same stream, and is neither the default stream nor the training stream.
// - A staging buffer keeps its address and stays allocated until the lane is destroyed. The host
//   part is pinned, so that copies are asynchronous.
// - After the lane's destruction, work in flight must not touch memory with a new owner. Wait for
//   the stream, or leave the memory to the end of the process.
// - An error of the device (unavailable, with the device's own words) is final for the lane.
class DeviceLane {
 public:
  // A Mark is a position in the lane's work. Numbers start at 0 and are reused, so an
  // implementation keeps one event for each. The sole user of a lane chooses its numbers itself;
  // users of a shared lane call take_mark().
  using Mark = std::uint32_t;

  // Returns a mark that no other caller gets until give_back().
  Mark take_mark() {
    if (returned_.empty()) return taken_++;
    const Mark mark = returned_.back();
    returned_.pop_back();
    return mark;
  }
  void give_back(Mark mark) { returned_.push_back(mark); }

  virtual ~DeviceLane() = default;

  // Makes this lane's device the calling thread's current device. Call it before NCCL starts.
  virtual Status select_device() = 0;

  // Returns the native handle of the lane's stream.
  virtual void* stream() const = 0;

  // Returns a new buffer, zeroed on the host and aligned to 64 bytes, that lives as long as the
  // lane. May wait for the device, so call it at the start of a job. Returns resource_exhausted if
  // there is no room.
  virtual Result<StagingBuffer> staging(std::size_t bytes) = 0;

  // Queue a copy of the first `bytes` bytes on the stream. upload() copies from host to device,
  // download() from device to host. The host part must stay untouched until a mark behind the copy
  // has passed. REQUIRES: bytes <= buffer.host.size().
  virtual Status upload(const StagingBuffer& buffer, std::size_t bytes) = 0;
  virtual Status download(const StagingBuffer& buffer, std::size_t bytes) = 0;

  // Puts `mark` behind all work already on the lane's stream. A mark that was set before moves.
  virtual Status mark(Mark mark) = 0;
  // Returns done once all work before the mark is over, or if the mark was never set. Never waits.
  virtual Result<Progress> passed(Mark mark) = 0;

  // Puts `mark` behind all work already on the calling thread's current stream. passed() reads the
  // mark as usual.
  virtual Status mark_current(Mark mark) = 0;
  // Makes later work of the lane wait for the mark, on the device.
  virtual Status follow(Mark mark) = 0;
  // Makes later work of the calling thread's current stream wait for the mark, on the device. The
  // host does not wait.
  virtual Status hold_current_until(Mark mark) = 0;

 private:
  Mark taken_ = 0;
  std::vector<Mark> returned_;
};

}  // namespace cox::transport
