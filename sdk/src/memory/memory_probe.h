// MemoryProbe is the actuator that reports how much memory this rank uses and may use. Where
// tensors are counted (counting_allocator.h) it tells their bytes now and at most in the step, in
// every step, and for a model on a device those of its memory. Elsewhere it tells what the kernel
// says of the process, which it reads every few steps only, because a look costs more than a step
// may. What the rank may use is looked up once a second: its share of the machine and of the
// control groups, and never more than it has now and its share of what is really free. Training
// thread only.
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

// Puts the text of a file into `text`, whose memory is used again; empty where it cannot be read.
using ReadText = std::function<void(const std::string& path, std::string& text)>;
void read_system_text(const std::string& path, std::string& text);

struct NodeReading {
  // The least of the machine's memory and the limits of the groups; 0 = unknown.
  std::uint64_t limit_bytes = 0;
  // The least that the machine or one of the groups has left. Files that the system keeps in memory
  // and would drop count as free.
  std::optional<std::uint64_t> free_bytes;
};

// NodeMemory reads what memory this process's machine and control groups allow, and how much of it
// is left now. It looks at files of /proc and /sys only, by a function that is passed in, so that
// tests bring machines of their own. Each look takes some 50 us, and allocates nothing once its
// room for a text has its size.
class NodeMemory {
 public:
  // Finds the control groups of this process: its own and those around it, of both versions.
  explicit NodeMemory(ReadText read = read_system_text);

  NodeReading look();
  // Returns the bytes of this process that are in memory now; 0 = unknown.
  std::uint64_t resident_bytes();

 private:
  enum class Version { v1, v2 };
  // Its files, by their paths.
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
  // Held by the allocator of a device, now and at most; elsewhere the two above.
  std::uint64_t reserved_bytes = 0;
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t limit_bytes = 0;  // that this rank may come to use; 0 = unknown
  // The device's allocator, where it holds something. Its free bytes are up to kLimitEvery old.
  std::optional<AllocatorEvidence> allocator{};
};

// The ranks that share a memory with this one, which is among them.
struct MemorySharers {
  std::int32_t of_node = 1;
  std::int32_t of_device = 1;
};

class MemoryProbe final : public Actuator, public Steering, public Reporting {
 public:
  static constexpr std::uint64_t kEverySteps = 16;
  static constexpr std::chrono::seconds kLimitEvery{1};

  explicit MemoryProbe(MemorySharers sharers = {}, NodeMemory node = NodeMemory());

  // The tensors of a model on a device are counted there.
  void attach(torch::nn::Module& model) override;
  void count_on(c10::Device device);
  const TensorMemory& memory() const { return memory_; }
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

  // A part of the step begins that is looked at by itself; peak_of_part() returns the most bytes
  // since then, 0 where tensors are not counted. The step's own peak covers all parts.
  void begin_part();
  std::int64_t peak_of_part() const;

  // Reads the memory in use now.
  void look();
  // Reads what this rank may use now.
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
  // Least bytes seen in memory that are no counted tensors: code, libraries, buffers of MPI.
  std::optional<std::uint64_t> uncounted_bytes_;
  MemoryReading reading_;
  std::uint64_t device_free_bytes_ = 0;
};

}  // namespace cox::detail
