// Sleeping on a word of memory until another thread or process says that it changed (Linux futex,
// the variant that works across processes). Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace cox::transport {

// Sleeps while `word` holds `expected`, until a wake, the timeout or a signal; may return early.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                std::chrono::nanoseconds timeout);
// Wakes all who sleep on `word`. Costs a system call.
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace cox::transport
