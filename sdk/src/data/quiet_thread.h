// Threads of ours in a program of the user's: signals are for the program's own threads, so these
// start with all of them blocked.
#pragma once

#include <signal.h>

#include <functional>
#include <thread>

namespace cox::detail {

inline std::thread quiet_thread(std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(work));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace cox::detail
