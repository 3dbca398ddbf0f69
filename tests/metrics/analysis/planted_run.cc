#include "tests/metrics/analysis/planted_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace cox::test {
namespace {

// What is planted into a run; the defaults are a run in which nothing is wrong.
struct Causes {
  std::size_t ranks = 4;
  std::size_t steps = 150;
  double noise = 0.02;
  std::vector<std::int32_t> slow;
  double slowdown = 0;
  std::size_t slow_from = 0;
  bool slow_data = false;  // the slowness is in loading
  double data = 0.03;      // shares of a step of a quiet rank
  double backward = 2;     // by forward
  double optimizer = 0.06;
  double comm = 0.08;
  double turns = 0;           // one rank a step, by turns, takes this much longer
  bool waits_in_comm = true;  // communication holds the wait, as in a real job
  double long_steps = 0;      // share of steps that take twice as long
  std::size_t warmup = 0;     // first steps that take five times as long
  std::size_t not_finite_from = std::numeric_limits<std::size_t>::max();
  double loss_drop = 0.6;  // of 4, over the run
  std::size_t spike_at = 0;
  double leak_mib = 0;   // a step
  double unused = 0.05;  // of reserved memory
  std::size_t memory_jump_at = 0;

  // What only our own record has.
  std::size_t plan_every = 0;      // steps
  std::size_t plan_until = 0;      // no change from this step on
  double headroom = std::nan("");  // by the peak
  double recomputed = 0;           // blocks
  double offloaded = 0;            // blocks
  double memory_work = 0;          // share of a step, within backward
  std::size_t skip_every = 0;      // steps; skipped with this loss scale
  double loss_scale = std::nan("");
  const char* least_scale = nullptr;  // of the settings
  std::size_t save_every = 0;         // steps
  std::size_t saves = 1000;           // at most
  double save = 0;                    // by a step
  std::size_t lost_rows = 0;          // of rank 1, in the middle
  std::size_t cut_tail = 0;           // rows of rank 1
  double dropped_rows = 0;            // as run.json has them
  std::vector<Reason> decisions;
};

// Portable: std::normal_distribution differs between libraries.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * 3.14159265358979 * uniform());
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

struct StepOfRank {
  double data, forward, backward, optimizer;
  double work() const { return data + forward + backward + optimizer; }
};

class Planter {
 public:
  Planter(const Causes& causes, std::uint64_t seed) : causes_(causes), noise_(seed) {
    run_.name = "planted";
    run_.ranks.resize(causes.ranks);
    for (std::size_t r = 0; r < causes.ranks; ++r)
      run_.ranks[r].rank = static_cast<std::int32_t>(r);
  }

  diagnosis::RunRecord run() {
    for (std::size_t s = 0; s < causes_.steps; ++s) add_step(s);
    run_.decisions = causes_.decisions;
    run_.ranks[0].info.dropped_rows = causes_.dropped_rows;
    if (causes_.least_scale != nullptr)
      run_.ranks[0].info.config = {{"loss_scale.min", causes_.least_scale}};
    return std::move(run_);
  }

 private:
  double jitter() { return std::max(0.2, 1 + causes_.noise * noise_.normal()); }

  StepOfRank of_rank(std::size_t r, std::size_t s, double factor, std::size_t turn) {
    const double rest = 1 - causes_.data - causes_.optimizer - causes_.comm;
    const double forward = rest / (1 + causes_.backward);
    StepOfRank out{causes_.data * jitter(), forward * jitter(),
                   forward * causes_.backward * jitter(), causes_.optimizer * jitter()};
    const bool is_slow = s >= causes_.slow_from &&
                         std::ranges::count(causes_.slow, static_cast<std::int32_t>(r)) > 0;
    const double more = (is_slow ? causes_.slowdown : 0) + (turn == r ? causes_.turns : 0);
    const double before = out.work();
    if (causes_.slow_data && is_slow) {
      out.data += before * more;
    } else {
      out.forward += before * more / 3;
      out.backward += before * more * 2 / 3;
    }
    for (double* part : {&out.data, &out.forward, &out.backward, &out.optimizer})
      *part *= 0.05 * factor;
    return out;
  }

  void add_step(std::size_t s) {
    const bool is_long = causes_.long_steps > 0 && noise_.uniform() < causes_.long_steps;
    const double factor = (s < causes_.warmup ? 5.0 : 1.0) * (is_long ? 2.2 : 1.0);
    const std::size_t turn = noise_.below(causes_.ranks);
    std::vector<StepOfRank> steps;
    double longest = 0;
    for (std::size_t r = 0; r < causes_.ranks; ++r) {
      steps.push_back(of_rank(r, s, factor, turn));
      longest = std::max(longest, steps.back().work());
    }
    const double transfer = 0.05 * causes_.comm * jitter();
    const double save = saved_before(s);
    time_ += longest + transfer + save;
    for (std::size_t r = 0; r < causes_.ranks; ++r) {
      if (is_lost(r, s)) continue;
      const double saved_wait = r > 0 ? save : 0;
      const double wait = (causes_.waits_in_comm ? longest - steps[r].work() : 0) + saved_wait;
      put_own(run_.ranks[r], s, r == 0 ? save : 0);
      put(run_.ranks[r], s, steps[r], causes_.ranks > 1 ? transfer + wait : 0);
    }
  }

