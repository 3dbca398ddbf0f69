// Descriptor owns the number of an open file, socket or pipe, and closes it when destroyed. One
// thread per object.
#pragma once

#include <unistd.h>

#include <utility>

namespace cox::io {

class Descriptor {
 public:
  Descriptor() = default;  // none
  // Takes ownership of the number. A negative number means none.
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (is_open()) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  // Releases ownership and returns the number. The caller must close it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace cox::io
