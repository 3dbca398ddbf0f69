// Starts the threads of the coordinator and the SDK. Such threads get no signals, which are for the
// program's threads. An exception ends the thread, never the program.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "coordinator/core/status.h"

namespace cox::io {

// Starts a thread that runs `work`. If `work` throws, the thread calls `on_failure` with the reason
// and ends. Returns resource_exhausted, with the limit, when no thread can be started. `purpose`
// names the thread in messages.
Result<std::thread> start_thread(std::string_view purpose, std::function<void()> work,
                                 std::function<void(const Status&)> on_failure = {});

// Converts an exception to a Status: resource_exhausted with the limit for missing memory, else
// internal.
Status failure_from(const std::exception& error);

}  // namespace cox::io
