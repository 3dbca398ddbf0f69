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
  while (take_pending()) requested_ = true;
  if (descriptor_ >= 0) close(descriptor_);
  if (!requested_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

bool Termination::requested() {
  if (!requested_) requested_ = take_pending();
  return requested_;
}

bool Termination::take_pending() {
  signalfd_siginfo info;
  return descriptor_ >= 0 && read(descriptor_, &info, sizeof(info)) == ssize_t{sizeof(info)};
}

}  // namespace cox::detail
