// FaultNames tells a person which parameter a program wrote to past the operator stream. The ranks
// of a node hold parameters once, so such a write (by data_ptr(), on another thread, in a hook of
// backward) is a fault of memory. A handler of SIGSEGV prints one line where the address lies in
// memory that was told here, and then gives the signal to whoever handled it before, or lets it end
// the process. Other faults it only passes on. The first fork() of a process with such memory is
// told, because the child sees what the ranks write later. Process-wide, because signals are; any
// thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cox::detail {

class FaultHandler;

// The addresses of one parameter's values, as programs see them.
struct NamedMemory {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::string name;
};

// Names faults in this memory while it exists. At most a few exist at a time.
class FaultNames {
 public:
  explicit FaultNames(std::vector<NamedMemory> memory);
  ~FaultNames();
  FaultNames(const FaultNames&) = delete;
  FaultNames& operator=(const FaultNames&) = delete;

 private:
  friend class FaultHandler;
  struct Table;
  Table* const table_;
};

}  // namespace cox::detail
