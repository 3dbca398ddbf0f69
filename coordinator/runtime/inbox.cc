#include "coordinator/runtime/inbox.h"

#include <algorithm>
#include <utility>

namespace cox::runtime {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using transport::BoardWake;

constexpr milliseconds kLookEvery{500};

bool is_late(const RankSignal& report, RoundId round) {
  return report.round < round && !report.has(SignalFlag::watching);
}

}  // namespace

TakenReports check_reports(transport::CollectedSignals collected, const JobFacts& job) {
  TakenReports taken{std::move(collected.signals), {}, std::move(collected.evidence)};
  taken.is_own.reserve(taken.signals.size());
  for (const RankSignal& report : taken.signals) {
    taken.is_own.push_back(is_own(report, job.incarnation, job.world_size) ? 1 : 0);
  }
  return taken;
}

RoundId round_to_judge(const TakenReports& taken, RoundId earliest) {
  RoundId newest = earliest;
  for (std::size_t i = 0; i < taken.signals.size(); ++i) {
    const RankSignal& report = taken.signals[i];
    const bool counts = taken.is_own[i] != 0 && !report.has(SignalFlag::watching);
    if (counts) newest = std::max(newest, report.round);
  }
  return newest;
}

void RoundPace::round_at(Clock::time_point now) {
  ends_[rounds_++ % ends_.size()] = now;
}

nanoseconds RoundPace::poll_interval() const {
  if (rounds_ < ends_.size()) return nanoseconds(0);
  nanoseconds shortest = nanoseconds::max();
  for (std::size_t i = rounds_ - ends_.size() + 1; i < rounds_; ++i) {
    const nanoseconds interval = ends_[i % ends_.size()] - ends_[(i - 1) % ends_.size()];
    shortest = std::min(shortest, interval);
  }
  if (shortest < microseconds(200)) return nanoseconds(0);
  return std::clamp<nanoseconds>(shortest / 2, milliseconds(2), milliseconds(50));
}

LateReports::LateReports(std::int32_t world_size)
    : next_(static_cast<std::size_t>(std::max(0, world_size))) {}

void LateReports::fold(RoundId round, TakenReports& taken) {
  bool has_kept = false;
  bool has_fresh = false;
  // All late reports first: a fresh report may lie before a late one of the same rank.
  for (std::size_t i = 0; i < taken.signals.size(); ++i) {
    if (taken.is_own[i] == 0 || !is_late(taken.signals[i], round)) continue;
    if (keep(taken.signals[i]) == Kept::yes) has_kept = true;
  }
  for (std::size_t i = 0; i < taken.signals.size(); ++i) {
    if (taken.is_own[i] == 0 || is_late(taken.signals[i], round)) continue;
    add_to(taken.signals[i]);
    has_fresh = true;
  }
  if (has_fresh) {
    fold_evidence(taken.evidence);
  } else if (has_kept) {
    evidence_.resize(taken.evidence.size());
    merge_into(evidence_, taken.evidence);
  }
}

LateReports::Kept LateReports::keep(const RankSignal& late) {
  RoundId& next = next_[static_cast<std::size_t>(late.rank.value())];
  if (late.round < next) return Kept::no;
  next = late.round.next();
  const auto [place, is_first] = kept_.emplace(late.rank.value(), late);
  if (!is_first) place->second = merge_reports(place->second, late);
  return Kept::yes;
}

void LateReports::add_to(RankSignal& report) {
  next_[static_cast<std::size_t>(report.rank.value())] = report.round.next();
  const auto kept = kept_.find(report.rank.value());
  if (kept == kept_.end()) return;
  report = merge_reports(kept->second, report);
  seal(report);
  kept_.erase(kept);
}

void LateReports::fold_evidence(std::vector<BlockEvidence>& evidence) {
  if (evidence_.empty()) return;
  evidence_.resize(evidence.size());
  merge_into(evidence, evidence_);
  evidence_.clear();
}

Inbox::Inbox(transport::SignalBoard& board, std::int32_t world_size, Seconds late)
    : board_(board),
      late_after_(std::chrono::duration_cast<nanoseconds>(late)),
      late_(world_size),
      ranks_left_(world_size),
      finished_(static_cast<std::size_t>(world_size), 0) {}

void Inbox::wait(const Look& look) {
  const std::int32_t expected = std::max(1, ranks_left_.load());
  auto woken = BoardWake::timed_out;
  if (const auto interval = pace_.poll_interval(); interval.count() > 0) {
    const auto polls = std::clamp<std::int64_t>(late_after_ / interval, 1, RoundPace::kPolls);
    woken = board_.wait_polling(expected, interval, static_cast<int>(polls));
  }
  if (woken == BoardWake::timed_out) woken = wait_for_late(expected, look);
  if (woken == BoardWake::complete) pace_.round_at(RoundPace::Clock::now());
}

// A rank is late if its report is missing for some time while another rank's is there. The length
// of steps does not matter.
BoardWake Inbox::wait_for_late(std::int32_t expected, const Look& look) {
  const auto woken = wait_looking(expected, look);
  if (woken != BoardWake::timed_out) return woken;
  const bool has_any = board_.wait(1, nanoseconds(0)) == BoardWake::complete;
  return has_any ? wait_looking(expected, look) : woken;
}

BoardWake Inbox::wait_looking(std::int32_t expected, const Look& look) {
  for (nanoseconds left = late_after_;;) {
    const nanoseconds part = std::min<nanoseconds>(left, kLookEvery);
    const auto woken = board_.wait(expected, part);
    if (woken != BoardWake::timed_out) return woken;
    look();
    left -= part;
    if (left.count() <= 0) return woken;
  }
}

TakenReports Inbox::take(const JobFacts& job) {
  TakenReports taken = check_reports(board_.collect(), job);
  note_finished(taken);
  return taken;
}

// Counts a report that is too late for its round as well: no rank may wait for a finished one.
void Inbox::note_finished(const TakenReports& taken) {
  for (std::size_t i = 0; i < taken.signals.size(); ++i) {
    if (taken.is_own[i] == 0 || !taken.signals[i].has(SignalFlag::finished)) continue;
    auto& finished = finished_[static_cast<std::size_t>(taken.signals[i].rank.value())];
    if (finished == 0) ranks_left_.fetch_sub(1);
    finished = 1;
  }
}

StepSignals Inbox::gather(TakenReports taken, const JobFacts& job, UnixTime now) {
  const RoundId round = round_to_judge(taken, earliest_);
  late_.fold(round, taken);
  StepSignals signals = collect(round, job.incarnation, job.world_size, taken.signals,
                                std::move(taken.evidence), now);
  const bool is_round = !signals.reports.empty();
  if (is_round) earliest_ = round.next();
  std::erase_if(signals.faults, [&](const FaultyReport& f) {
    if (f.fault != ReportFault::missing) return false;
    return !is_round || finished_[static_cast<std::size_t>(f.rank.value())] != 0;
  });
  return signals;
}

}  // namespace cox::runtime
