// Sleeps on a word of memory until another thread or process reports a change (Linux futex, the
// variant for several processes). Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cox::transport {

// Sleeps while `word` holds `expected`, until a wake, the timeout or a signal; may return early.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout);
// Wakes all sleepers of `word`. Costs a system call.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace cox::transport
