// Values that live until the end of the process. Threads of ours, and handlers of exit(), may still
// run while objects with static storage are destroyed. never_destroyed() therefore keeps tables
// that are made on first use. Any thread.
#pragma once

#include <utility>

namespace cox {

// Returns a reference to the value, which nothing ever destroys. Call once a value, to initialise a
// static reference.
template <class T>
const T& never_destroyed(T value) {
  return *new T(std::move(value));
}

}  // namespace cox
