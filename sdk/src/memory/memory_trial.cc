#include "sdk/src/memory/memory_trial.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"
#include "sdk/src/memory/storage_levels.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

std::int64_t microseconds(Nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

Status no_chain(const std::string& found) {
  return failed_precondition("memory: expected blocks that run once a step, one after another, " +
                             found + "; activations are kept");
}

// Edges are where a trace changes from one stage to another: indices into its events, by edge, and
// by the place of the block in the forward pass.
struct Edges {
  std::vector<std::size_t> order;  // of the forward pass: indices of blocks
  std::array<std::vector<std::size_t>, 4> at;
  const std::vector<std::size_t>& operator[](std::size_t edge) const { return at[edge]; }
};

constexpr auto kForwardBegin = static_cast<std::size_t>(BlockEdge::forward_begin);
constexpr auto kForwardEnd = static_cast<std::size_t>(BlockEdge::forward_end);
constexpr auto kBackwardBegin = static_cast<std::size_t>(BlockEdge::backward_begin);
constexpr auto kBackwardEnd = static_cast<std::size_t>(BlockEdge::backward_end);

std::string block_text(std::size_t block) {
  return "block " + std::to_string(block);
}

// Notes where each block has its edges. The last end of a backward pass counts. A block that the
// backward pass asks for nothing (it saves nothing, or its results are detached) belongs to what
// runs before it, and is in no order.
Result<Edges> edges_of(const StepTrace& trace, std::size_t blocks) {
  const std::size_t none = trace.events.size();
  std::array<std::vector<std::size_t>, 4> seen;  // by edge and block
  seen.fill(std::vector<std::size_t>(blocks, none));
  Edges edges;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    std::size_t& place = seen[static_cast<std::size_t>(event.edge)][event.block.value()];
    if (place != none && event.edge != BlockEdge::backward_end)
      return no_chain("found one that runs twice (" + block_text(event.block.value()) + ")");
    place = i;
    if (event.edge == BlockEdge::forward_begin) edges.order.push_back(event.block.value());
  }
  const auto& backward = seen[kBackwardBegin];
  std::erase_if(edges.order, [&](std::size_t block) { return backward[block] == none; });
  for (std::size_t edge = 0; edge < seen.size(); ++edge) {
    for (const std::size_t block : edges.order) edges.at[edge].push_back(seen[edge][block]);
  }
  return edges;
}

// Returns ok when one block begins after another has ended, and backward goes the other way.
Status check_chain(const Edges& edges, std::size_t none) {
  std::size_t last = 0;
  for (std::size_t s = 0; s < edges.order.size(); ++s) {
    const bool in_order = edges[kForwardBegin][s] >= last &&
                          edges[kForwardEnd][s] > edges[kForwardBegin][s] &&
                          edges[kForwardEnd][s] < none;
    if (!in_order)
      return no_chain("found " + block_text(edges.order[s]) + " missing or out of order");
    last = edges[kForwardEnd][s];
  }
  for (std::size_t s = edges.order.size(); s-- > 0;) {
    if (edges[kBackwardBegin][s] <= last) {
      return no_chain("found the backward pass of " + block_text(edges.order[s]) + " out of order");
    }
    last = edges[kBackwardBegin][s];
  }
  return ok_status();
}

// Reads a trace between two of its events, both given by index; one past the last is the end.
class Reader {
 public:
  explicit Reader(const StepTrace& trace) : trace_(trace) {}

  std::int64_t live(std::size_t event) const { return trace_.events[event].live_bytes; }
  std::int64_t moved(std::size_t event) const { return trace_.events[event].moved_bytes; }
  // Returns the peak after `from`, up to `to`.
  std::int64_t peak(std::size_t from, std::size_t to) const {
    std::int64_t most = from < trace_.events.size() ? live(from) : trace_.start_bytes;
    for (std::size_t i = from + 1; i <= to && i < trace_.events.size(); ++i) {
      most = std::max(most, trace_.events[i].peak_bytes);
    }
    return to < trace_.events.size() ? most : std::max(most, trace_.end_peak_bytes);
  }
  std::int64_t us(std::size_t from, std::size_t to) const {
    return microseconds(time(to) - time(from));
  }
  std::size_t end() const { return trace_.events.size(); }

