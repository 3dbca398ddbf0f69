// Our own rules, on runs with planted causes and on the published cases.
#include "coordinator/diagnosis/own_rules.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/published_rules.h"
#include "coordinator/io/run_reader.h"
#include "tests/diagnosis/planted_run.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using diagnosis::Finding;

std::vector<Finding> own(const diagnosis::RunRecord& run) {
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  return diagnosis::own_findings({&view, &budget, std::nullopt});
}

std::vector<Finding> published(const diagnosis::RunRecord& run) {
  std::vector<Finding> found = diagnosis::published_findings(figures_of(run, {}));
  // It repeats the budget's largest line, which other codes have named.
  std::erase_if(found, [](const Finding& f) { return f.code == "EFFICIENCY.RECOVERABLE"; });
  return found;
}

// A finding is right when its code was planted, and for a slow rank also the ranks.
struct Score {
  std::size_t right = 0;
  std::size_t wrong = 0;
  std::size_t missed = 0;

  double precision() const {
    return static_cast<double>(right) / static_cast<double>(right + wrong);
  }
  double recall() const { return static_cast<double>(right) / static_cast<double>(right + missed); }

  void add(const test::PlantedRun& planted, const std::vector<Finding>& found) {
    std::set<std::string> named;
    for (const Finding& f : found) {
      bool is_right = planted.codes.contains(f.code);
      if (f.code == "DIST.STRAGGLER")
        is_right =
            is_right && std::set<std::int32_t>(f.ranks.begin(), f.ranks.end()) == planted.slow;
      const bool is_new = is_right && named.insert(f.code).second;
      right += is_new ? 1 : 0;
      wrong += is_right ? 0 : 1;
    }
    missed += planted.codes.size() - named.size();
  }
};

// The published finding names its rank in the title only, behind one word.
std::vector<Finding> with_ranks(std::vector<Finding> found) {
  for (Finding& f : found) {
    if (f.code == "DIST.STRAGGLER") f.ranks = {std::stoi(f.title.substr(5))};
  }
  return found;
}

std::string codes_of(const std::vector<Finding>& found) {
  std::string out;
  for (const Finding& f : found) out += f.code + " ";
  return out;
}

TEST_SUITE("diagnosis.own_rules") {
  TEST_CASE("planted causes are found, and nothing else, better than by the published rules") {
    Score ours;
    Score theirs;
    for (const test::PlantedRun& planted : test::planted_runs(7)) {
      const std::vector<Finding> found = own(planted.run);
      const Score before = ours;
      ours.add(planted, found);
      theirs.add(planted, with_ranks(published(planted.run)));
      INFO(planted.kind << ": found " << codes_of(found));
      CHECK_MESSAGE(ours.wrong + ours.missed == before.wrong + before.missed, "a miss");
    }
    MESSAGE("ours: precision " << ours.precision() << ", recall " << ours.recall()
                               << "; published: " << theirs.precision() << ", " << theirs.recall());
    CHECK(ours.precision() >= 0.98);
    CHECK(ours.recall() >= 0.98);
    CHECK(ours.precision() > theirs.precision());
    CHECK(ours.recall() > theirs.recall());
  }
}

}  // namespace
}  // namespace cox
