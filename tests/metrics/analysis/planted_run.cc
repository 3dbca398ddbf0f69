#include "tests/metrics/analysis/planted_run.h"

#include <initializer_list>
#include <string>
#include <utility>

#include "tests/metrics/analysis/planter.h"

namespace cox::test {
namespace {

// Adds one cause to a run, with its expected code.
struct Plant {
  const char* kind;
  void (*plant)(Causes&, PlantedRun&, Noise&);
};

void slow_ranks(Causes& c, PlantedRun& out, std::vector<std::int32_t> ranks, double slowdown) {
  c.slow = ranks;
  c.slowdown = slowdown;
  out.slow = {ranks.begin(), ranks.end()};
  out.codes.insert("DIST.STRAGGLER");
}

std::int32_t some_rank(const Causes& c, Noise& noise) {
  return static_cast<std::int32_t>(noise.below(c.ranks));
}

const std::vector<Plant> kPlants = {
    {"quiet", [](Causes&, PlantedRun&, Noise&) {}},
    {"quiet, noisy", [](Causes& c, PlantedRun&, Noise&) { c.noise = 0.05; }},
    {"quiet, warm-up of 8 steps", [](Causes& c, PlantedRun&, Noise&) { c.warmup = 8; }},
    {"memory steps up once", [](Causes& c, PlantedRun&, Noise&) { c.memory_jump_at = 20; }},
    {"one slow rank",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.15 + 0.4 * n.uniform());
     }},
    {"two slow ranks",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.ranks = 8;
       const std::int32_t first = some_rank(c, n);
       slow_ranks(c, o, {first, (first + 3) % 8}, 0.15 + 0.4 * n.uniform());
     }},
    {"slow rank of two",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.ranks = 2;
       slow_ranks(c, o, {some_rank(c, n)}, 0.2 + 0.5 * n.uniform());
     }},
    {"slow by 8 %",
     [](Causes& c, PlantedRun& o, Noise& n) { slow_ranks(c, o, {some_rank(c, n)}, 0.08); }},
    {"slow by 3 %, too little to tell",
     [](Causes& c, PlantedRun&, Noise& n) {
       c.slow = {some_rank(c, n)};
       c.slowdown = 0.03;
     }},
    {"slow from the middle on",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.25);
       c.slow_from = c.steps * 6 / 10;
     }},
    {"slow loader of one rank",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.3);
       c.slow_data = true;
     }},
    {"late by turns",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.turns = 0.4;
       o.codes.insert("DIST.LOAD_IMBALANCE");
     }},
    {"slow loader",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.data = 0.32;
       o.codes.insert("TIMING.DATALOADER_BOUND");
     }},
    {"data just below", [](Causes& c, PlantedRun&, Noise&) { c.data = 0.16; }},
    {"slow backward",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.backward = 3;
       o.codes.insert("TIMING.BACKWARD_HEAVY");
     }},
    {"slow optimizer",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.optimizer = 0.2;
       o.codes.insert("TIMING.OPTIMIZER_HEAVY");
     }},
    {"slow network",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.comm = 0.35;
       o.codes.insert("DIST.COMM_BOUND");
     }},
    {"long steps",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.long_steps = 0.12;
       o.codes.insert("TIMING.JITTER");
     }},
    {"loss not finite",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.not_finite_from = 40 + n.below(100);
       o.codes.insert("CONVERGENCE.DIVERGED");
     }},
    {"loss flat",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.loss_drop = 0;
       o.codes.insert("CONVERGENCE.NO_PROGRESS");
     }},
    {"loss falls slowly", [](Causes& c, PlantedRun&, Noise&) { c.loss_drop = 0.015; }},
    {"jump of loss and gradients",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.spike_at = 40 + n.below(80);
       o.codes.insert("CROSS.CORRELATED_INSTABILITY");
     }},
    {"leak",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.leak_mib = 1.5 + 2 * n.uniform();
       o.codes.insert("MEMORY.GROWTH");
     }},
    {"unused memory",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.unused = 0.3;
       o.codes.insert("MEMORY.FRAGMENTATION");
     }},
    {"slow rank and leak",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.3);
       c.leak_mib = 2;
       o.codes.insert("MEMORY.GROWTH");
     }},
    {"slow rank and slow network",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.25);
       c.comm = 0.4;
       o.codes.insert("DIST.COMM_BOUND");
     }},
    {"slow loader and jump",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.data = 0.35;
       c.spike_at = 90;
       o.codes = {"TIMING.DATALOADER_BOUND", "CROSS.CORRELATED_INSTABILITY"};
     }},
    {"warm-up and slow rank",
     [](Causes& c, PlantedRun& o, Noise& n) {
       c.warmup = 10;
       slow_ranks(c, o, {some_rank(c, n)}, 0.2);
     }},
    {"slow optimizer and unused memory",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.optimizer = 0.22;
       c.unused = 0.45;
       o.codes = {"TIMING.OPTIMIZER_HEAVY", "MEMORY.FRAGMENTATION"};
     }},
    {"flat loss and leak",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.loss_drop = 0;
       c.leak_mib = 2;
       o.codes = {"CONVERGENCE.NO_PROGRESS", "MEMORY.GROWTH"};
     }},
};

