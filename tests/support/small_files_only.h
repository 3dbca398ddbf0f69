// While a SmallFilesOnly exists, no file of this process can grow beyond `bytes` bytes. A write
// then fails (EFBIG) at the same call at which it fails on a full disk.
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
