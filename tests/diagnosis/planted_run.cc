#include "tests/diagnosis/planted_run.h"

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
    time_ += longest + transfer;
    for (std::size_t r = 0; r < causes_.ranks; ++r) {
      const double wait = causes_.waits_in_comm ? longest - steps[r].work() : 0;
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

  void put_memory(diagnosis::RankRecord& rank, std::size_t s) {
    constexpr double kMib = 1024 * 1024;
    const bool has_jumped = causes_.memory_jump_at > 0 && s >= causes_.memory_jump_at;
    const double alloc = (1000 + causes_.leak_mib * static_cast<double>(s) + noise_.normal() +
                          (has_jumped ? 400 : 0)) *
                         kMib;
    rank.memory["alloc"].push(std::round(alloc));
    rank.memory["reserved"].push(std::round(alloc / (1 - causes_.unused)));
  }

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

}  // namespace

std::vector<PlantedRun> planted_runs(std::uint64_t seed) {
  constexpr std::size_t kOfEach = 8;
  std::vector<PlantedRun> out;
  Noise noise(seed);
  for (const Plant& plant : kPlants) {
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

}  // namespace cox::test
