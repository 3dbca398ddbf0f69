// MemoryProbe is the actuator that reports this rank's memory use and limit. If tensors are counted
// (counting_allocator.h), it reports their live bytes and the step's peak in every step; for a
// model on a device, those of the device. Otherwise it reports the kernel's figures for the
// process, and only every few steps, because a reading takes longer than a step may. Once a second
// it reads the limit: the rank's share of the machine and of the control groups, but at most the
// rank's memory now plus its share of the free memory. Training thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/src/blocks/actuator.h"
#include "sdk/src/memory/tensor_memory.h"

namespace cox::detail {

// Reads a file into `text`, reusing its memory; empty if the file cannot be read.
using ReadText = std::function<void(const std::string& path, std::string& text)>;
void read_system_text(const std::string& path, std::string& text);

struct NodeReading {
  // The least of the machine's memory and the groups' limits; 0 = unknown.
  std::uint64_t limit_bytes = 0;
  // The least free memory of the machine and the groups. Cached files that the system would drop
  // count as free.
  std::optional<std::uint64_t> free_bytes;
};

// NodeMemory reads the memory limits of this process's machine and control groups, and how much is
// free. Reads only files of /proc and /sys, through a given function, so that tests can substitute
// machines. A call of look() takes some 50 us, and allocates nothing once its text buffer has
// grown.
class NodeMemory {
 public:
  // Finds the process's control groups: the own group and all outer ones, of both versions.
  explicit NodeMemory(ReadText read = read_system_text);

  NodeReading look();
  // Returns the process's resident bytes; 0 = unknown.
  std::uint64_t resident_bytes();

 private:
  enum class Version { v1, v2 };
  // Paths of a group's files.
  struct Group {
    Group(const std::string& folder, Version version);
    std::string limit;
    std::string high;  // empty in version 1, which has none
    std::string used;
    std::string statistics;
    std::string_view inactive_files;  // the word in `statistics`
  };
  void find_groups();
  void add_groups(const std::string& mount, const std::string& path, Version version);
  NodeReading look_at(const Group& group);
  // Valid until the next call.
  std::string_view text_of(const std::string& path);

  ReadText read_;
  std::vector<Group> groups_;
  std::string text_;
};

struct MemoryReading {
  std::uint64_t used_bytes = 0;  // counted or resident now
  std::uint64_t peak_bytes = 0;  // counted: most in the last step; resident: most so far
  // Held by the allocator of a device, now and at most. On the CPU, the two values above.
  std::uint64_t reserved_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t limit_bytes = 0;  // limit of this rank; 0 = unknown
  // The device's allocator, if it holds something. The device's free bytes are up to kLimitEvery
  // old.
  std::optional<AllocatorEvidence> allocator{};
};

// Numbers of ranks that share a memory, this rank included.
struct MemorySharers {
  std::int32_t of_node = 1;
  std::int32_t of_device = 1;
};

class MemoryProbe final : public Actuator, public Steering, public Reporting {
 public:
  static constexpr std::uint64_t kEverySteps = 16;
  static constexpr std::chrono::seconds kLimitEvery{1};

  explicit MemoryProbe(MemorySharers sharers = {}, NodeMemory node = NodeMemory());

  // Tensors of a model on a device are counted there.
  void attach(torch::nn::Module& model) override;
  void count_on(c10::Device device);
  const TensorMemory& memory() const { return memory_; }
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

  // Begins a part of the step. peak_of_part() returns the most bytes since then, 0 if tensors are
  // not counted. The step's own peak covers all parts.
  void begin_part();
  std::int64_t peak_of_part() const;

  // Reads the memory in use now.
  void look();
  // Reads this rank's current limit.
  void look_around();
  const MemoryReading& reading() const { return reading_; }
  const MemorySharers& sharers() const { return sharers_; }

 private:
  void look_at_process();
  void look_at_heap(const DeviceHeap& heap);

  const MemorySharers sharers_;  // at least 1 of each
  NodeMemory node_;
  TensorMemory memory_;
  std::uint64_t calls_ = 0;
  std::int64_t peak_before_part_ = 0;  // in the open step
  std::chrono::steady_clock::time_point next_look_around_{};
  // Least memory seen outside of counted tensors: code, libraries, buffers of MPI.
  std::optional<std::uint64_t> uncounted_bytes_;
  MemoryReading reading_;
  std::uint64_t device_free_bytes_ = 0;
};

}  // namespace cox::detail
