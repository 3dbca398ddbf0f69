#include "coordinator/io/thread.h"

#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/signals_blocked.h"

namespace cox::io {
namespace {

struct Work {
  std::string purpose;
  std::function<void()> work;
  std::function<void(const Status&)> on_failure;

  void operator()() const noexcept {
    try {
      try {
        work();
      } catch (const std::exception& error) {
        if (on_failure) on_failure(failure_from(error).with_context(concat(purpose, " ends")));
      }
    } catch (...) {
      // Without memory for a message the thread ends silently.
    }
  }
};

}  // namespace

Result<std::thread> start_thread(std::string_view purpose, std::function<void()> work,
                                 std::function<void(const Status&)> on_failure) {
  const SignalsBlocked blocked;
  try {
    return std::thread(Work{std::string(purpose), std::move(work), std::move(on_failure)});
  } catch (const std::system_error&) {
    return resource_exhausted(purpose, ": its thread could not be started: ", thread_limit_text());
  }
}

Status failure_from(const std::exception& error) {
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  if (is_memory) return resource_exhausted(memory_limit_text());
  return internal_error(error.what(), limit_behind(error));
}

}  // namespace cox::io
