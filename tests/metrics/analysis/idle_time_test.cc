// Causes of idle time: on hand-made samples, and on seeded jobs with planted causes.
#include "metrics/analysis/timeline/idle_time.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

// ---- By hand: a sample each tenth of a second, from 1000 s on.

struct Row {
  Activity activity;
  std::int64_t step;
  double cpu_seconds;  // in the stretch that ends with this sample
};

HostTrack track_of(std::int32_t rank, const std::vector<Row>& rows, double started = 1000) {
  HostTrack out;
  out.rank = rank;
  out.starts = {{0, started, 0}};
  double cpu = 0;
  for (const Row& row : rows) {
    const double seconds = 1000 + 0.1 * static_cast<double>(out.samples.size());
    // The activity at a sample began at the sample before.
    out.samples.push_back({seconds, cpu += row.cpu_seconds, seconds - 0.1, row.step, row.activity});
  }
  return out;
}

double seconds_of(const RankIdle& rank, IdleCause cause) {
  return rank.seconds[static_cast<std::size_t>(cause)];
}

constexpr Row kBegun = {Activity::forward, 1, 0.1};
constexpr Row kWaits = {Activity::waiting, 1, 0.1};  // polling keeps the core busy

IdleTime idle_of(const std::vector<std::vector<Row>>& ranks) {
  std::vector<HostTrack> tracks;
  for (const auto& rows : ranks)
    tracks.push_back(track_of(static_cast<std::int32_t>(tracks.size()), rows));
  return idle_time_of(tracks);
}

// ---- Seeded jobs: the ranks' activities over time, sampled as the recorder does.

struct Plan {
  int ranks = 4;
  int steps = 60;
  double data = 0.01;      // seconds, without computing
  double work = 0.3;       // on a rank that is not slow
  double slow_work = 0.3;  // on rank 2
  double transfer = 0.01;
  double save = 0;        // on rank 0, before every fifth step
  double evaluation = 0;  // on all ranks, likewise
  double epoch = 0;       // likewise
  double outside = 0;     // before every step
};

class MadeJob {
 public:
  MadeJob(const Plan& plan, unsigned seed) : plan_(plan), random_(seed), ranks_(ranks_of(plan)) {
    for (int step = 1; step <= plan.steps; ++step) add_step(step);
  }

