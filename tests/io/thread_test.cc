#include "coordinator/io/thread.h"

#include <signal.h>
#include <sys/resource.h>

#include <new>
#include <stdexcept>
#include <string>

#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Returns the status that a thread with this work reports at its end.
Status ends_with(const std::function<void()>& work) {
  Status told;
  auto thread = io::start_thread("pump", work, [&](const Status& status) { told = status; });
  REQUIRE(thread.ok());
  thread->join();
  return told;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("io.thread") {
  TEST_CASE("an exception ends the thread with a reason, and not the process") {
    CHECK(ends_with([] {}).ok());
    const Status wrong = ends_with([] { throw std::runtime_error("no such row"); });
    CHECK(wrong == internal_error("pump ends: no such row"));
    const Status memory = ends_with([] { throw std::bad_alloc(); });
    CHECK(memory.code() == StatusCode::resource_exhausted);
    CHECK(contains(memory.message(), "pump ends: Cannot allocate memory"));
    CHECK(ends_with([] { throw 7; }).ok());  // nothing to report
    auto thread = io::start_thread(
        "pump", [] { throw std::bad_alloc(); }, [](const Status&) { throw std::bad_alloc(); });
    REQUIRE(thread.ok());
    thread->join();
  }

  TEST_CASE("a thread gets no signals, and leaves those of its starter as they were") {
    sigset_t before;
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    bool blocks = false;
    CHECK(ends_with([&] {
            sigset_t mask;
            pthread_sigmask(SIG_SETMASK, nullptr, &mask);
            blocks = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGXFSZ) == 1;
          }).ok());
    CHECK(blocks);
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    CHECK(sigismember(&before, SIGTERM) == sigismember(&after, SIGTERM));
  }

  TEST_CASE("a thread that cannot be started says so, with the limit") {
    const test::NoThreads none;
    const auto refused = [] { return io::start_thread("pump", [] {}).status(); };
    CHECK(refused().code() == StatusCode::resource_exhausted);
    CHECK(contains(refused().message(), "pump: its thread could not be started: no room for its"));
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit limited{rlim_t{1} << 47, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_AS, &limited) == 0);
    const std::string message = refused().message();
    setrlimit(RLIMIT_AS, &before);
    CHECK(contains(message, "its address space may have 128 TiB (ulimit -v)"));
  }
}
