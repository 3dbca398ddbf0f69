// Values that live until the process is gone. Threads of ours, and handlers of exit(), may still
// run while objects with static storage are destroyed, so a table that is made on its first use is
// kept by never_destroyed(). Any thread.
#pragma once

#include <utility>

namespace cox {

// Returns a reference to the value, which nothing ever destroys. Call it once a value, to
// initialise a static reference.
template <class T>
const T& never_destroyed(T value) {
  return *new T(std::move(value));
}

}  // namespace cox
