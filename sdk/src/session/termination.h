// Termination turns the first signal to stop into a flag that the loop polls. The job then saves
// and leaves at the end of a step. ExitWatch ends a session when its process calls exit(). Owned by
// the membership; training thread only. Signal dispositions belong to the process, so only one
// Termination acts at a time. The handler's state is static in the source.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace cox::detail {

// Termination handles SIGTERM and SIGINT. SIGXCPU (the limit on CPU seconds, which repeats every
// second) and SIGUSR1 (a batch system's warning) are handled only if they would end the process,
// because other runtimes use them.
//
// - Handlers are installed when the loop polls for the first time. A session whose loop reduces
//   polls at its start. A program that hangs before the first poll, or never polls, ends as any
//   other.
// - The second signal has its former effect, which ends most programs. So does a deadline if the
//   loop has not polled again until then: the loop may wait for a rank that does not answer.
// - A signal that the program ignores stays ignored.
class Termination {
 public:
  static constexpr std::chrono::seconds kPatience{60};

  explicit Termination(std::chrono::seconds patience = kPatience) : patience_(patience) {}
  // Restores the signals that are still handled, unless the job was asked to stop. A launcher
  // signals rank after rank, and the late signal must not kill a rank that is already leaving.
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  // Returns true from the first signal on. The first call installs the handlers; later calls take
  // nanoseconds.
  bool requested();
  // Records that another rank was asked, so that a later signal to this rank changes nothing.
  void requested_elsewhere();

 private:
  void take_over();

  const std::chrono::seconds patience_;
  bool is_taken_over_ = false;
  bool requested_ = false;
};

// ExitWatch tells a session that its process is about to leave by exit(), which destroys no local
// variable. Without ExitWatch the launcher would kill the other ranks, and the job would report
// success. Owned by a session, from its start to its end. The C library cannot remove a handler, so
// a small object for each session stays until the process ends. Any thread. `leave` runs on the
// thread that calls exit(), before objects older than the session are destroyed.
class ExitWatch {
 public:
  // Receives the code of exit() and returns the code to leave with. Must not throw.
  using Leave = std::function<int(int code)>;

  // Registers `leave`. Watches nothing if the C library accepts no further handler.
  explicit ExitWatch(Leave leave);
  // Stops watching: exit() is the program's own affair again.
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  // Turns an exit with code 0 into code 1 from now on, also after the destructor. This rank has
  // failed, and the program must not report success to its launcher.
  void fail();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace cox::detail