  void put(diagnosis::RankRecord& rank, std::size_t s, const StepOfRank& step, double comm) {
    rank.steps.push(static_cast<double>(s));
    rank.timestamps.push(1.75e9 + time_);
    rank.phases["data"].push(step.data);
    rank.phases["forward"].push(step.forward);
    rank.phases["backward"].push(step.backward);
    rank.phases["optimizer"].push(step.optimizer);
    if (causes_.ranks > 1) rank.phases["comm"].push(comm);
    const double part = static_cast<double>(s) / static_cast<double>(causes_.steps);
    const bool is_spike = causes_.spike_at > 0 && s >= causes_.spike_at && s < causes_.spike_at + 2;
    const double loss = 4 - 4 * causes_.loss_drop * part + 0.01 * noise_.normal();
    const bool is_finite = s < causes_.not_finite_from;
    rank.scalars["loss"].push(is_finite ? loss * (is_spike ? 2 : 1)
                                        : std::numeric_limits<double>::quiet_NaN());
    rank.scalars["grad_norm"].push((1 + 0.03 * noise_.normal()) * (is_spike ? 20 : 1));
    put_memory(rank, s);
  }

  double saved_before(std::size_t s) const {
    const bool is_due = causes_.save_every > 0 && s > 0 && s % causes_.save_every == 0;
    return is_due && s / causes_.save_every <= causes_.saves ? 0.05 * causes_.save : 0;
  }

  bool is_lost(std::size_t r, std::size_t s) const {
    const std::size_t middle = causes_.steps / 2;
    const bool is_hole = s >= middle && s < middle + causes_.lost_rows;
    return r == 1 && (is_hole || s + causes_.cut_tail >= causes_.steps);
  }

  void put_own(diagnosis::RankRecord& rank, std::size_t s, double save) {
    const auto put = [&](const char* name, double value) { rank.own[name].push(value); };
    const std::size_t planned = causes_.plan_until > 0 ? std::min(s, causes_.plan_until) : s;
    put("plan", causes_.plan_every > 0 ? static_cast<double>(planned / causes_.plan_every) : 1);
    put("recomputed_blocks", causes_.recomputed);
    put("offloaded_blocks", causes_.offloaded);
    const bool is_skipped = causes_.skip_every > 0 && s % causes_.skip_every == 0;
    put("skipped", is_skipped ? 1 : diagnosis::absent());
    put("save", save > 0 ? save : diagnosis::absent());
    put("recompute", causes_.memory_work > 0 ? 0.05 * causes_.memory_work : diagnosis::absent());
    if (!std::isnan(causes_.loss_scale)) put("loss_scale", causes_.loss_scale);
    if (!std::isnan(causes_.headroom)) put("headroom", std::round(causes_.headroom * kPeak));
  }

  void put_memory(diagnosis::RankRecord& rank, std::size_t s) {
    constexpr double kMib = 1024 * 1024;
    const bool has_jumped = causes_.memory_jump_at > 0 && s >= causes_.memory_jump_at;
    const double alloc = (1000 + causes_.leak_mib * static_cast<double>(s) + noise_.normal() +
                          (has_jumped ? 400 : 0)) *
                         kMib;
    rank.memory["alloc"].push(std::round(alloc));
    rank.memory["peak_alloc"].push(kPeak);
    rank.memory["reserved"].push(std::round(alloc / (1 - causes_.unused)));
  }

  static constexpr double kPeak = 2048.0 * 1024 * 1024;

  Causes causes_;
  Noise noise_;
  diagnosis::RunRecord run_;
  double time_ = 0;
};

// Adds one cause to those of a run, and what it must be called.
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

// What the policies say of such a thing, in their words.
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
      return "blocks a to d will not go to 8 bits: what fp8 costs on these devices was not "
             "measured";
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

std::vector<PlantedRun> runs_of(const std::vector<Plant>& plants, std::uint64_t seed) {
  constexpr std::size_t kOfEach = 8;
  std::vector<PlantedRun> out;
  Noise noise(seed);
  for (const Plant& plant : plants) {
    for (std::size_t k = 0; k < kOfEach; ++k) {
      Causes causes;
      PlantedRun& planted = out.emplace_back();
      planted.kind = plant.kind;
      plant.plant(causes, planted, noise);
      planted.run = Planter(causes, seed + 1000 * out.size()).run();
    }
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
    for (std::size_t b = a + 1; b < plants.size(); ++b) {
      Causes causes;
      PlantedRun& planted = out.emplace_back();
      planted.kind = std::string(plants[a].kind) + ", and " + plants[b].kind;
      plants[a].plant(causes, planted, noise);
      plants[b].plant(causes, planted, noise);
      planted.run = Planter(causes, seed + out.size()).run();
    }
  }
  return out;
}

}  // namespace cox::test