 private:
  Nanoseconds time(std::size_t event) const {
    return event < trace_.events.size() ? trace_.events[event].time : trace_.end;
  }
  const StepTrace& trace_;
};

// Reads the block at place `b` of the forward pass.
StageReading read_block(const Reader& reader, const Edges& edges, std::size_t b) {
  const bool is_last = b + 1 == edges[kForwardBegin].size();
  const std::size_t begin = edges[kForwardBegin][b];
  const std::size_t next = is_last ? edges[kForwardEnd][b] : edges[kForwardBegin][b + 1];
  const std::size_t back = edges[kBackwardBegin][b];
  const std::size_t back_end = std::max(back, std::min(edges[kBackwardEnd][b], reader.end()));
  const std::size_t back_next = b > 0 ? edges[kBackwardBegin][b - 1] : back_end;
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(next) - reader.live(begin));
  stage.forward_high_bytes = reader.peak(begin, next) - reader.live(begin);
  stage.backward_high_bytes = std::max<std::int64_t>(
      0, std::max(reader.live(back), reader.peak(back, back_next)) - reader.live(begin));
  stage.copied_bytes = reader.moved(next) - reader.moved(begin);
  stage.forward_us = reader.us(begin, edges[kForwardEnd][b]);
  stage.backward_us = reader.us(back, back_next);
  return stage;
}

// Reads the stage before the first block, and its backward pass, which goes on to the end.
StageReading read_before(const StepTrace& trace, const Reader& reader, const Edges& edges) {
  const std::size_t first = edges[kForwardBegin].front();
  const std::size_t back = std::max(edges[kBackwardBegin].front(),
                                    std::min(edges[kBackwardEnd].front(), reader.end() - 1));
  std::int64_t most = trace.start_bytes;
  for (std::size_t i = 0; i <= first; ++i) most = std::max(most, trace.events[i].peak_bytes);
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(first) - trace.start_bytes);
  stage.forward_high_bytes = most - trace.start_bytes;
  stage.backward_high_bytes =
      std::max<std::int64_t>(0, reader.peak(back, reader.end()) - trace.start_bytes);
  stage.forward_us = microseconds(trace.events[first].time - trace.start);
  stage.backward_us = reader.us(back, reader.end());
  return stage;
}

// Reads the stage from the end of the last block to the beginning of its backward pass.
StageReading read_after(const Reader& reader, const Edges& edges) {
  const std::size_t last = edges[kForwardEnd].back();
  const std::size_t back = edges[kBackwardBegin].back();
  StageReading stage;
  stage.forward_high_bytes = reader.peak(last, back) - reader.live(last);
  stage.forward_us = reader.us(last, back);
  return stage;
}

StageOption& option(MemoryProblem& problem, std::size_t stage, MemoryAction action) {
  return problem.stages[stage].options[static_cast<std::size_t>(action)];
}

StageOption option_of(const StageReading& reading) {
  return {true, reading.kept_bytes, reading.forward_high_bytes, reading.backward_high_bytes};
}

// The stages before and after the blocks take the most that any pass saw there.
void note_gaps(MemoryProblem& problem, const StepReading& reading) {
  for (const std::size_t stage : {std::size_t{0}, problem.stages.size() - 1}) {
    const StageOption seen = option_of(reading.stages[stage]);
    StageOption& kept = option(problem, stage, MemoryAction::keep);
    kept.allowed = true;
    kept.kept_bytes = std::max(kept.kept_bytes, seen.kept_bytes);
    kept.forward_high_bytes = std::max(kept.forward_high_bytes, seen.forward_high_bytes);
    kept.backward_high_bytes = std::max(kept.backward_high_bytes, seen.backward_high_bytes);
    problem.stages[stage].forward_us = reading.stages[stage].forward_us;
    problem.stages[stage].backward_us = reading.stages[stage].backward_us;
  }
  problem.base_bytes = std::max(problem.base_bytes, reading.start_bytes);
}

