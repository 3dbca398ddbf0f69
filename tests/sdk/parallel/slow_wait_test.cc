#include <string>
#include <vector>

#include "sdk/src/parallel/agreement.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::detail::SlowWait;

TEST_SUITE("slow wait") {
  TEST_CASE("a long wait is told once, with the call that waits") {
    std::vector<std::string> lines;
    const Log log(LogLevel::warning, RankId(2),
                  [&](std::string_view line) { lines.emplace_back(line); });
    const SlowWait::Clock::time_point begin{};
    SlowWait wait(log, "Reducer::average", begin);
    wait.look(begin + SlowWait::kPatience - std::chrono::milliseconds(1));
    CHECK(lines.empty());
    wait.look(begin + SlowWait::kPatience);
    wait.look(begin + 2 * SlowWait::kPatience);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("Reducer::average has waited 30 s") != std::string::npos);
  }
}
