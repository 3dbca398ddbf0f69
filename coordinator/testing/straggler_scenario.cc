#include "coordinator/testing/straggler_scenario.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cox::testing {
namespace {

constexpr std::uint64_t kRoundsAfterOnset = 120;

constexpr std::array<std::string_view, kStragglerKinds> kNames = {
    "quiet",   "step",          "ramp", "thermal",     "flicker",
    "pause",   "communication", "data", "uneven work", "hidden waiting",
    "several", "all ranks",     "host", "bursts",      "two ranks"};

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

// Draws small slowdowns as often as large ones: 3 to 300 %.
double any_slowdown(Random& random) {
  return 0.03 * std::pow(100.0, random.uniform());
}

std::optional<Phase> any_phase(Random& random) {
  constexpr std::array<Phase, 4> kPlaces = {Phase::data, Phase::forward, Phase::backward,
                                            Phase::optimizer};
  if (random.chance(0.25)) return std::nullopt;
  return kPlaces[random.below(kPlaces.size())];
}

RankId any_rank(Random& random, std::int32_t ranks) {
  return RankId(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(ranks))));
}

// Returns a job of 8 to 1,024 ranks without anything slow.
StragglerScenario calm(StragglerKind kind, Random& random) {
  StragglerScenario made;
  made.kind = kind;
  made.job.seed = random.bits();
  made.job.ranks = static_cast<std::int32_t>(8 * std::pow(128.0, random.uniform()));
  made.job.step_noise = between(random, 0.005, 0.03);
  made.job.noise = static_cast<NoiseKind>(random.below(3));
  made.job.waiting = WaitingKind::measured;
  made.job.blocks = 1;
  return made;
}

void slow_down(StragglerScenario& made, const Slowdown& slowdown, double mean_part) {
  const PhaseSeconds& quiet = made.job.phases;
  double own = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (is_own_work(static_cast<Phase>(p))) own += quiet[p];
  }
  // Extra time in a phase is a part of the own work, which excludes communication.
  const bool has_communication = made.job.waiting == WaitingKind::measured;
  const double link = quiet[static_cast<std::size_t>(Phase::communication)];
  const double part = slowdown.phase && has_communication ? own / (own + link) : 1;
  const double ratio = 1 + part * mean_part * slowdown.extra_ratio;
  made.job.slowdowns.push_back(slowdown);
  made.slow.push_back({slowdown.rank, slowdown.phase, ratio, slowdown.from});
}

Slowdown one_slowdown(const StragglerScenario& made, Random& random) {
  Slowdown slowdown;
  slowdown.rank = any_rank(random, made.job.ranks);
  slowdown.phase = any_phase(random);
  slowdown.extra_ratio = any_slowdown(random);
  slowdown.from = 15 + random.below(35);
  return slowdown;
}

void add_shape(StragglerScenario& made, Random& random) {
  Slowdown slowdown = one_slowdown(made, random);
  double mean_part = 1;
  if (made.kind == StragglerKind::ramp) {
    slowdown.shape = SlowShape::ramp;
    slowdown.period_rounds = static_cast<std::uint32_t>(10 + random.below(40));
  }
  if (made.kind == StragglerKind::thermal) {
    slowdown.shape = SlowShape::wave;
    slowdown.period_rounds = static_cast<std::uint32_t>(20 + random.below(40));
    mean_part = 0.5;
  }
  if (made.kind == StragglerKind::communication) slowdown.phase = Phase::communication;
  if (made.kind == StragglerKind::data) slowdown.phase = Phase::data;
  slow_down(made, slowdown, mean_part);
}

// Adds a transient slowdown; no rank should be named for it.
void add_transient(StragglerScenario& made, Random& random) {
  Slowdown slowdown = one_slowdown(made, random);
  slowdown.shape = SlowShape::on_off;
  slowdown.extra_ratio = between(random, 0.2, 3);
  const bool is_pause = made.kind == StragglerKind::pause;
  slowdown.on_rounds =
      static_cast<std::uint32_t>(is_pause ? 2 + random.below(4) : 1 + random.below(2));
  slowdown.period_rounds =
      static_cast<std::uint32_t>(is_pause ? 50 + random.below(50) : 10 + random.below(10));
  made.job.slowdowns.push_back(slowdown);
}

void make_uneven(StragglerScenario& made, Random& random) {
  for (std::int32_t r = 0; r < made.job.ranks; ++r) {
    made.job.samples.push_back(static_cast<std::uint32_t>(4 + random.below(13)));
    made.job.recompute.push_back(random.chance(0.5) ? between(random, 0, 0.5) : 0);
  }
  if (!random.chance(0.5)) return;
  // Work independent of samples would hide a small slowdown of a rank with few samples.
  Slowdown slowdown = one_slowdown(made, random);
  slowdown.phase = Phase::forward;
  const auto rank = static_cast<std::size_t>(slowdown.rank.value());
  made.job.samples[rank] = 17;
  slowdown.extra_ratio = std::max(slowdown.extra_ratio, 0.2);
  slow_down(made, slowdown, 1);
}

