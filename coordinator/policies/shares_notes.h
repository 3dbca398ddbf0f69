// What policy `shares` remembers between rounds, as named columns over one flat list of numbers
// (NumbersState::values), so that the whole costs no conversion in a round. Layout, version 1, with
// N ranks: the header below in its order, then the columns of N, then the last kRecent times of
// every rank, newest in place `seen % kRecent`. Owned by one call of the policy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coordinator/core/policy.h"

namespace cox {

class SharesNotes {
 public:
  static constexpr std::size_t kRecent = 8;

  // A state of another version, size or world, or with numbers that are none, counts as fresh.
  SharesNotes(NumbersState state, std::int32_t world_size);

  // At a new start of the job: levels stay as a first guess, all counts begin anew.
  void start_again();

  std::size_t ranks() const { return ranks_; }

  double& pooled_variance() { return at(1); }  // of the logarithm of a time, from step to step
  double& pooled_samples() { return at(2); }
  double& shares_plan() { return at(3); }     // number of the plan that brought these shares
  double& settled_rounds() { return at(4); }  // seen since then
  double& worth_rounds() { return at(5); }    // in a row in which a change was worth it
  double& has_news() { return at(6); }        // 1 = a rank's speed changed since the shares did
  double& told() { return at(7); }            // what was said last, and under which plan
  double& scale() { return at(8); }           // seconds of now in a unit of `level`
  double& shared_seconds() { return at(9); }  // of a step that all ranks spend together

  double& fixed_samples() { return at(10); }  // what a step costs beside its samples, in samples
  double& suspects() { return at(11); }       // ranks that may be about to change

  std::span<double> share() { return column(0); }  // of the newest plan; all 0 = even
  std::span<double> level() { return column(1); }  // seconds per sample, without what all share
  std::span<double> seen() { return column(2); }   // reports that counted
  std::span<double> count() { return column(3); }  // reports behind `level`; 0 = not known
  std::span<double> variance() { return column(4); }
  std::span<double> up() { return column(5); }  // CUSUM for slower
  std::span<double> down() { return column(6); }
  std::span<double> up_since() { return column(7); }  // reports since it was 0
  std::span<double> down_since() { return column(8); }
  std::span<double> fixed() { return column(9); }     // other seconds of a step, unit of `level`
  std::span<double> cap() { return column(10); }      // samples that fit its memory; 0 = not known
  std::span<double> skip() { return column(11); }     // reports that do not count yet
  std::span<double> samples() { return column(12); }  // of a step, in the newest report
  // Under the shares before these: seconds of a step (0 = not known), its samples, `seen` then.
  std::span<double> work_before() { return column(13); }
  std::span<double> samples_before() { return column(14); }
  std::span<double> seen_before() { return column(15); }

  std::span<double> recent(std::size_t rank) {
    return std::span(state_.values).subspan(kHeader + kColumns * ranks_ + rank * kRecent, kRecent);
  }

  PolicyState release() && { return PolicyState::of(std::move(state_)); }

 private:
  static constexpr std::size_t kHeader = 12;
  static constexpr std::size_t kColumns = 16;

  double& at(std::size_t index) { return state_.values[index]; }
  std::span<double> column(std::size_t index) {
    return std::span(state_.values).subspan(kHeader + index * ranks_, ranks_);
  }
  bool is_readable();
  bool levels_are_times();

  std::size_t ranks_;
  NumbersState state_;
};

}  // namespace cox
