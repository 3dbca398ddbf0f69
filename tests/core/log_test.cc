#include "coordinator/core/log.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using cox::Log;
using cox::LogLevel;
using cox::RankId;

TEST_SUITE("log") {
  TEST_CASE("lines of level info are cut to the width, and no others") {
    std::vector<std::string> lines;
    const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
    const Log log(LogLevel::debug, RankId(0), keep, 24);
    const std::string text = "rank 1 is slow in forward";
    log.info("rank 1 is slow");
    log.info(text);
    log.debug(text);
    log.warning(text);
    CHECK(lines == std::vector<std::string>{
                       "coxswain: rank 1 is slow\n", "coxswain: rank 1 is ...\n",
                       "coxswain debug: " + text + "\n", "coxswain[0] warning: " + text + "\n"});
  }

  TEST_CASE("without a width all lines are whole") {
    std::string whole;
    const Log log(LogLevel::info, RankId(0), [&](std::string_view line) { whole = line; });
    log.info(std::string(5000, 'x'));
    CHECK(whole.size() == 5000 + std::string("coxswain: \n").size());
  }
}
