// SignalsBlocked blocks all signals of the calling thread during its lifetime. A thread started
// meanwhile keeps signals blocked: signals are for the program's own threads, not for Coxswain's.
// The destructor restores the earlier mask, also if no thread was started.
#pragma once

#include <signal.h>

namespace cox::io {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace cox::io
