// Limits the growth of this process's files during its lifetime. Writes fail at the same call as on
// a full disk.
#pragma once

#include <signal.h>
#include <sys/resource.h>

class SmallFilesOnly {
 public:
  explicit SmallFilesOnly(rlim_t bytes) : old_handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFilesOnly() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }
  SmallFilesOnly(const SmallFilesOnly&) = delete;
  SmallFilesOnly& operator=(const SmallFilesOnly&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_{};
};
