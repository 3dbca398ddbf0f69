// Starts the threads of the coordinator and the SDK. They get no signals, which are for threads of
// the program. An exception ends one of them, never the program.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "coordinator/core/status.h"

namespace cox::io {

// Starts a thread that does `work`. If `work` throws, the thread calls `on_failure` with the reason
// and ends. Returns resource_exhausted, with the limit, where no thread can be started. `purpose`
// names the thread in messages.
Result<std::thread> start_thread(std::string_view purpose, std::function<void()> work,
                                 std::function<void(const Status&)> on_failure = {});

// Returns what an exception means for a thread: resource_exhausted for want of memory, with the
// limit, else internal.
Status failure_from(const std::exception& error);

}  // namespace cox::io
