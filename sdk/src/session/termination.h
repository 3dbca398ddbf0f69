// Termination: turns SIGTERM into a question the loop can ask, so that a job saves and leaves at
// the end of a step. The signal is blocked for the thread that constructs this and for threads it
// starts later, and read from a descriptor: no handler, no global state. When destroyed it takes
// what is pending, and restores the mask unless the job was asked to stop: a launcher signals rank
// after rank, and one that leaves already must not be killed by its own late signal.
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
  // Another rank was asked: a signal that is still to come here asks for nothing new.
  void requested_elsewhere() { requested_ = true; }

 private:
  bool take_pending();

  int descriptor_ = -1;
  sigset_t before_{};
  bool requested_ = false;
};

}  // namespace cox::detail
