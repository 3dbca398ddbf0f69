// MemoryProbe is the actuator that reports how much memory this rank uses and may use. Where
// tensors are counted (counting_allocator.h) it tells their bytes now and at most in the step, in
// every step. Elsewhere it tells what the kernel says of the process, which it reads every few
// steps only, because a look costs more than a step may. What the rank may use is looked up once a
// second: its share of the machine and of the control groups, and never more than it has now and
// its share of what is really free. Training thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

// Makes `text` that of a file; empty where it cannot be read. What the text has room for already is
// not allocated again.
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
// tests bring machines of their own. Each look takes some 50 us. Steps end with one, so nothing is
// allocated after the constructor but for a file that has outgrown kTextBytes.
class NodeMemory {
 public:
  static constexpr std::size_t kTextBytes = std::size_t{16} << 10;

  // Finds the control groups of this process: its own and those around it, of both versions.
  explicit NodeMemory(ReadText read = read_system_text);

  NodeReading look();
  // Returns the bytes of this process that are in memory now; 0 = unknown.
  std::uint64_t resident_bytes();

 private:
  enum class Version { v1, v2 };
  // The files of a control group. The first version has no `high`.
  struct Group {
    Group(const std::string& folder, Version of);

    Version version;
    std::string limit, high, used, statistics;
  };
  void find_groups();
  void add_groups(const std::string& mount, const std::string& path, Version version);
  NodeReading look_at(const Group& group);
  // Returns the text of a file, which holds until the next call.
  std::string_view read(const std::string& path);

  const ReadText read_;
  const std::string machine_ = "/proc/meminfo";
  const std::string process_ = "/proc/self/statm";
  std::string text_;
  std::vector<Group> groups_;
};

struct MemoryReading {
  std::uint64_t used_bytes = 0;   // counted or resident now
  std::uint64_t peak_bytes = 0;   // counted: most in the last step; resident: most so far
  std::uint64_t limit_bytes = 0;  // that this rank may come to use; 0 = unknown
};

class MemoryProbe final : public Actuator {
 public:
  static constexpr std::uint64_t kEverySteps = 16;
  static constexpr std::chrono::seconds kLimitEvery{1};

  // `ranks_on_node`: the ranks that share the memory, this one included.
  explicit MemoryProbe(std::int32_t ranks_on_node = 1, NodeMemory node = NodeMemory());

  const char* name() const override { return "memory"; }
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

  // Reads the memory in use now.
  void look();
  // Reads what this rank may use now.
  void look_around();
  const MemoryReading& reading() const { return reading_; }

 private:
  void look_at_process();

  const std::uint64_t sharing_;
  NodeMemory node_;
  std::uint64_t calls_ = 0;
  std::chrono::steady_clock::time_point next_look_around_{};
  // Least bytes seen in memory that are no counted tensors: code, libraries, buffers of MPI.
  std::optional<std::uint64_t> uncounted_bytes_;
  MemoryReading reading_;
};

}  // namespace cox::detail
