#include "metrics/live_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/records/run_format.h"
#include "metrics/records/run_reader.h"

namespace cox::metrics {
namespace {

using diagnosis::RankRecord;
using diagnosis::RunRecord;

constexpr std::size_t kLeastRounds = 32;

// Returns how many steps a report covers. A rank's last report covers the steps that the rank could
// not send before, and is no step itself.
std::uint32_t steps_in(const RankSignal& report) {
  const std::uint32_t itself = report.has(SignalFlag::finished) ? 1 : 0;
  return report.rounds > itself ? report.rounds - itself : 0;
}

void count_blocks(const Plan& plan, RankId rank, StepRow& row) {
  for (const Precision precision : plan.precision)
    ++row.precision_blocks[static_cast<std::size_t>(precision)];
  if (plan.profiles.empty()) return;
  for (const MemoryAction action : plan.profiles[profile_of(plan, rank).value()]) {
    row.recomputed_blocks += is_recompute(action) ? 1 : 0;
    row.offloaded_blocks += action == MemoryAction::offload ? 1 : 0;
    row.tiled_blocks += action == MemoryAction::tile ? 1 : 0;
  }
}

// The allocator's bytes are at least those of its tensors, which may have grown since the evidence.
void put_allocator(const RankSignal& report, StepRow& row) {
  if (report.fragment.kind != FragmentKind::allocator_evidence) return;
  const auto evidence = read_allocator_evidence(report.fragment);
  if (!evidence.ok()) return;
  row.allocator = *evidence;
  row.memory_reserved_bytes = std::max(evidence->reserved_bytes, report.memory_used_bytes);
  row.memory_peak_reserved_bytes = std::max(evidence->reserved_bytes, report.memory_peak_bytes);
}

void put_memory(const RankSignal& report, StepRow& row) {
  row.memory_alloc_bytes = report.memory_used_bytes;
  row.memory_peak_alloc_bytes = report.memory_peak_bytes;
  put_allocator(report, row);
  if (report.memory_limit_bytes == 0) return;
  const std::uint64_t used = std::min(report.memory_limit_bytes, report.memory_peak_bytes);
  row.headroom_bytes = static_cast<std::int64_t>(report.memory_limit_bytes - used);
}

std::map<std::int32_t, std::size_t> rows_of_ranks(
    std::span<const std::shared_ptr<const LiveRound>> rounds) {
  std::map<std::int32_t, std::size_t> rows;
  for (const auto& round : rounds) {
    for (const RankSignal& report : round->reports) ++rows[report.rank.value()];
  }
  return rows;
}

// Returns a record with the ranks of the rounds, without rows.
RunRecord empty_record(std::span<const std::shared_ptr<const LiveRound>> rounds) {
  RunRecord run;
  std::size_t most = 0;
  const auto rows = rows_of_ranks(rounds);
  for (const auto& [rank, count] : rows) most = std::max(most, count);
  for (const auto& [rank, count] : rows) {
    if (2 * count < most) {
      run.gaps.push_back(fmt::format("rank {}: left out, with {} of {} steps", rank, count, most));
      continue;
    }
    run.ranks.emplace_back().rank = rank;
    run.ranks.back().info.rank = rank;
  }
  return run;
}

// Returns the settings that rules read, as the newest plan has them.
std::vector<diagnosis::RunSetting> settings_of(
    std::span<const std::shared_ptr<const LiveRound>> rounds) {
  const auto newest = std::find_if(rounds.rbegin(), rounds.rend(),
                                   [](const auto& round) { return round->plan != nullptr; });
  if (newest == rounds.rend()) return {};
  const auto least = static_cast<double>((*newest)->plan->scaler.min_scale);
  return {{"loss_scale.min", fmt::format("{:.9g}", least)}};
}

// Returns the lowest rank of this rank's node.
std::int32_t node_of(std::span<const NodeId> node_of_rank, std::int32_t rank) {
  if (node_of_rank.empty()) return 0;
  const auto place = static_cast<std::size_t>(rank);
  if (place >= node_of_rank.size()) return -1;
  const auto lowest = std::ranges::find(node_of_rank, node_of_rank[place]);
  return static_cast<std::int32_t>(lowest - node_of_rank.begin());
}

// The steps that a view's rows stand for, and the ratio of their time to the rows' time. A row has
// the mean of its steps.
struct Coverage {
  std::size_t steps = 0;
  double times = 1;
};

Coverage coverage_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                     const diagnosis::RunView& view) {
  std::map<std::int64_t, std::uint32_t> steps;  // steps in the lowest rank's rows, by step number
  for (const auto& round : rounds) {
    for (const RankSignal& report : round->reports) {
      if (report.rank.value() == view.run->lowest().rank)
        steps[static_cast<std::int64_t>(report.step.value())] = steps_in(report);
    }
  }
  Coverage out;
  double of_rows = 0;
  double of_steps = 0;
  for (std::size_t s = 0; s < view.size(); ++s) {
    const std::uint32_t covered = steps[view.steps[s]];
    out.steps += covered;
    of_rows += view.wall(s);
    of_steps += view.wall(s) * covered;
  }
  if (of_rows > 0) out.times = of_steps / of_rows;
  return out;
}

}  // namespace

