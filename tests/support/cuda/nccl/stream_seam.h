// The stream functions of the fake NCCL. A collective stays pending in its stream, with all work
// behind it, until a worker completes it. The stand-in runtime exports such functions
// (cox_standin_begin, ...), and the fake finds them by name if the runtime is loaded. The host lane
// of the tests has its own. Any thread may call them.
#pragma once

#include <cstddef>

namespace cox::test {

struct StreamSeam {
  // Appends pending work to the stream and returns it.
  void* (*begin)(void* stream);
  // Declares, right after begin(), memory that the work reads or (writes != 0) writes.
  void (*note)(const void* address, std::size_t bytes, int writes, void* stream, const char* what);
  // Sleeps until all earlier work of the stream is done. Returns 0 if the work was finished
  // meanwhile.
  int (*wait_turn)(void* work);
  // Ends and frees the work; later work continues.
  void (*finish)(void* work);
  // Returns the address at which the host can access the bytes.
  void* (*shadow)(const void* address);
};

}  // namespace cox::test

// Exported by the fake library. Makes the fake use the streams of `seam` from now on. `seam` must
// live as long as the process.
extern "C" void cox_fake_nccl_use_streams(const cox::test::StreamSeam* seam);
