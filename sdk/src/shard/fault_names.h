// FaultNames names the parameter when a program crashes by its own write to shared parameters: by
// data_ptr(), on another thread, or in a hook of backward. Such a write is a segmentation fault,
// because a program sees the node's memory read-only.
//
// A handler of SIGSEGV writes a line to stderr for an address in registered memory. The handler
// then passes on the signal to the handler installed before, or ends the process. Other faults are
// only passed on. The first fork() while memory is registered writes a warning, because the child
// process sees later writes of ranks. Process-wide, as signals are. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cox::detail {

class FaultHandler;

// Addresses of one parameter's values, in the read-only mapping that programs see.
struct NamedMemory {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::string name;
};

// Registers memory for as long as the object exists. At most 64 objects can be registered at once;
// further ones do nothing.
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