std::size_t window_rounds(std::size_t ranks) {
  return std::clamp(kWindowRows / std::max<std::size_t>(1, ranks), kLeastRounds, kWindowSteps);
}

void RoundShelf::note_allocator(const RankSignal& report) {
  if (report.fragment.kind != FragmentKind::allocator_evidence) return;
  const auto place = static_cast<std::size_t>(report.rank.value());
  if (place >= allocators_.size()) allocators_.resize(place + 1);
  allocators_[place] = report.fragment;
}

Fragment RoundShelf::allocator_of(RankId rank) const {
  const auto place = static_cast<std::size_t>(rank.value());
  return place < allocators_.size() ? allocators_[place] : Fragment{};
}

std::shared_ptr<const LiveRound> RoundShelf::round_of(const StepRecord& record) {
  const bool is_new = plans_.empty() || plans_.back()->id != record.plan.id;
  if (is_new) plans_.push_back(std::make_shared<const Plan>(record.plan));
  if (plans_.size() > kKept) plans_.erase(plans_.begin());
  auto round = std::make_shared<LiveRound>();
  round->now = record.signals.now;
  for (const RankSignal& report : record.signals.reports) {
    note_allocator(report);
    if (steps_in(report) == 0) continue;
    round->reports.push_back(report);
    round->reports.back().fragment = allocator_of(report.rank);
  }
  if (round->reports.empty()) return nullptr;
  const std::uint64_t applied = round->reports.front().plan_applied;
  for (const auto& plan : plans_) {
    if (plan->id.number == applied) round->plan = plan;
  }
  return round;
}

StepRow row_of(const RankSignal& report, const Plan* plan, UnixTime now) {
  StepRow row;
  row.step = report.step;
  row.round = report.round;
  row.timestamp = now.seconds;
  const auto rounds = static_cast<float>(std::max(steps_in(report), 1u));
  for (std::size_t p = 0; p < kPhases; ++p) row.phase_seconds[p] = report.phase_seconds[p] / rounds;
  if (report.has(SignalFlag::waiting_measured))
    row.waiting_seconds = report.waiting_seconds / rounds;
  row.recompute_seconds = report.recompute_seconds / rounds;
  row.save_seconds = report.save_seconds / rounds;
  row.reduction_seconds = report.reduction_seconds / rounds;
  row.reduction_exposed_seconds = report.reduction_exposed_seconds / rounds;
  if (report.weight > 0 || !std::isnan(report.loss)) row.loss = report.loss;
  if (!std::isnan(report.gradient_norm)) row.gradient_norm = report.gradient_norm;
  if (report.loss_scale > 0) row.loss_scale = static_cast<double>(report.loss_scale);
  put_memory(report, row);
  row.plan = report.plan_applied;
  row.overflow = report.nonfinite_values;
  row.was_skipped = report.has(SignalFlag::step_skipped);
  if (plan != nullptr) count_blocks(*plan, report.rank, row);
  return row;
}

RunRecord record_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                    const LiveFacts& facts) {
  RunRecord run = empty_record(rounds);
  run.decisions = facts.decisions;
  std::deque<io::StepLines> lines;
  std::map<std::int32_t, std::size_t> places;
  for (RankRecord& rank : run.ranks) {
    rank.info.world_size = static_cast<std::int32_t>(run.ranks.size());
    rank.info.node = node_of(facts.node_of_rank, rank.rank);
    places[rank.rank] = lines.size();
    lines.emplace_back(rank);
  }
  if (!run.ranks.empty()) run.ranks.front().info.config = settings_of(rounds);
  for (const auto& round : rounds) {
    for (const RankSignal& report : round->reports) {
      const auto place = places.find(report.rank.value());
      if (place != places.end())
        lines[place->second].take(step_line(row_of(report, round->plan.get(), round->now)));
    }
  }
  for (io::StepLines& of_rank : lines) of_rank.finish();
  return run;
}

FindingsView findings_of(std::span<const std::shared_ptr<const LiveRound>> rounds,
                         const LiveFacts& facts) {
  FindingsView out;
  const RunRecord run = record_of(rounds, facts);
  if (run.ranks.empty()) return out;
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, facts.options);
  out.findings = diagnosis::own_findings({&view, &budget, std::nullopt});
  const Coverage covered = coverage_of(rounds, view);
  for (diagnosis::Finding& f : out.findings) {
    if (f.cost_seconds) f.cost_seconds = *f.cost_seconds * covered.times;
  }
  out.ranks = run.ranks.size();
  out.steps = covered.steps;
  out.first_step = view.steps.empty() ? 0 : view.steps.front();
  out.last_step = view.steps.empty() ? 0 : view.steps.back();
  out.wall_seconds = budget.wall_seconds * covered.times;
  out.time = rounds.back()->now;
  return out;
}

}  // namespace cox::metrics
