// Termination turns the first signal to stop into a question that the loop asks, so that a job
// saves and leaves at the end of a step. SIGTERM and SIGINT are such signals; so are SIGXCPU (the
// limit on CPU seconds, which repeats every second) and SIGUSR1 (a batch system's warning) where
// they would end the process, because other runtimes use them. The membership owns it. Training
// thread only.
//
//  - The signals are taken over when the loop asks for the first time (a session whose loop reduces
//    asks at its start): a program that is stuck before that, or never asks, ends as any other
//    does.
//  - The second signal does what it did before it was taken over, which ends most programs. So does
//    a deadline when the loop has not asked again until then: it may be stuck beside a rank that
//    does not answer.
//  - A signal that the program ignores stays ignored.
//
// Signal dispositions belong to the process, so one object at a time acts; the handler's few words
// of state are static in the source.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace cox::detail {

class Termination {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  explicit Termination(std::chrono::seconds patience = kPatience) : patience_(patience) {}
  // Gives back the signals that are still taken, unless the job was asked to stop: a launcher
  // signals rank after rank, and one that leaves already must not be killed by its own late signal.
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // Returns true from the first signal on. Takes the signals over when it is called for the first
  // time; afterwards it takes nanoseconds.
  bool requested();
  // Notes that another rank was asked, so that a signal that is still to come here asks for nothing
  // new.
  void requested_elsewhere();

 private:
  void take_over();

  const std::chrono::seconds patience_;
  bool is_taken_over_ = false;
  bool requested_ = false;
};

// ExitWatch tells a session that its process is about to leave by exit(), which destroys no local
// variable: without it the launcher would kill the other ranks, and the job would report success.
// The session owns one, from its start to its end. The C library can forget no handler, so a small
// object for each session stays until the process ends. Any thread; `leave` runs on the one that
// calls exit(), before objects that existed before the session are destroyed.
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
