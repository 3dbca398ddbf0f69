// ExitWatch tells a session that its process is about to leave by exit(), which destroys no local
// variable: without it the ranks of such a process would be killed by the launcher, and the job
// would report success. The session owns one, from its start to its end.
//
// The C library can forget no handler, so a small object for each session stays until the process
// ends. Any thread; `leave` runs on the one that calls exit(), after all of main() and before
// objects that existed before the session are destroyed.
#pragma once

#include <functional>
#include <memory>

namespace cox::detail {

class ExitWatch {
 public:
  // Given the code of exit(), returns the one that the process is to leave with. Must not throw.
  using Leave = std::function<int(int code)>;

  // Registers `leave`. Where the C library takes no further handler nothing is watched.
  explicit ExitWatch(Leave leave);
  // From here on exit() is the program's own affair.
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  // From here on, and after the destructor, an exit with code 0 is one with code 1: this rank has
  // failed, and a program that ends regardless must not tell its launcher that all is well.
  void fail();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace cox::detail
