// Prevents new threads while a NoThreads lives: the default stack size exceeds the address space.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace cox::test {

class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_getstacksize(&attributes, &before_);
    set(std::size_t{1} << 60);
    pthread_attr_destroy(&attributes);
  }
  ~NoThreads() { set(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void set(std::size_t bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }

  std::size_t before_ = 0;
};

}  // namespace cox::test
