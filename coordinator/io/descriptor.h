// Descriptor owns a file, socket or pipe of the system by its number, and closes it at its end. One
// thread per object.
#pragma once

#include <unistd.h>

#include <utility>

namespace cox::io {

class Descriptor {
 public:
  Descriptor() = default;  // none
  // Takes the number over; a negative one is none.
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
  // Returns the number, which is the caller's to close from here on.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace cox::io
