// ended_by() returns how a child process ends, for tests of signals.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

// Returns the signal that ends a child which calls `work`; 0 if the child ends by itself.
template <class Work>
int ended_by(Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int signal : {SIGTERM, SIGINT, SIGXCPU, SIGUSR1, SIGXFSZ}) ::signal(signal, SIG_DFL);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
