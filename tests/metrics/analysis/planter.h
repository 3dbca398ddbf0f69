// Planter makes the record of a run with causes, step by step. Pure; one thread per object.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "metrics/records/run_record.h"

namespace cox::test {

// Causes to plant into a run. The defaults give a run without faults.
struct Causes {
  std::size_t ranks = 4;
  std::size_t steps = 150;
  double noise = 0.02;
  std::vector<std::int32_t> slow;
  double slowdown = 0;
  std::size_t slow_from = 0;
  bool slow_data = false;  // loading is slow
  double data = 0.03;      // shares of a step of a quiet rank
  double backward = 2;     // by forward
  double optimizer = 0.06;
  double comm = 0.08;
  double turns = 0;           // extra time of one rank a step, by turns
  bool waits_in_comm = true;  // communication includes the wait, as in a real job
  double long_steps = 0;      // share of steps with twice the time
  std::size_t warmup = 0;     // first steps with five times the time
  std::size_t not_finite_from = std::numeric_limits<std::size_t>::max();
  double loss_drop = 0.6;  // falls from 4, over the run
  std::size_t spike_at = 0;
  double leak_mib = 0;   // a step
  double unused = 0.05;  // share of reserved memory
  std::size_t memory_jump_at = 0;

  // Quantities in our own record only.
  std::size_t plan_every = 0;      // steps
  std::size_t plan_until = 0;      // no change from this step on
  double headroom = std::nan("");  // divided by the peak
  double recomputed = 0;           // blocks
  double offloaded = 0;            // blocks
  double memory_work = 0;          // share of a step, within backward
  std::size_t skip_every = 0;      // steps; skipped with this loss scale
  double loss_scale = std::nan("");
  const char* least_scale = nullptr;  // from the settings
  std::size_t save_every = 0;         // steps
  std::size_t saves = 1000;           // at most
  double save = 0;                    // divided by a step
  std::size_t lost_rows = 0;          // on rank 1, in the middle
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

}  // namespace cox::test