void note_kept(MemoryProblem& problem, const StepReading& reading, std::size_t s) {
  Stage& stage = problem.stages[s];
  stage.forward_us = reading.stages[s].forward_us;
  stage.backward_us = reading.stages[s].backward_us;
  option(problem, s, MemoryAction::keep) = option_of(reading.stages[s]);
}

// Notes what the action took on this stage. `added_us` is its time beyond keep.
void note_tried(MemoryProblem& problem, const StepReading& reading, std::size_t s,
                MemoryAction action, std::int64_t added_us) {
  StageOption& tried = option(problem, s, action);
  tried = option_of(reading.stages[s]);
  tried.allowed = tried.kept_bytes < option(problem, s, MemoryAction::keep).kept_bytes;
  tried.added_us = std::max<std::int64_t>(1, added_us);
}

MemoryProblem empty_problem(const std::vector<std::size_t>& order) {
  MemoryProblem problem;
  problem.stages.resize(order.size() + 2);
  for (std::size_t s = 0; s < order.size(); ++s) {
    problem.stages[s + 1].block = static_cast<std::int32_t>(order[s]);
  }
  return problem;
}

using planner::RankProblem;

// Returns the highest level that a step with these stages reaches.
std::int64_t peak_bytes(const StepReading& reading) {
  std::int64_t level = reading.start_bytes;
  std::int64_t most = level;
  for (const StageReading& stage : reading.stages) {
    most = std::max({most, level + stage.forward_high_bytes, level + stage.backward_high_bytes});
    level += stage.kept_bytes;
  }
  return most;
}

// Returns the stages to keep in each of the passes that together keep every block once: as few
// passes as fit into `budget_bytes`, going by what each block took while it was recomputed. A slice
// has at least one stage.
std::vector<std::vector<std::size_t>> slices(const StepReading& recomputed,
                                             std::int64_t budget_bytes) {
  const std::int64_t room = budget_bytes - peak_bytes(recomputed);
  std::vector<std::vector<std::size_t>> all(1);
  std::int64_t held = 0;
  for (std::size_t s = 1; s + 1 < recomputed.stages.size(); ++s) {
    // While its backward runs, a recomputed block holds what keep would have held since forward.
    const StageReading& stage = recomputed.stages[s];
    const std::int64_t interior = std::max(stage.forward_high_bytes, stage.backward_high_bytes);
    if (budget_bytes > 0 && !all.back().empty() && held + interior > room) {
      all.emplace_back();
      held = 0;
    }
    all.back().push_back(s);
    held += interior;
  }
  return all;
}

// Runs the passes of measure_problem(): first with all blocks recomputed, which takes the least
// memory, then with as many kept at a time as the budget has room for, then the other actions.
class ProblemTrial {
 public:
  ProblemTrial(std::size_t blocks, const TrialSettings& settings, const TrialPass& pass)
      : blocks_(blocks),
        settings_(settings),
        pass_(pass),
        recomputes_(contains(settings.actions, MemoryAction::recompute)),
        lightest_(recomputes_ ? MemoryAction::recompute : MemoryAction::keep) {}

  Result<MemoryProblem> run() {
    Status tried = try_least();
    if (tried.ok()) tried = try_kept();
    const bool has_levels = recomputes_ && settings_.levels != nullptr;
    if (tried.ok() && has_levels) tried = try_levels();
    if (tried.ok()) tried = try_others();
    const bool may_take_more = settings_.levels != nullptr || settings_.other_peak != nullptr;
    if (tried.ok() && may_take_more) tried = try_plans();
    return tried.ok() ? Result<MemoryProblem>(std::move(problem_)) : Result<MemoryProblem>(tried);
  }