// Returns a policy's sentence about such a reason.
const char* sentence_of(ReasonCode code) {
  switch (code) {
    case ReasonCode::shares_limited:
      return "rank 1 takes 7 samples instead of 8 (7.5 ms each), rank 0 takes 9 samples instead "
             "of 8 (5 ms each); a step is predicted to take 52.5 ms instead of 60 ms (12.5 % "
             "less), rank 1 is the slowest now; rank 0 is held to 9 samples by its cap";
    case ReasonCode::shares_unmeetable:
      return "shares stay: the minima of the ranks add up to 40 units, the batch has 32 (rank 0: "
             "10, rank 1: 10, rank 2: 10, rank 3: 10); lower the minimum or take a larger batch "
             "(a unit is a sample)";
    case ReasonCode::shares_changed:
      return "rank 1 takes 6 samples instead of 8 (7.5 ms each), rank 0 takes 10 samples instead "
             "of 8 (5 ms each); a step is predicted to take 50 ms instead of 60 ms (16.7 % "
             "less), rank 1 is the slowest now";
    case ReasonCode::precision_not_faster:
      return "blocks a to d will not go to 8 bits: fp8 takes 910 us, bf16 880 us, and less than "
             "5.0 % is no gain";
    case ReasonCode::precision_no_evidence:
      return "blocks a to d will not go to 8 bits: the cost of fp8 on these devices was "
             "not measured";
    case ReasonCode::precision_lowered:
      return "blocks a to d go from bf16 to fp8: no trouble since round 4";
    default:
      return "block a goes from fp8 to bf16: precision.forbid has a=fp8";
  }
}

Reason said(PolicyKind policy, ReasonCode code, std::uint64_t round, Outcome outcome) {
  Reason reason;
  reason.policy = policy;
  reason.code = code;
  reason.round = RoundId(round);
  reason.outcome = outcome;
  reason.text = sentence_of(code);
  return reason;
}

