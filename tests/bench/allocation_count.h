// Counts what this thread allocates through operator new while a count is open. Replaces operator
// new in the program and its libraries. Does not count malloc() of C code, such as MPI's own
// memory.
#pragma once

namespace cox::bench {

class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount();
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;
  long so_far() const;

 private:
  long before_;
};

}  // namespace cox::bench