void add_several(StragglerScenario& made, Random& random) {
  const auto most = static_cast<std::uint64_t>((made.job.ranks - 1) / 2 - 1);
  const std::uint64_t count = 2 + random.below(std::min<std::uint64_t>(most - 1, 15));
  const auto stride = made.job.ranks / static_cast<std::int32_t>(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    Slowdown slowdown = one_slowdown(made, random);
    slowdown.rank = RankId(static_cast<std::int32_t>(i) * stride);
    slow_down(made, slowdown, 1);
  }
}

void slow_everybody(StragglerScenario& made, Random& random) {
  Slowdown slowdown = one_slowdown(made, random);
  slowdown.extra_ratio = between(random, 0.15, 1);
  slowdown.from = 80 + random.below(40);
  for (std::int32_t r = 0; r < made.job.ranks; ++r) {
    slowdown.rank = RankId(r);
    made.job.slowdowns.push_back(slowdown);
  }
  made.job.common_noise = 0.01;
  made.job_slowdown_ratio = 1 + slowdown.extra_ratio;
  made.job_slow_from = slowdown.from;
}

void slow_host(StragglerScenario& made, Random& random) {
  made.job.ranks = std::max(made.job.ranks, 24);
  made.job.ranks_per_node = 8;
  made.job.ranks -= made.job.ranks % 8;
  made.slow_host = NodeId(any_rank(random, made.job.ranks / 8).value());
  Slowdown slowdown = one_slowdown(made, random);
  slowdown.extra_ratio = std::max(slowdown.extra_ratio, 0.1);
  for (std::int32_t r = 0; r < 8; ++r) {
    slowdown.rank = RankId(made.slow_host.value() * 8 + r);
    slow_down(made, slowdown, 1);
  }
}

// Simulates rounds of a few milliseconds on a machine with more programs than cores.
void add_bursts(StragglerScenario& made, Random& random) {
  made.job.ranks = static_cast<std::int32_t>(4 + random.below(13));
  for (float& seconds : made.job.phases) seconds *= 0.03F;
  made.job.step_noise = between(random, 0.05, 0.2);
  made.job.noise = NoiseKind::student;
  made.job.bursts = {.chance = between(random, 0.001, 0.01),
                     .least_rounds = between(random, 2, 8),
                     .most_ratio = between(random, 3, 14)};
  made.rounds = 2000;
}

void slow_one_of_two(StragglerScenario& made, Random& random) {
  made.job.ranks = 2;
  Slowdown slowdown = one_slowdown(made, random);
  slowdown.extra_ratio = std::max(slowdown.extra_ratio, 0.2);
  slowdown.from = random.chance(0.5) ? 0 : 60 + random.below(40);
  slow_down(made, slowdown, 1);
}

void add_trouble(StragglerScenario& made, Random& random) {
  switch (made.kind) {
    case StragglerKind::quiet:
      return;
    case StragglerKind::hidden_waiting:
      made.job.waiting = WaitingKind::hidden;
      [[fallthrough]];
    case StragglerKind::step:
    case StragglerKind::ramp:
    case StragglerKind::thermal:
    case StragglerKind::communication:
    case StragglerKind::data:
      return add_shape(made, random);
    case StragglerKind::flicker:
    case StragglerKind::pause:
      return add_transient(made, random);
    case StragglerKind::uneven_work:
      return make_uneven(made, random);
    case StragglerKind::several:
      return add_several(made, random);
    case StragglerKind::all_ranks:
      return slow_everybody(made, random);
    case StragglerKind::host:
      return slow_host(made, random);
    case StragglerKind::bursts:
      return add_bursts(made, random);
    case StragglerKind::two_ranks:
      return slow_one_of_two(made, random);
  }
}

}  // namespace

std::string_view to_string(StragglerKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

StragglerScenario straggler_scenario(StragglerKind kind, std::uint64_t seed) {
  Random random(seed * kStragglerKinds + static_cast<std::uint64_t>(kind));
  StragglerScenario made = calm(kind, random);
  add_trouble(made, random);
  if (made.rounds == 0) {
    std::uint64_t onset = 30;
    for (const Slowdown& slowdown : made.job.slowdowns) onset = std::max(onset, slowdown.from);
    made.rounds = onset + kRoundsAfterOnset;
  }
  return made;
}

StragglerScenario straggler_scenario(std::uint64_t seed) {
  return straggler_scenario(static_cast<StragglerKind>(seed % kStragglerKinds), seed);
}

}  // namespace cox::testing