 private:
  Result<StepReading> run_pass(const Actions& actions) {
    auto reading = pass_(actions);
    if (reading.ok() && !least_.order.empty() && reading->order != least_.order)
      return no_chain("found another order of blocks in another run of the same step");
    return reading;
  }

  // The first pass of a process also makes what stays for all later ones; it is not read.
  Status try_least() {
    const auto first = pass_(Actions(blocks_, lightest_));
    if (!first.ok()) return first.status();
    least_.order = first->order;
    auto least = run_pass(all(lightest_));
    if (!least.ok()) return least.status();
    least_ = std::move(*least);
    problem_ = empty_problem(least_.order);
    note_gaps(problem_, least_);
    return ok_status();
  }

  Status try_kept() {
    for (const auto& slice : slices_within_budget()) {
      Actions actions = all(lightest_);
      for (const std::size_t s : slice) actions[least_.order[s - 1]] = MemoryAction::keep;
      const auto kept = run_pass(actions);
      if (!kept.ok()) return kept.status();
      note_gaps(problem_, *kept);
      for (const std::size_t s : slice) note_kept(problem_, *kept, s);
    }
    for (std::size_t s = 1; recomputes_ && s + 1 < problem_.stages.size(); ++s)
      note_tried(problem_, least_, s, MemoryAction::recompute,
                 recompute_us(s, MemoryAction::recompute));
    return ok_status();
  }

  Status try_levels() {
    for (unsigned n = 1; n <= kRecomputeLevels; ++n) {
      for (const auto& slice : slices_within_budget()) {
        if (Status tried = try_level(recompute_level(n), n, slice); !tried.ok()) return tried;
      }
    }
    return ok_status();
  }

  Status try_level(MemoryAction action, unsigned n, const std::vector<std::size_t>& slice) {
    Actions actions = all(lightest_);
    bool has_any = false;
    for (const std::size_t s : slice) {
      if (settings_.levels->count(least_.order[s - 1]) < n) continue;
      actions[least_.order[s - 1]] = action;
      has_any = true;
    }
    if (!has_any) return ok_status();
    const auto tried = run_pass(actions);
    if (!tried.ok()) return tried.status();
    note_gaps(problem_, *tried);
    for (const std::size_t s : slice) {
      if (actions[least_.order[s - 1]] == action)
        note_tried(problem_, *tried, s, action, recompute_us(s, action));
    }
    return ok_status();
  }

  Status try_others() {
    for (const MemoryAction action : {MemoryAction::tile, MemoryAction::offload}) {
      if (!contains(settings_.actions, action)) continue;
      if (action == MemoryAction::tile && settings_.has_tiles && !settings_.has_tiles()) continue;
      const auto tried = run_pass(all(action));
      if (!tried.ok()) return tried.status();
      note_gaps(problem_, *tried);
      for (std::size_t s = 1; s + 1 < problem_.stages.size(); ++s) note_other(*tried, s, action);
    }
    return ok_status();
  }

