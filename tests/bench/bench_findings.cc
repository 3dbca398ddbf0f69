// The cost of analysing findings during a run: a full window of 2, 64 and 1,024 ranks. None, one,
// or every fourth rank is slow, always or in its own stretch. Prints the milliseconds of an
// analysis and the microseconds of keeping a round, medians of five, and the shortest period of
// analyses.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "metrics/findings_watch.h"

namespace {

using namespace cox;
using namespace cox::metrics;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class NoSink final : public StepSink {
 public:
  void record(const StepRecord&) override {}
};

// The slow ranks: each `every`th.
struct Slow {
  std::size_t every = 0;  // 0 = none
  enum class When { always, by_turns } when = When::always;

  bool has(std::size_t rank, std::uint64_t step) const {
    if (every == 0 || rank % every != every - 1) return false;
    return when == When::always || (step + 5 * rank / every) % 61 < 20 + rank % 17;
  }
};

StepSignals signals_of(std::size_t ranks, const Slow& slow_ranks, std::uint64_t step,
                       std::mt19937_64& random) {
  std::normal_distribution<float> noise(1.0F, 0.03F);
  StepSignals out;
  out.now = UnixTime{1.75e9 + static_cast<double>(step)};
  for (std::size_t r = 0; r < ranks; ++r) {
    const float slow = slow_ranks.has(r, step) ? 1.3F : 1.0F;
    RankSignal report;
    report.rank = RankId(static_cast<std::int32_t>(r));
    report.round = RoundId(step);
    report.step = StepId(step);
    report.rounds = 1;
    report.phase_seconds = {0.002F, 0.1F * slow * noise(random), 0.2F * slow * noise(random),
                            0,      0.03F * noise(random),       0.01F * noise(random),
                            0.001F};
    report.loss = 4 - 0.001 * static_cast<double>(step);
    report.weight = 1;
    report.gradient_norm = static_cast<double>(noise(random));
    report.memory_used_bytes = 1ull << 30;
    report.memory_peak_bytes = 3ull << 29;
    report.memory_limit_bytes = 1ull << 34;
    out.reports.push_back(report);
  }
  return out;
}

void measure(std::size_t ranks, const Slow& slow) {
  NoSink end;
  FindingsWatch watch(end, [](FindingsWatch::Found) {});
  JobFacts job;
  job.world_size = static_cast<std::int32_t>(ranks);
  const Decision decision;
  const Plan plan = initial_plan(job);
  std::mt19937_64 random(1);
  std::vector<double> keep;
  std::vector<double> look;
  std::uint64_t step = 0;
  const auto play = [&] {
    const StepSignals signals = signals_of(ranks, slow, step++, random);
    const auto began = Clock::now();
    watch.record({signals, decision, plan, job, {}});
    keep.push_back(1e6 * seconds_since(began));
  };
  while (step < window_rounds(ranks)) play();
  FindingsWatch::Found found;
  for (int i = 0; i < 5; ++i) {
    play();
    const auto began = Clock::now();
    found = watch.look();
    look.push_back(1e3 * seconds_since(began));
  }
  const double pause = std::max(FindingsWatch::kLookSeconds.count(),
                                FindingsWatch::kPauseFactor * median(look) / 1e3);
  fmt::print(
      "{{\"ranks\": {}, \"slow\": {}, \"by_turns\": {}, \"steps\": {}, \"look_ms\": {:.1f}, "
      "\"keep_us\": {:.1f}, "
      "\"pause_s\": {:.1f}, \"findings\": {}}}\n",
      ranks, slow.every > 0 ? ranks / slow.every : 0, slow.when == Slow::When::by_turns,
      window_rounds(ranks), median(look), median(keep), pause, found->findings.size());
}

}  // namespace

int main() {
  measure(2, {});
  measure(2, {2});
  for (const std::size_t ranks : {std::size_t{64}, std::size_t{1024}}) {
    for (const std::size_t every : {std::size_t{0}, ranks, std::size_t{4}}) measure(ranks, {every});
    measure(ranks, {4, Slow::When::by_turns});
  }
  return 0;
}
