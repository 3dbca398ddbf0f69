// FileSizeSignal keeps a limit on file sizes (ulimit -f) from ending the process. During its
// lifetime a write beyond the limit fails with EFBIG, as on a full disk. Handles SIGXFSZ only if
// the signal would otherwise end the process, and restores the default when destroyed. Child
// processes have the default again after exec().
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

  // Unlike SIG_IGN, a handler is not inherited through exec().
  static void ignore(int) {}
  static Handler handler_now() {
    struct sigaction found {};
    ::sigaction(SIGXFSZ, nullptr, &found);
    return found.sa_handler;  // shares its storage with sa_sigaction
  }

  bool is_taken_ = false;
};

}  // namespace cox::io