const std::vector<Plant> kOwnPlants = {
    {"a plan every 8 steps",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.plan_every = 8;
       o.codes = {"PLAN.FLAPPING"};
     }},
    {"a plan every 12 steps", [](Causes& c, PlantedRun&, Noise&) { c.plan_every = 12; }},
    {"five plans, then none",
     [](Causes& c, PlantedRun&, Noise&) {
       c.plan_every = 5;
       c.plan_until = 25;
     }},
    {"2 % of the peak left",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.headroom = 0.02;
       o.codes = {"BUDGET.TOO_LOOSE"};
     }},
    {"4 % of the peak left", [](Causes& c, PlantedRun&, Noise&) { c.headroom = 0.04; }},
    {"recomputation takes 8 %",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.recomputed = 3;
       c.memory_work = 0.08;
       c.headroom = 0.2;
       o.codes = {"BUDGET.TOO_TIGHT"};
     }},
    {"recomputation takes 3 %",
     [](Causes& c, PlantedRun&, Noise&) {
       c.recomputed = 3;
       c.memory_work = 0.03;
       c.headroom = 0.4;
     }},
    {"recomputation takes 1 %, and half of the memory is free",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.recomputed = 3;
       c.memory_work = 0.01;
       c.headroom = 0.6;
       o.codes = {"BUDGET.TOO_TIGHT"};
     }},
    {"much room, and nothing recomputed", [](Causes& c, PlantedRun&, Noise&) { c.headroom = 2; }},
    {"waiting for offloaded blocks takes 8 %",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.offloaded = 3;
       c.memory_work = 0.08;
       c.headroom = 0.2;
       o.codes = {"OFFLOAD.TIER_SLOW"};
     }},
    {"waiting for offloaded blocks takes 3 %",
     [](Causes& c, PlantedRun&, Noise&) {
       c.offloaded = 3;
       c.memory_work = 0.03;
       c.headroom = 0.2;
     }},
    {"one step in 20 is skipped",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.skip_every = 20;
       c.loss_scale = 1024;
       o.codes = {"PRECISION.SKIPPED_STEPS"};
     }},
    {"one step in 60 is skipped",
     [](Causes& c, PlantedRun&, Noise&) {
       c.skip_every = 60;
       c.loss_scale = 1024;
     }},
    {"one step in 15 is skipped at the smallest scale",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.skip_every = 15;
       c.loss_scale = 1;
       o.codes = {"PRECISION.SCALE_AT_FLOOR"};
     }},
    {"the smallest scale, and nothing skipped",
     [](Causes& c, PlantedRun&, Noise&) { c.loss_scale = 1; }},
    {"a format is not faster",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.decisions = {said(PolicyKind::precision, ReasonCode::precision_not_faster, 1, {})};
       o.codes = {"PRECISION.WITHHELD"};
     }},
    {"a format was not measured, and is taken later",
     [](Causes& c, PlantedRun&, Noise&) {
       c.decisions = {
           said(PolicyKind::precision, ReasonCode::precision_no_evidence, 1, Outcome::vetoed),
           said(PolicyKind::precision, ReasonCode::precision_lowered, 40, Outcome::changed)};
     }},
    {"a format is forbidden by a rule that moves a block",
     [](Causes& c, PlantedRun&, Noise&) {
       c.decisions = {
           said(PolicyKind::precision, ReasonCode::precision_forbidden, 9, Outcome::changed)};
     }},
    {"shares are at a cap beside a slow rank",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.3);
       c.decisions = {said(PolicyKind::shares, ReasonCode::shares_limited, 30, Outcome::clamped)};
       o.codes.insert("SHARES.PINNED");
     }},
    {"shares were at a cap, and follow now",
     [](Causes& c, PlantedRun& o, Noise& n) {
       slow_ranks(c, o, {some_rank(c, n)}, 0.3);
       c.decisions = {said(PolicyKind::shares, ReasonCode::shares_limited, 30, Outcome::clamped),
                      said(PolicyKind::shares, ReasonCode::shares_changed, 60, Outcome::changed)};
     }},
    {"shares are at a cap, and nobody waits",
     [](Causes& c, PlantedRun&, Noise&) {
       c.decisions = {said(PolicyKind::shares, ReasonCode::shares_unmeetable, 30, {})};
     }},
    {"saves take 5 %",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.save_every = 25;
       c.save = 1.4;
       o.codes = {"SAVE.STALLS"};
     }},
    {"long saves that ranks wait for in communication",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.save_every = 10;
       c.save = 5;
       o.codes = {"SAVE.STALLS"};
     }},
    {"saves take 1.5 %",
     [](Causes& c, PlantedRun&, Noise&) {
       c.save_every = 25;
       c.save = 0.36;
     }},
    {"one long save",
     [](Causes& c, PlantedRun&, Noise&) {
       c.save_every = 70;
       c.saves = 1;
       c.save = 10;
     }},
    {"leak that will end the run, and slow loader",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.leak_mib = 2;
       c.data = 0.35;
       c.headroom = 2;
       o.codes = {"MEMORY.GROWTH", "TIMING.DATALOADER_BOUND"};
     }},
    {"leak with memory for long, and slow loader",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.leak_mib = 2;
       c.data = 0.35;
       c.headroom = 20;
       o.codes = {"MEMORY.GROWTH", "TIMING.DATALOADER_BOUND"};
     }},
    {"rank 1 lost four rows",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.lost_rows = 4;
       o.codes = {"RECORD.DROPPED"};
     }},
    {"the disk was full",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.dropped_rows = 2;
       o.codes = {"RECORD.DROPPED"};
     }},
    {"rank 1 lost two rows of 600",
     [](Causes& c, PlantedRun&, Noise&) {
       c.steps = 600;
       c.lost_rows = 2;
     }},
    {"rank 1 ended earlier", [](Causes& c, PlantedRun&, Noise&) { c.cut_tail = 12; }},
    {"one step in 15 is skipped at the smallest scale that settings allow",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.skip_every = 15;
       c.loss_scale = 128;
       c.least_scale = "128";
       o.codes = {"PRECISION.SCALE_AT_FLOOR"};
     }},
    {"one step in 60 is skipped at the smallest scale",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.skip_every = 60;
       c.loss_scale = 1;
       o.codes = {"PRECISION.SCALE_LOW"};
     }},
    {"one step in 20 is skipped, and no loss scaler is at work",
     [](Causes& c, PlantedRun& o, Noise&) {
       c.skip_every = 20;
       o.codes = {"PRECISION.SKIPPED_STEPS"};
     }},
};

PlantedRun planted_with(std::initializer_list<Plant> plants, Noise& noise, std::uint64_t seed) {
  Causes causes;
  PlantedRun out;
  for (const Plant& plant : plants) {
    out.kind += (out.kind.empty() ? "" : ", and ") + std::string(plant.kind);
    plant.plant(causes, out, noise);
  }
  out.run = Planter(causes, seed).run();
  return out;
}

std::vector<PlantedRun> runs_of(const std::vector<Plant>& plants, std::uint64_t seed) {
  constexpr std::size_t kOfEach = 8;
  std::vector<PlantedRun> out;
  Noise noise(seed);
  for (const Plant& plant : plants) {
    for (std::size_t k = 0; k < kOfEach; ++k)
      out.push_back(planted_with({plant}, noise, seed + 1000 * (out.size() + 1)));
  }
  return out;
}

}  // namespace

std::vector<PlantedRun> planted_runs(std::uint64_t seed) {
  return runs_of(kPlants, seed);
}

std::vector<PlantedRun> own_planted_runs(std::uint64_t seed) {
  return runs_of(kOwnPlants, seed);
}

std::vector<PlantedRun> paired_planted_runs(std::uint64_t seed) {
  std::vector<Plant> plants = kPlants;
  plants.insert(plants.end(), kOwnPlants.begin(), kOwnPlants.end());
  std::vector<PlantedRun> out;
  Noise noise(seed);
  for (std::size_t a = 0; a < plants.size(); ++a) {
    for (std::size_t b = a + 1; b < plants.size(); ++b)
      out.push_back(planted_with({plants[a], plants[b]}, noise, seed + out.size()));
  }
  return out;
}

}  // namespace cox::test
