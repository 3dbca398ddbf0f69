// SpeedShares: a policy of one's own, complete. Quoted by docs/writing-a-policy.md, used by
// custom_policy.cc and replayed by tests/docs. Pure, like every policy; coordinator's thread.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "coordinator/decide/policy.h"

namespace example {

// [policy]
// The policy's memory: rounds seen, then samples and seconds of every rank since the last look at
// the speeds.
struct SpeedSharesState {
  static constexpr std::uint32_t kVersion = 1;
  std::uint64_t rounds = 0;
  std::vector<double> samples;  // one per rank
  std::vector<double> seconds;
  static auto fields(auto& self) {
    return cox::message("SpeedSharesState", cox::field(1, "rounds", self.rounds),
                        cox::field(2, "samples", self.samples),
                        cox::field(3, "seconds", self.seconds));
  }
};

// Gives every rank samples in proportion to its speed: samples per second of its own work.
class SpeedShares final : public cox::Policy {
 public:
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "speed_shares"; }

  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    const auto ranks = static_cast<std::size_t>(input.job.world_size);
    auto seen = state.take_or_fresh<SpeedSharesState>();
    if (seen.samples.size() != ranks || seen.seconds.size() != ranks) {
      seen = {0, std::vector<double>(ranks), std::vector<double>(ranks)};  // the world has changed
    }
    seen.rounds += static_cast<std::uint64_t>(input.summary.rounds);
    for (const cox::RankSignal& report : input.signals.reports) {  // fresh and valid ones only
      const auto rank = static_cast<std::size_t>(report.rank.value());
      seen.samples[rank] += report.samples;
      seen.seconds[rank] += own_seconds(report);
    }
    if (ranks < 2 || seen.rounds < 20) return {{}, {}, cox::PolicyState::of(std::move(seen))};

    std::vector<double> speed(ranks);
    double total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (seen.samples[r] == 0 || seen.seconds[r] <= 0) return {{}, {}, {}};  // start again
      total += speed[r] = seen.samples[r] / seen.seconds[r];
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
