// What the fake NCCL needs of whoever owns the streams: a collective is work that stays pending in
// its stream, with all that comes behind it, until a worker has completed it. The functions are
// those of the stand-in runtime (cox_standin_begin and its like), which the fake finds by name
// where that runtime is loaded; the host lane of the tests has its own. Any thread calls them.
#pragma once

#include <cstddef>

namespace cox::test {

struct StreamSeam {
  // Puts pending work at the end of the stream and returns it.
  void* (*begin)(void* stream);
  // Tells, right after begin(), what the work reads or (writes != 0) writes.
  void (*note)(const void* address, std::size_t bytes, int writes, void* stream, const char* what);
  // Sleeps until all earlier work of the stream is done. Returns 0 where the work was finished
  // meanwhile.
  int (*wait_turn)(void* work);
  // Ends the work and frees it: what lies behind it goes on.
  void (*finish)(void* work);
  // Returns where the host finds the bytes of an address.
  void* (*shadow)(const void* address);
};

}  // namespace cox::test

// Exported by the fake library: its streams are those of `seam` from now on. `seam` must live as
// long as the process.
extern "C" void cox_fake_nccl_use_streams(const cox::test::StreamSeam* seam);
