#include "sdk/src/session/exit_watch.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <utility>

namespace cox::detail {

struct ExitWatch::Shared {
  Leave leave;  // empty after the session's end
  std::atomic<bool> has_failed{false};
  const pid_t process = ::getpid();

  // A child that was forked shares this memory and none of the job's duties.
  int code_for(int code) {
    if (::getpid() != process) return code;
    if (const Leave once = std::exchange(leave, {})) code = once(code);
    return has_failed && code == 0 ? 1 : code;
  }

  static void run(int code, void* held) {
    const std::unique_ptr<std::shared_ptr<Shared>> shared(
        static_cast<std::shared_ptr<Shared>*>(held));
    const int chosen = (*shared)->code_for(code);
    if (chosen == code) return;
    std::fflush(nullptr);
    ::_exit(chosen);
  }
};

ExitWatch::ExitWatch(Leave leave) : shared_(std::make_shared<Shared>()) {
  shared_->leave = std::move(leave);
  auto held = std::make_unique<std::shared_ptr<Shared>>(shared_);
  if (::on_exit(&Shared::run, held.get()) == 0) static_cast<void>(held.release());
}

ExitWatch::~ExitWatch() {
  shared_->leave = {};
}

void ExitWatch::fail() {
  shared_->has_failed = true;
}

}  // namespace cox::detail