  // Stages need not add up where several blocks hold the same memory (a skip connection): what some
  // of them drop alone stays. And other steps of the loop may take more than the one that was
  // measured. So some plans are tried as a whole, in all steps, and the most that one takes beyond
  // the sum of its stages is counted with all of them.
  Status try_plans() {
    const auto solved = planner::solve_front(problem_);
    if (!solved.ok()) return solved.status();
    std::vector<const MemoryPoint*> affordable;
    for (const MemoryPoint& point : solved->front) {
      if (settings_.budget_bytes <= 0 || point.peak_bytes <= settings_.budget_bytes)
        affordable.push_back(&point);
    }
    // Where nothing fits, what would is said: the plan of least memory, as it is, too.
    if (affordable.empty() && !solved->front.empty())
      affordable.push_back(&*std::ranges::min_element(solved->front, {}, &MemoryPoint::peak_bytes));
    std::int64_t most = 0;
    for (std::size_t i = 0; i < std::min(kPlansTried, affordable.size()); ++i) {
      const std::size_t last = affordable.size() - 1;
      const std::size_t at = affordable.size() <= kPlansTried ? i : i * last / (kPlansTried - 1);
      const auto peak = peak_under(actions_of(*affordable[at]));
      if (!peak.ok()) return peak.status();
      most = std::max(most, *peak - affordable[at]->peak_bytes);
    }
    option(problem_, 0, MemoryAction::keep).kept_bytes += most;
    return ok_status();
  }

  Result<std::int64_t> peak_under(const Actions& actions) {
    const auto reading = run_pass(actions);
    if (!reading.ok()) return reading.status();
    if (!settings_.other_peak) return reading->peak_bytes;
    const auto other = settings_.other_peak(actions);
    return other.ok() ? std::max(*other, reading->peak_bytes) : other;
  }

  // A block without a stage is kept, as it is under every plan.
  Actions all(MemoryAction action) const {
    Actions actions(blocks_, MemoryAction::keep);
    for (const std::size_t block : least_.order) actions[block] = action;
    return actions;
  }

  Actions actions_of(const MemoryPoint& point) const {
    Actions actions(blocks_, MemoryAction::keep);
    for (std::size_t s = 1; s + 1 < point.actions.size(); ++s)
      actions[least_.order[s - 1]] = point.actions[s];
    return actions;
  }

  // A tile runs again as a whole block does; offloading waits for its copies both ways.
  void note_other(const StepReading& tried, std::size_t s, MemoryAction action) {
    const bool is_offload = action == MemoryAction::offload;
    const std::int64_t stored_bytes = is_offload ? tried.stages[s].copied_bytes : 0;
    const std::int64_t copy_us =
        2000 * stored_bytes / std::max<std::int64_t>(1, settings_.copy_bytes_per_ms);
    note_tried(problem_, tried, s, action, is_offload ? copy_us : problem_.stages[s].forward_us);
    option(problem_, s, action).stored_bytes = stored_bytes;
  }

  // Running a block again takes what running it took, unless its operators were measured.
  std::int64_t recompute_us(std::size_t s, MemoryAction action) const {
    const std::int64_t known =
        settings_.levels == nullptr ? 0 : settings_.levels->added_us(least_.order[s - 1], action);
    return known > 0 ? known : problem_.stages[s].forward_us;
  }

  std::vector<std::vector<std::size_t>> slices_within_budget() const {
    return slices(least_, recomputes_ ? settings_.budget_bytes : 0);
  }

  static constexpr std::size_t kPlansTried = 8;

  const std::size_t blocks_;
  const TrialSettings& settings_;
  const TrialPass& pass_;
  const bool recomputes_;
  const MemoryAction lightest_;
  StepReading least_;
  MemoryProblem problem_;
};

// A problem travels as its head, with -1 for what is not set, and its stages as they lie in memory:
// all ranks run the same program.
constexpr std::size_t kHeadWords = 6;
constexpr std::size_t kStageWords = sizeof(Stage) / sizeof(std::int64_t);
static_assert(std::is_trivially_copyable_v<Stage> && sizeof(Stage) % sizeof(std::int64_t) == 0);

std::vector<std::int64_t> to_words(const RankProblem& rank) {
  const MemoryProblem& problem = rank.problem;
  std::vector<std::int64_t> words = {rank.limit_bytes,
                                     static_cast<std::int64_t>(rank.samples),
                                     problem.base_bytes,
                                     problem.copy_bytes_per_ms,
                                     problem.tier_bytes.value_or(-1),
                                     problem.most_recomputed.value_or(-1)};
  words.resize(kHeadWords + problem.stages.size() * kStageWords);
  std::memcpy(words.data() + kHeadWords, problem.stages.data(),
              problem.stages.size() * sizeof(Stage));
  return words;
}

