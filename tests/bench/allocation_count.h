// Counts what this thread takes from the heap through operator new while a count is open. Linked
// into a program it replaces operator new there, for its libraries too; what C code takes with
// malloc (MPI's own memory) is not counted.
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
