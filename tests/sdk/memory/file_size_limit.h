// Limits the size of this process's files during its lifetime, which imitates a full disk.
#pragma once

#include <sys/resource.h>

#include <stdexcept>

#include "coordinator/io/file_size_signal.h"

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw std::runtime_error("getrlimit");
    const rlimit limit{bytes, before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  cox::io::FileSizeSignal signal_;
  rlimit before_{};
};
