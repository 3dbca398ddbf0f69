// Lowers the process's limit of open files during its lifetime.
#pragma once

#include <sys/resource.h>

namespace cox::test {

class FileLimit {
 public:
  explicit FileLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit fewer{files, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &fewer);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cox::test
