#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "sdk/src/session/termination.h"

#include <doctest/doctest.h>

namespace {

using cox::detail::ExitWatch;

// Returns the exit code of a process that does `work` and would otherwise exit with 9.
int code_after(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(9);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a watch chooses the code of an exit while it lives") {
  CHECK(code_after([] {
          const ExitWatch watch([](int code) { return code + 4; });
          std::exit(3);
        }) == 7);
}

TEST_CASE("after a watch has ended an exit is the program's own affair") {
  CHECK(code_after([] {
          std::optional<ExitWatch> watch([](int) { return 4; });
          watch.reset();
          std::exit(0);
        }) == 0);
}

TEST_CASE("a rank that has failed does not exit with code 0, also after its watch has ended") {
  for (const int code : {0, 3}) {
    CHECK(code_after([code] {
            std::optional<ExitWatch> watch([](int given) { return given; });
            watch->fail();
            watch.reset();
            std::exit(code);
          }) == (code == 0 ? 1 : 3));
  }
}

TEST_CASE("an exit of a forked child is not the session's") {
  CHECK(code_after([] {
          const ExitWatch watch([](int) { return 4; });
          const int code = code_after([] { std::exit(0); });
          ::_exit(code);
        }) == 0);
}

}  // namespace
