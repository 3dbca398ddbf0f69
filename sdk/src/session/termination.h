// Termination: turns SIGTERM into a question the loop can ask, so that a job saves and leaves at
// the end of a step. The signal is blocked for the thread that constructs this and for threads it
// starts later, and read from a descriptor: no handler, no global state. Restores the mask when
// destroyed.
#pragma once

#include <csignal>

namespace cox::detail {

class Termination {
 public:
  Termination();
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // True from the first SIGTERM on. One non-blocking read; microseconds.
  bool requested();

 private:
  int descriptor_ = -1;
  sigset_t before_{};
  bool requested_ = false;
};

}  // namespace cox::detail
