// SpeedShares: a policy of one's own, complete. Quoted by docs/writing-a-policy.md, used by
// custom_policy.cc and replayed by tests/docs. Pure, like every policy; coordinator's thread.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "coordinator/core/policy.h"

namespace example {

// [policy]
// Gives every rank samples in proportion to its speed: samples per second of its own work.
class SpeedShares final : public cox::Policy {
 public:
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "speed_shares"; }

  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    const auto ranks = static_cast<std::size_t>(input.job.world_size);
    // What it remembers: rounds seen, then samples and seconds of every rank since it last looked.
    const bool usable = state.version == 1 && state.values.size() == 1 + 2 * ranks;
    if (!usable) state = {1, std::vector<double>(1 + 2 * ranks)};
    double* samples = state.values.data() + 1;
    double* seconds = samples + ranks;
    state.values[0] += input.summary.rounds;
    for (const cox::RankSignal& report : input.signals.reports) {  // fresh and valid ones only
      const auto rank = static_cast<std::size_t>(report.rank.value());
      samples[rank] += report.samples;
      seconds[rank] += own_seconds(report);
    }
    if (ranks < 2 || state.values[0] < 20) return {{}, {}, state};

    std::vector<double> speed(ranks);
    double total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (samples[r] == 0 || seconds[r] <= 0) return {{}, {}, {}};  // start again
      total += speed[r] = samples[r] / seconds[r];
    }
    std::vector<std::uint32_t> shares(ranks);
    double largest_move = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      shares[r] = static_cast<std::uint32_t>(1 + std::floor(1000 * speed[r] / total));
      const double now =
          input.plan.shares.empty() ? 1000.0 / static_cast<double>(ranks) : input.plan.shares[r];
      largest_move = std::max(largest_move, std::abs(shares[r] / now - 1));
    }
    if (largest_move < 0.1) return {{}, {}, {}};  // not worth a plan
    cox::Reason reason;
    reason.code = cox::ReasonCode::custom;
    reason.text = "shares follow the speed of the ranks; the largest one changes by " +
                  std::to_string(std::lround(100 * largest_move)) + " %";
    return {{{cox::SetShares{shares}, reason}}, {}, {}};
  }

 private:
  static double own_seconds(const cox::RankSignal& report) {
    double sum = 0;
    for (std::size_t p = 0; p < cox::kPhases; ++p) {
      if (cox::is_own_work(static_cast<cox::Phase>(p))) sum += report.phase_seconds[p];
    }
    return sum;
  }
};
// [/policy]

}  // namespace example
