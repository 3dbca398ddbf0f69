#include "sdk/src/checkpoint/save_progress.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using Stage = SaveProgress::Stage;
using Next = SaveProgress::Next;
using Outcome = SaveProgress::Outcome;

// The ranks of a saving job. Each step merges their votes and passes the result to all of them.
struct Job {
  explicit Job(std::size_t count) {
    for (std::size_t r = 0; r < count; ++r)
      ranks.emplace_back(RankId(static_cast<std::int32_t>(r)));
  }

  StepBallot step() {
    StepBallot merged;
    ranks[0].vote(merged);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      StepBallot mine;
      ranks[r].vote(mine);
      merge_into(merged, mine);
    }
    heard.clear();
    for (SaveProgress& rank : ranks) heard.push_back(rank.hear(merged));
    return merged;
  }

  std::vector<SaveProgress> ranks;
  std::vector<Next> heard;  // in the newest step
};

}  // namespace

TEST_SUITE("the ballots of a save") {
  TEST_CASE("a save is published when the last part is written, and over when it is published") {
    Job job(3);
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::nothing)));
    for (SaveProgress& rank : job.ranks) rank.begin();
    job.ranks[0].part_ended(Outcome::done);
    job.ranks[2].part_ended(Outcome::done);
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::nothing)));
    job.ranks[1].part_ended(Outcome::done);
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::publish)));
    CHECK((job.ranks[0].stage() == Stage::publishing));
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::nothing)));
    job.ranks[0].publish_ended(Outcome::done);
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::end)));
    CHECK_FALSE(job.ranks[1].is_running());
  }

  TEST_CASE("a part that fails is named, and the save given up once no rank writes") {
    Job job(3);
    for (SaveProgress& rank : job.ranks) rank.begin();
    job.ranks[1].part_ended(Outcome::failed);
    job.ranks[0].part_ended(Outcome::done);
    CHECK(job.step().save_failed_max == 2);
    CHECK((job.heard == std::vector<Next>(3, Next::nothing)));  // rank 2 has files open
    job.ranks[2].part_ended(Outcome::done);
    job.step();
    CHECK((job.heard == std::vector<Next>(3, Next::give_up)));
    for (SaveProgress& rank : job.ranks) rank.begin();
    CHECK(job.step().save_failed_max == 0);
  }

  TEST_CASE("a save that cannot be put in place, or was given up by a rollback, is given up") {
    Job job(2);
    for (SaveProgress& rank : job.ranks) rank.begin();
    for (SaveProgress& rank : job.ranks) rank.part_ended(Outcome::done);
    job.step();
    job.ranks[0].publish_ended(Outcome::failed);
    job.step();
    CHECK((job.heard == std::vector<Next>(2, Next::give_up)));
    for (SaveProgress& rank : job.ranks) rank.begin();
    for (SaveProgress& rank : job.ranks) rank.part_ended(Outcome::done);
    for (SaveProgress& rank : job.ranks) rank.cancel();
    job.step();
    CHECK((job.heard == std::vector<Next>(2, Next::give_up)));
  }

  TEST_CASE("in 500 random schedules all ranks learn the same in the same step") {
    testing::Random random(43);
    for (int trial = 0; trial < 500; ++trial) {
      Job job(1 + random.bits() % 8);
      std::vector<bool> failed(job.ranks.size());
      for (SaveProgress& rank : job.ranks) rank.begin();
      Next outcome = Next::nothing;
      for (int step = 0; step < 1000 && outcome != Next::end && outcome != Next::give_up; ++step) {
        for (std::size_t r = 0; r < job.ranks.size(); ++r) {
          if (random.bits() % 3 != 0) continue;
          const Outcome ended = random.bits() % 9 == 0 ? Outcome::failed : Outcome::done;
          if (job.ranks[r].stage() == Stage::writing) {
            job.ranks[r].part_ended(ended);
          } else if (job.ranks[r].stage() == Stage::publishing) {
            job.ranks[r].publish_ended(ended);
          } else {
            continue;
          }
          failed[r] = failed[r] || ended == Outcome::failed;
        }
        job.step();
        outcome = job.heard.front();
        REQUIRE((job.heard == std::vector<Next>(job.ranks.size(), outcome)));
      }
      const bool any_failed = std::ranges::find(failed, true) != failed.end();
      REQUIRE((outcome == (any_failed ? Next::give_up : Next::end)));
    }
  }
}