  // Ends the last stretch of the job with a sample, too.
  std::vector<HostTrack> tracks(double period) {
    std::vector<HostTrack> out;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      HostTrack track;
      track.rank = static_cast<std::int32_t>(r);
      track.starts = {{0, kBegin, 0}};
      double cpu = 0;
      std::size_t at = 0;
      double before = kBegin;
      std::uniform_real_distribution<double> late(0, 0.02 * period);
      for (double moment = kBegin; moment < ranks_[r].now; moment += period) {
        const double now = moment + late(random_);
        cpu += busy_between(ranks_[r], before, now);
        before = now;
        while (at + 1 < ranks_[r].parts.size() && ranks_[r].parts[at].end <= now) ++at;
        const Part& part = ranks_[r].parts[at];
        track.samples.push_back({now, cpu, part.begin, part.step, part.activity});
      }
      out.push_back(track);
    }
    return out;
  }

  double waited_for_slow = 0;  // by rank 0
  double saved = 0;
  double loaded = 0;  // by each rank
  double transferred = 0;
  double evaluated = 0;
  double between_epochs = 0;
  double elsewhere = 0;

 private:
  static constexpr double kBegin = 5000;
  struct Part {
    double begin;
    double end;
    Activity activity;
    std::int64_t step;
  };
  struct Rank {
    double now = kBegin;
    std::vector<Part> parts{};
  };

  static std::vector<Rank> ranks_of(const Plan& plan) {
    return std::vector<Rank>(static_cast<std::size_t>(plan.ranks));
  }

  static double busy_between(const Rank& rank, double begin, double end) {
    double sum = 0;
    for (const Part& part : rank.parts) {
      const bool is_busy = part.activity == Activity::forward || part.activity == Activity::waiting;
      if (is_busy) sum += std::max(0.0, std::min(end, part.end) - std::max(begin, part.begin));
    }
    return sum;
  }

  void add(Rank& rank, double seconds, Activity activity, std::int64_t step) {
    if (seconds <= 0) return;
    rank.parts.push_back({rank.now, rank.now + seconds, activity, step});
    rank.now += seconds;
  }

  double vary(double seconds) {
    return seconds * std::uniform_real_distribution<double>(0.9, 1.1)(random_);
  }

  void add_step(std::int64_t step) {
    const bool is_fifth = step % 5 == 0;
    const double evaluation = is_fifth ? vary(plan_.evaluation) : 0;
    const double epoch = is_fifth ? vary(plan_.epoch) : 0;
    const double outside = step > 1 ? vary(plan_.outside) : 0;
    const double data = vary(plan_.data);
    const double work = vary(plan_.work);
    const double slow = vary(plan_.slow_work);
    const double save = is_fifth ? vary(plan_.save) : 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      add(ranks_[r], evaluation, Activity::evaluating, step - 1);
      add(ranks_[r], epoch, Activity::epoch, step - 1);
      add(ranks_[r], outside, Activity::outside, step - 1);
      if (r == 0) add(ranks_[r], save, Activity::saving, step - 1);
      add(ranks_[r], data, Activity::data, step);
      add(ranks_[r], r == 2 ? slow : work, Activity::forward, step);
    }
    const double last = std::ranges::max(ranks_, {}, &Rank::now).now;
    if (plan_.slow_work > plan_.work) waited_for_slow += last - ranks_[0].now;
    const double transfer = vary(plan_.transfer);
    for (Rank& rank : ranks_) {
      add(rank, last - rank.now, Activity::waiting, step);
      add(rank, transfer, Activity::waiting, step);
    }
    saved += save;
    loaded += data;
    transferred += transfer;
    evaluated += evaluation;
    between_epochs += epoch;
    elsewhere += outside;
  }

  Plan plan_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
};

// A planted cause, and its seconds on each rank.
struct Planted {
  const char* name;
  Plan plan;
  IdleCause cause;
  double MadeJob::*seconds;
};

