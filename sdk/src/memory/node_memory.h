// NodeMemory reads what memory this process's machine and control groups allow, and how much of it
// is left now. MemoryProbe divides that among the ranks of the node. Looks at files of /proc and
// /sys only, by a function that is passed in, so that tests bring machines of their own. Each look
// takes some 50 us. Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cox::detail {

// Returns the text of a file; empty where it cannot be read.
using ReadText = std::function<std::string(const std::string& path)>;
std::string read_system_text(const std::string& path);

struct NodeReading {
  // The least of the machine's memory and the limits of the groups; 0 = unknown.
  std::uint64_t limit_bytes = 0;
  // The least that the machine or one of the groups has left. Files that the system keeps in memory
  // and would drop count as free.
  std::optional<std::uint64_t> free_bytes;
};

class NodeMemory {
 public:
  // Finds the control groups of this process: its own and those around it, of both versions.
  explicit NodeMemory(ReadText read = read_system_text);

  NodeReading look() const;
  // Returns the bytes of this process that are in memory now; 0 = unknown.
  std::uint64_t resident_bytes() const;

 private:
  enum class Version { v1, v2 };
  struct Group {
    std::string folder;
    Version version = Version::v2;
  };
  void find_groups();
  void add_groups(const std::string& mount, const std::string& path, Version version);
  NodeReading look_at(const Group& group) const;

  ReadText read_;
  std::vector<Group> groups_;
};

}  // namespace cox::detail
