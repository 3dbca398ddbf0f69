// FileSizeSignal keeps a limit on file sizes (ulimit -f) from ending the process: while it lives, a
// write beyond the limit fails with EFBIG, as it would on a full disk. It takes SIGXFSZ only where
// the signal would end the process, and restores the default at its end. Processes that the program
// starts have the default again.
#pragma once

#include <signal.h>

namespace cox::io {

class FileSizeSignal {
 public:
  FileSizeSignal() {
    if (handler_now() != SIG_DFL) return;
    struct sigaction action {};
    action.sa_handler = ignore;
    action.sa_flags = SA_RESTART;
    is_taken_ = ::sigaction(SIGXFSZ, &action, nullptr) == 0;
  }
  ~FileSizeSignal() {
    if (is_taken_ && handler_now() == ignore) ::signal(SIGXFSZ, SIG_DFL);
  }
  FileSizeSignal(const FileSizeSignal&) = delete;
  FileSizeSignal& operator=(const FileSizeSignal&) = delete;

 private:
  using Handler = void (*)(int);

  // A handler, unlike SIG_IGN, is not inherited through exec().
  static void ignore(int) {}
  static Handler handler_now() {
    struct sigaction found {};
    ::sigaction(SIGXFSZ, nullptr, &found);
    return found.sa_handler;  // the same place as sa_sigaction
  }

  bool is_taken_ = false;
};

}  // namespace cox::io