TEST_SUITE("analysis.idle_time") {
  TEST_CASE("what a rank does while it uses no core is its cause, and computing is none") {
    struct Case {
      Activity activity;
      double cpu_seconds;
      IdleCause cause;
      double seconds;
    };
    const std::vector<Case> rows = {
        {Activity::data, 0.001, IdleCause::data, 0.1},
        {Activity::data, 0.05, IdleCause::data, 0.05},
        {Activity::saving, 0, IdleCause::save, 0.1},
        {Activity::saving, 0.09, IdleCause::save, 0.01},
        {Activity::evaluating, 0, IdleCause::evaluation, 0.1},
        {Activity::epoch, 0, IdleCause::epoch_boundary, 0.1},
        {Activity::outside, 0, IdleCause::unexplained, 0.1},
        {Activity::other, 0, IdleCause::unexplained, 0.1},
        {Activity::unknown, 0, IdleCause::unexplained, 0.1},
        {Activity::waiting, 0.1, IdleCause::averaging, 0.1},  // alone
        {Activity::forward, 0, IdleCause::unexplained, 0},    // a device computes
        {Activity::backward, 0, IdleCause::unexplained, 0},
        {Activity::compute, 0, IdleCause::unexplained, 0},
        {Activity::optimizer, 0, IdleCause::unexplained, 0}};
    for (const Case& row : rows) {
      CAPTURE(to_string(row.activity));
      const IdleTime found = idle_of({{kBegun, {row.activity, 1, row.cpu_seconds}}});
      CHECK(seconds_of(found.ranks[0], row.cause) == doctest::Approx(row.seconds));
      double sum = 0;
      for (const double each : found.seconds) sum += each;
      CHECK(sum == doctest::Approx(row.seconds));
      CHECK(found.watched_seconds == doctest::Approx(0.1));
    }
  }

  TEST_CASE("a rank waits for those that are not there yet, or in what they all do") {
    struct Case {
      const char* name;
      std::vector<Row> others;  // at the moment when rank 0 waits
      IdleCause cause;
      std::vector<std::int32_t> ranks;
    };
    const std::vector<Case> rows = {
        {"all wait", {kWaits, kWaits}, IdleCause::averaging, {}},
        {"one computes", {kWaits, kBegun}, IdleCause::waiting_for_rank, {2}},
        {"two compute", {kBegun, kBegun}, IdleCause::waiting_for_rank, {1, 2}},
        {"one is steps behind",
         {{Activity::optimizer, 0, 0.1}, kWaits},
         IdleCause::waiting_for_rank,
         {1}},
        {"one is through", {{Activity::optimizer, 1, 0.1}, kWaits}, IdleCause::averaging, {}},
        {"one is a step ahead", {{Activity::forward, 2, 0.1}, kWaits}, IdleCause::averaging, {}},
        {"one saves", {{Activity::saving, 0, 0}, kWaits}, IdleCause::save, {}},
        {"both evaluate",
         {{Activity::evaluating, 0, 0.1}, {Activity::evaluating, 0, 0.1}},
         IdleCause::evaluation,
         {}},
        {"one is between epochs",
         {{Activity::epoch, 0, 0.1}, kWaits},
         IdleCause::epoch_boundary,
         {}},
        {"one saves, one computes",
         {{Activity::saving, 0, 0}, kBegun},
         IdleCause::waiting_for_rank,
         {1, 2}},
        {"one loads data", {{Activity::data, 1, 0}, kWaits}, IdleCause::waiting_for_rank, {1}},
        {"one has left", {{Activity::finished, 0, 0}, kWaits}, IdleCause::averaging, {}},
        {"one says nothing", {{Activity::unknown, 0, 0}, kWaits}, IdleCause::averaging, {}}};
    for (const Case& row : rows) {
      CAPTURE(row.name);
      const IdleTime found =
          idle_of({{kBegun, kWaits}, {kBegun, row.others[0]}, {kBegun, row.others[1]}});
      const RankIdle& rank = found.ranks[0];
      CHECK(seconds_of(rank, row.cause) == doctest::Approx(0.1));
      REQUIRE(rank.spans.size() == 1);
      CHECK(rank.spans[0].waits_for == (row.ranks.size() == 1 ? row.ranks[0] : -1));
      std::vector<std::int32_t> waited;
      for (const auto& [whom, seconds] : rank.waited_for) {
        waited.push_back(whom);
        CHECK(seconds == doctest::Approx(0.1 / static_cast<double>(row.ranks.size())));
      }
      CHECK(waited == row.ranks);
    }
  }

  TEST_CASE("until the first step all idle time is the start's, each time a process starts") {
    HostTrack track = track_of(0,
                               {{Activity::outside, 0, 0.5},  // since the process began
                                {Activity::waiting, 0, 0.1},
                                {Activity::outside, 0, 0},
                                {Activity::forward, 0, 0.1},
                                {Activity::outside, 0, 0}},
                               998);
    track.starts.push_back({5, 1000.6, 0});
    track.samples.push_back({1001.6, 0.25, 1001.6, 0, Activity::outside});
    track.samples.push_back({1001.7, 0.25, 1001.6, 0, Activity::outside});
    const IdleTime found = idle_time_of({track});
    const RankIdle& rank = found.ranks[0];
    CHECK(seconds_of(rank, IdleCause::startup) == doctest::Approx(1.5 + 0.2 + 0.75 + 0.1));
    CHECK(seconds_of(rank, IdleCause::unexplained) == doctest::Approx(0.1));
    CHECK(rank.watched_seconds == doctest::Approx(2.4 + 1.1));
  }

  TEST_CASE("neighbours of one cause are one span, and clocks that go back book nothing") {
    HostTrack track = track_of(
        0,
        {kBegun, {Activity::data, 1, 0}, {Activity::data, 1, 0}, kBegun, {Activity::data, 2, 0}});
    CHECK(idle_time_of({track}).ranks[0].spans.size() == 2);
    CHECK(idle_time_of({track}).ranks[0].spans[0].end_seconds == doctest::Approx(1000.2));
    track.samples[4].seconds = 999;
    const IdleTime found = idle_time_of({track});
    CHECK(seconds_of(found.ranks[0], IdleCause::data) == doctest::Approx(0.2));
    CHECK(idle_time_of({}).ranks.empty());
    CHECK(idle_time_of({HostTrack{}}).ranks[0].watched_seconds == 0);
  }

  TEST_CASE("a rank whose samples are missing keeps nobody waiting that is known of") {
    HostTrack late = track_of(1, {kBegun, kBegun});
    for (TrackSample& sample : late.samples) sample.seconds += 3600;
    const IdleTime found = idle_time_of({track_of(0, {kBegun, kWaits}), late});
    CHECK(seconds_of(found.ranks[0], IdleCause::averaging) == doctest::Approx(0.1));
  }

  TEST_CASE("of seeded jobs each planted cause gets its seconds, and the others next to none") {
    const std::vector<Planted> rows = {
        {"slow data", {.data = 0.4}, IdleCause::data, &MadeJob::loaded},
        {"slow saves", {.save = 1.5}, IdleCause::save, &MadeJob::saved},
        {"a slow rank", {.slow_work = 0.8}, IdleCause::waiting_for_rank, &MadeJob::waited_for_slow},
        {"slow averages", {.transfer = 0.4}, IdleCause::averaging, &MadeJob::transferred},
        {"evaluations", {.evaluation = 2}, IdleCause::evaluation, &MadeJob::evaluated},
        {"long epochs' ends", {.epoch = 2}, IdleCause::epoch_boundary, &MadeJob::between_epochs},
        {"something else", {.outside = 0.4}, IdleCause::unexplained, &MadeJob::elsewhere}};
    for (unsigned seed = 1; seed <= 10; ++seed) {
      for (const Planted& row : rows) {
        CAPTURE(row.name);
        CAPTURE(seed);
        MadeJob job(row.plan, seed);
        const IdleTime found = idle_time_of(job.tracks(0.1));
        const double planted = job.*row.seconds;
        for (const RankIdle& rank : found.ranks) {
          if (row.cause == IdleCause::waiting_for_rank && rank.rank == 2) continue;
          double found_seconds = seconds_of(rank, row.cause);
          double rest = 0;
          for (const double each : rank.seconds) rest += each;
          // While rank 0 saves, the others still work; later they also wait for its work.
          if (row.cause == IdleCause::save && rank.rank > 0) {
            CHECK(found_seconds > planted / 2);
            found_seconds += seconds_of(rank, IdleCause::waiting_for_rank);
          }
          CHECK(found_seconds == doctest::Approx(planted).epsilon(0.12));
          rest -= found_seconds;
          // The usual rest: short loads, transfers, and waits for random variation.
          CHECK(rest < job.loaded + job.transferred + 0.05 * rank.watched_seconds);
        }
      }
    }
  }

  TEST_CASE("the rank that is waited for is named, beside slow data on all") {
    MadeJob job({.data = 0.3, .slow_work = 0.9}, 3);
    const IdleTime found = idle_time_of(job.tracks(0.1));
    CHECK(seconds_of(found.ranks[2], IdleCause::data) == doctest::Approx(job.loaded).epsilon(0.12));
    const std::vector<IdleWait> waits = found.longest_waits();
    REQUIRE(!waits.empty());
    CHECK(waits[0].rank == 2);
    CHECK(waits[0].seconds == doctest::Approx(0.75 * job.waited_for_slow).epsilon(0.15));
  }
}

}  // namespace
}  // namespace cox::diagnosis
