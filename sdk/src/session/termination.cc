#include "sdk/src/session/termination.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace cox::detail {

Termination::Termination() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &wanted, &before_);
  descriptor_ = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
}

Termination::~Termination() {
  if (descriptor_ >= 0) close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Termination::requested() {
  signalfd_siginfo info;
  if (!requested_ && descriptor_ >= 0) {
    requested_ = read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info));
  }
  return requested_;
}

}  // namespace cox::detail
