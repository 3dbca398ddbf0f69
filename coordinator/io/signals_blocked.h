// SignalsBlocked blocks all signals of the calling thread while it lives. A thread that is started
// meanwhile keeps them blocked: signals are for the program's own threads, not for ours. It puts
// back what was before, also where the thread could not be started.
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
