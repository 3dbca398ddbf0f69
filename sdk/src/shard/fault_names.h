// FaultNames prints the parameter's name when a program writes to shared parameters past the
// operator stream (by data_ptr(), on another thread, in a hook of backward). Such a write is a
// segmentation fault, because programs see the node's memory read-only.
//
// A handler of SIGSEGV writes one line to stderr for an address in registered memory, then passes
// the signal to the handler installed before, or ends the process. Other faults are only passed on.
// The first fork() while memory is registered is warned of, because the child sees later writes of
// ranks. Process-wide, as signals are. Any thread.
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

// Registers memory for as long as the object exists. With 64 objects at once, further ones are
// ignored.
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