Result<RankProblem> from_words(const std::vector<std::int64_t>& words) {
  const std::size_t stages = (std::max(words.size(), kHeadWords) - kHeadWords) / kStageWords;
  if (words.size() != kHeadWords + stages * kStageWords || stages > planner::kMaxStages) {
    return invalid_argument(
        sentence("memory problem: expected %zu words and %zu a stage, found %zu", kHeadWords,
                 kStageWords, words.size()));
  }
  RankProblem rank{{}, words[0], static_cast<std::uint64_t>(words[1])};
  rank.problem.base_bytes = words[2];
  rank.problem.copy_bytes_per_ms = words[3];
  if (words[4] >= 0) rank.problem.tier_bytes = words[4];
  if (words[5] >= 0) rank.problem.most_recomputed = static_cast<std::int32_t>(words[5]);
  rank.problem.stages.resize(stages);
  std::memcpy(static_cast<void*>(rank.problem.stages.data()), words.data() + kHeadWords,
              stages * sizeof(Stage));
  return rank;
}

}  // namespace

void TraceRecorder::start(Nanoseconds now, std::function<std::int64_t()> moved) {
  const std::scoped_lock lock(mutex_);
  memory_.reset_peak();
  trace_ = {};
  trace_.start = now;
  moved_ = std::move(moved);
  trace_.start_bytes = memory_.count().live_bytes;
  running_ = true;
}

void TraceRecorder::note(BlockId block, BlockEdge edge, Nanoseconds now) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!running_) return;
  const MemoryCount count = memory_.count();
  const std::int64_t moved = moved_ ? moved_() : 0;
  trace_.events.push_back({block, edge, now, count.live_bytes, count.peak_bytes, moved});
  memory_.reset_peak();
}

StepTrace TraceRecorder::finish(Nanoseconds now) {
  const std::scoped_lock lock(mutex_);
  running_ = false;
  trace_.end = now;
  trace_.end_peak_bytes = memory_.count().peak_bytes;
  return std::exchange(trace_, {});
}

Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks) {
  if (blocks == 0) return no_chain("found none");
  const auto edges = edges_of(trace, blocks);
  if (!edges.ok()) return edges.status();
  if (edges->order.empty()) return no_chain("found none that ran forward and backward");
  if (Status chain = check_chain(*edges, trace.events.size()); !chain.ok()) return chain;
  const Reader reader(trace);
  StepReading reading;
  reading.start_bytes = trace.start_bytes;
  reading.peak_bytes = std::max(trace.start_bytes, trace.end_peak_bytes);
  for (const TraceEvent& event : trace.events)
    reading.peak_bytes = std::max(reading.peak_bytes, event.peak_bytes);
  reading.stages.push_back(read_before(trace, reader, *edges));
  for (std::size_t s = 0; s < edges->order.size(); ++s)
    reading.stages.push_back(read_block(reader, *edges, s));
  reading.stages.push_back(read_after(reader, *edges));
  reading.order = edges->order;
  return reading;
}

Result<MemoryProblem> measure_problem(std::size_t blocks, const TrialSettings& settings,
                                      const TrialPass& pass) {
  return ProblemTrial(blocks, settings, pass).run();
}

Result<std::vector<RankProblem>> gather_problems(transport::Communicator& ranks,
                                                 const RankProblem& mine) {
  const auto rows = gather_rows(ranks, to_words(mine), "all ranks to measure their memory");
  if (!rows.ok()) return rows.status();
  std::vector<RankProblem> problems;
  for (const auto& row : *rows) {
    auto problem = from_words(row);
    if (!problem.ok()) return problem.status();
    problems.push_back(std::move(*problem));
  }
  return problems;
}

}  // namespace cox::detail
