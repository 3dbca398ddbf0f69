#include "metrics/analysis/whatif/trace_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

namespace cox::diagnosis {
namespace {

using Kind = OperationKind;
using Indices = std::vector<std::uint32_t>;  // indexes of keys
using Reach = OperationGroup::Reach;

constexpr double kNotLaunchedSeconds = 50e-6;
constexpr double kDoubtfulShare = 0.01;  // share of faulty operations from which no rank is named

constexpr std::array kPipelineKinds = {Kind::forward_send, Kind::forward_recv, Kind::backward_send,
                                       Kind::backward_recv};
constexpr std::array kDataParallelKinds = {Kind::params_all_gather, Kind::grads_reduce_scatter,
                                           Kind::separate_grads_all_reduce};

bool is_pipeline(Kind kind) {
  return std::ranges::count(kPipelineKinds, kind) > 0;
}

bool is_data_parallel(Kind kind) {
  return std::ranges::count(kDataParallelKinds, kind) > 0;
}

// Returns whether the simulation lets an operation wait for partners. The all-reduce of layer norms
// does not wait.
bool is_communication(Kind kind) {
  return is_pipeline(kind) || is_data_parallel(kind) || kind == Kind::embedding_grads_all_reduce ||
         kind == Kind::optimizer_clip_main_grad;
}

bool is_compute(Kind kind) {
  return kind == Kind::forward_compute || kind == Kind::backward_compute;
}

OperationType type_of(Kind kind) {
  OperationType type;
  type.name = to_string(kind);
  type.label = type.name;
  if (kind == Kind::forward_send || kind == Kind::forward_recv) type.label = "forward-pp-comm";
  if (kind == Kind::backward_send || kind == Kind::backward_recv) type.label = "backward-pp-comm";
  const bool is_ideal_median = is_communication(kind) || kind == Kind::layernorm_grads_all_reduce;
  if (is_ideal_median) type.centre = OperationType::Centre::median;
  if (is_pipeline(kind)) type.traffic = OperationType::Traffic::pipeline;
  if (is_data_parallel(kind)) type.traffic = OperationType::Traffic::data_parallel;
  return type;
}

// --- Directions of pipeline communication.

// A direction of pipeline communication: the compute, both ends, and the distance in stages.
struct Direction {
  Kind compute;
  Kind send;
  Kind receive;
  int to;  // stages further on
};
constexpr std::array<Direction, 2> kDirections = {
    {{Kind::forward_compute, Kind::forward_send, Kind::forward_recv, 1},
     {Kind::backward_compute, Kind::backward_send, Kind::backward_recv, -1}}};

// Builds the graph from one step of one data-parallel rank.
class GraphBuilder {
 public:
  explicit GraphBuilder(const Trace& trace) : trace_(trace), depends_on_(trace.keys.size()) {
    const std::size_t stages = trace.stages;
    by_kind_.assign(stages * kOperationKindNames.size(), {});
    for (std::uint32_t k = 0; k < trace.keys.size(); ++k)
      of(trace.keys[k].stage, trace.keys[k].kind).push_back(k);
    for (Indices& keys : by_kind_) sort_by_time(keys);
    chunks_ = count_chunks();
  }

  Result<OperationGraph> build() {
    if (Status chunks = check_chunks(); !chunks.ok()) return chunks;
    for (int stage = 0; stage < stages(); ++stage) {
      add_chain(computes(stage));
      for (const Kind kind : kPipelineKinds) add_chain(of(stage, kind));
      for (const Direction& direction : kDirections) {
        Status matched = match(stage, direction);
        if (!matched.ok()) return matched;
      }
      add_fill(stage);
      if (trace_.dp_ranks > 1) add_data_parallel(stage);
      add_tail(stage);
    }
    for (const Direction& direction : kDirections) {
      if (Status paired = pair(direction); !paired.ok()) return paired;
    }
    add_wide_groups();
    return ordered(std::move(groups_), std::move(depends_on_));
  }

  std::size_t chunks_of_stage() const {
    return std::max<std::size_t>(1, static_cast<std::size_t>(chunks_) / trace_.stages);
  }

 private:
  int stages() const { return static_cast<int>(trace_.stages); }
  Indices& of(int stage, Kind kind) {
    return by_kind_[static_cast<std::size_t>(stage) * kOperationKindNames.size() +
                    static_cast<std::size_t>(kind)];
  }
  double start(std::uint32_t key) const { return trace_.start[trace_.at(0, key, 0)]; }
  double end(std::uint32_t key) const { return trace_.end(trace_.at(0, key, 0)); }
  void sort_by_time(Indices& keys) const {
    std::ranges::sort(keys, {}, [this](std::uint32_t k) {
      return std::tuple(start(k), trace_.keys[k].sequence, trace_.keys[k].kind);
    });
  }
  Indices merged(Indices a, const Indices& b) const {
    a.insert(a.end(), b.begin(), b.end());
    sort_by_time(a);
    return a;
  }
  Indices computes(int stage) {
    return merged(of(stage, Kind::forward_compute), of(stage, Kind::backward_compute));
  }

  void depend(std::uint32_t later, std::uint32_t earlier) { depends_on_[later].push_back(earlier); }
  void add_chain(const Indices& keys) {
    for (std::size_t i = 1; i < keys.size(); ++i) depend(keys[i], keys[i - 1]);
  }

  // --- Chunks of the model.

  // Returns the place of a compute's chunk in the model. Assumes the interleaved layout if the
  // trace has no global chunk.
  int place_in_model(std::uint32_t compute) const {
    const TraceKey& key = trace_.keys[compute];
    if (key.global_chunk >= 0) return key.global_chunk;
    return std::max(key.chunk, 0) * stages() + key.stage;
  }
  int count_chunks() const {
    int last = -1;
    for (std::uint32_t k = 0; k < trace_.keys.size(); ++k) {
      if (is_compute(trace_.keys[k].kind)) last = std::max(last, place_in_model(k));
    }
    return last + 1;
  }
  bool is_interleaved() const { return chunks_ > stages(); }

  // Chunks go around the stages, so an unrecorded stage leaves holes.
  Status check_chunks() const {
    std::set<int> seen;
    for (std::uint32_t k = 0; k < trace_.keys.size(); ++k) {
      if (!is_compute(trace_.keys[k].kind)) continue;
      const int place = place_in_model(k);
      if (place % stages() != trace_.keys[k].stage)
        return invalid_argument("expected model chunk ", place, " in stage ", place % stages(),
                                " of ", stages(),
                                " (chunks go around the stages), found it in stage ",
                                trace_.keys[k].stage, ": are stages missing?");
      seen.insert(place);
    }
    if (seen.empty() ||
        (seen.size() == static_cast<std::size_t>(chunks_) && chunks_ % stages() == 0))
      return ok_status();
    return invalid_argument("expected computes of as many model chunks in each of ", stages(),
                            " stages, found ", seen.size(), " chunks, the last is ", chunks_ - 1);
  }

  // Returns whether the model continues after this compute in the direction `by`.
  bool has_neighbour(std::uint32_t compute, int by) const {
    const int place = place_in_model(compute) + by;
    return place >= 0 && place < chunks_;
  }

  // --- Sends and receives.

  // Returns the operations that the program launched. Others were recorded only: receives start
  // after the last compute, or sends end before the first.
  Indices launched(int stage, const Direction& direction, Kind kind) {
    const Indices& all = of(stage, kind);
    const Indices& work = of(stage, direction.compute);
    if (work.empty()) return all;
    const double last =
        start(*std::ranges::max_element(work, {}, [this](auto k) { return start(k); }));
    const double first =
        end(*std::ranges::min_element(work, {}, [this](auto k) { return end(k); }));
    Indices kept;
    for (const std::uint32_t k : all) {
      const bool is_late = kind == direction.receive && start(k) > last + kNotLaunchedSeconds;
      const bool is_early = kind == direction.send && end(k) < first - kNotLaunchedSeconds;
      if (!is_late && !is_early) kept.push_back(k);
    }
    return kept;
  }

  // Returns the indexes of the computes with `count` operations, in time order. A program with
  // several chunks a stage records an operation for each compute, for those with a partner, or for
  // all but the first receive.
  std::vector<std::size_t> partners(const Indices& work, std::size_t count, int by,
                                    bool receives) const {
    std::vector<std::size_t> all;
    std::vector<std::size_t> needed;
    for (std::size_t i = 0; i < work.size(); ++i) {
      all.push_back(i);
      if (has_neighbour(work[i], by)) needed.push_back(i);
    }
    if (count == all.size() || !is_interleaved()) return all;
    if (count == needed.size()) return needed;
    if (receives && count + 1 == all.size()) all.erase(all.begin());
    return all;
  }

  Status match(int stage, const Direction& direction) {
    for (const Kind kind : {direction.send, direction.receive}) {
      const bool receives = kind == direction.receive;
      const int by = receives ? -direction.to : direction.to;
      const Indices& work = of(stage, direction.compute);
      const Indices operations = launched(stage, direction, kind);
      const auto belongs = partners(work, operations.size(), by, receives);
      if (!work.empty() && operations.size() > belongs.size())
        return invalid_argument("stage ", stage, ": expected at most one ", kind, " for each of ",
                                work.size(), " ", direction.compute, ", found ", operations.size());
      for (std::size_t k = 0; k < operations.size(); ++k) {
        const bool is_matched = k < belongs.size();
        if (is_matched) join(operations[k], work, belongs[k], receives);
        const bool goes_on = stage + by >= 0 && stage + by < stages();
        if (is_matched && is_interleaved() ? has_neighbour(work[belongs[k]], by) : goes_on) {
          ends_[{stage, kind}].push_back(operations[k]);
        } else if (!is_interleaved()) {
          return invalid_argument("stage ", stage, ": expected no ", kind, " at the ",
                                  stage == 0 ? "first" : "last", " of ", stages(),
                                  " stages, found some: the rows of a stage are missing");
        }
      }
    }
    return ok_status();
  }

  void join(std::uint32_t operation, const Indices& work, std::size_t compute, bool receives) {
    if (!receives) return depend(operation, work[compute]);
    depend(work[compute], operation);
    if (compute > 0) depend(operation, work[compute - 1]);
  }

  Status pair(const Direction& direction) {
    for (int stage = 0; stage < stages(); ++stage) {
      const int other = (stage + direction.to + stages()) % stages();
      const Indices& sends = ends_[{stage, direction.send}];
      const Indices& receives = ends_[{other, direction.receive}];
      if (sends.empty() != receives.empty() &&
          is_absent(sends.empty() ? direction.send : direction.receive))
        continue;
      if (sends.size() != receives.size())
        return invalid_argument("expected as many ", direction.receive, " in stage ", other, " as ",
                                direction.send, " in stage ", stage, ", found ", receives.size(),
                                " and ", sends.size(), ": operations are missing");
      for (std::size_t k = 0; k < sends.size(); ++k)
        groups_.push_back({{sends[k], receives[k]}, Reach::dp_rank});
    }
    return ok_status();
  }
  bool is_absent(Kind kind) const {
    return std::ranges::count(trace_.keys, kind, &TraceKey::kind) == 0;
  }

  // While the pipeline fills, the first backward communication is launched one forward early.
  void add_fill(int stage) {
    const Indices work = computes(stage);
    const auto backward = std::ranges::find_if(
        work, [this](std::uint32_t k) { return trace_.keys[k].kind == Kind::backward_compute; });
    if (backward == work.end() || backward - work.begin() < 2) return;
    for (const Kind kind : {Kind::backward_send, Kind::backward_recv}) {
      if (!of(stage, kind).empty()) depend(of(stage, kind).front(), *(backward - 2));
    }
  }

  // --- Data parallelism and the end of the step.

  void add_data_parallel(int stage) {
    const Indices& gathers = of(stage, Kind::params_all_gather);
    const Indices& scatters = of(stage, Kind::grads_reduce_scatter);
    add_chain(merged(gathers, scatters));
    std::map<std::int32_t, std::uint32_t> newest;  // newest gather of each chunk
    for (const std::uint32_t k : gathers) {
      const auto [at, is_new] = newest.try_emplace(trace_.keys[k].chunk, k);
      if (!is_new && trace_.keys[k].sequence > trace_.keys[at->second].sequence) at->second = k;
    }
    for (const std::uint32_t compute : of(stage, Kind::forward_compute)) {
      const auto gather = newest.find(trace_.keys[compute].chunk);
      if (gather == newest.end()) continue;
      depend(compute, gather->second);
      newest.erase(gather);  // only the earliest compute of the chunk depends on the gather
    }
    if (is_overlapped(stage)) add_early_scatters(stage);
  }

  // Returns whether gradients are reduced while others are still computed.
  bool is_overlapped(int stage) { return !of(stage, Kind::separate_grads_all_reduce).empty(); }
  void add_early_scatters(int stage) {
    std::set<std::int32_t> seen;
    for (const std::uint32_t scatter : of(stage, Kind::grads_reduce_scatter)) {
      const std::int32_t chunk = trace_.keys[scatter].chunk;
      if (!seen.insert(chunk).second) continue;
      Indices work;
      for (const std::uint32_t k : of(stage, Kind::backward_compute)) {
        if (trace_.keys[k].chunk == chunk) work.push_back(k);
      }
      if (!work.empty()) depend(scatter, latest(work));
    }
  }
  std::uint32_t latest(const Indices& keys) const {
    return *std::ranges::max_element(keys, {}, [this](std::uint32_t k) { return end(k); });
  }

  void add_first(Indices& chain, int stage, Kind kind) {
    if (!of(stage, kind).empty()) chain.push_back(of(stage, kind).front());
  }
  void add_tail(int stage) {
    const bool is_parallel = trace_.dp_ranks > 1;
    Indices chain;
    if (const Indices work = computes(stage); !work.empty()) chain.push_back(latest(work));
    add_first(chain, stage, Kind::gc);
    const Indices& scatters = of(stage, Kind::grads_reduce_scatter);
    const std::size_t before = chain.size();
    add_first(chain, stage, Kind::layernorm_grads_all_reduce);
    if (stage == 0 || stage + 1 == stages())
      add_first(chain, stage, Kind::embedding_grads_all_reduce);
    if (is_parallel && is_overlapped(stage)) {
      add_first(chain, stage, Kind::separate_grads_all_reduce);
    } else if (is_parallel) {
      chain.insert(chain.end(), scatters.begin(), scatters.end());
    }
    add_first(chain, stage, Kind::optimizer_clip_main_grad);
    add_first(chain, stage, Kind::optimizer);
    add_chain(chain);
    if (is_parallel && is_overlapped(stage) && !scatters.empty() && before < chain.size())
      depend(chain[before], scatters.back());
  }

  void add_wide_groups() {
    OperationGroup embedding;
    OperationGroup clip{{}, Reach::all_dp_ranks};
    for (int stage = 0; stage < stages(); ++stage) {
      for (const Kind kind : kDataParallelKinds) {
        for (const std::uint32_t k : of(stage, kind)) groups_.push_back({{k}, Reach::all_dp_ranks});
      }
      if (stage == 0 || stage + 1 == stages())
        add_first(embedding.members, stage, Kind::embedding_grads_all_reduce);
      add_first(clip.members, stage, Kind::optimizer_clip_main_grad);
    }
    if (!embedding.members.empty()) groups_.push_back(std::move(embedding));
    if (!clip.members.empty()) groups_.push_back(std::move(clip));
  }

  const Trace& trace_;
  int chunks_ = 0;                // chunks in the model
  std::vector<Indices> by_kind_;  // [stage][kind], in time order
  std::map<std::pair<int, Kind>, Indices>
      ends_;  // [stage, kind]: sends and receives with a partner
  std::vector<OperationGroup> groups_;
  std::vector<Indices> depends_on_;
};

// --- Own times.

// Returns the latest start of a group's members in a step, for each data-parallel rank.
std::vector<double> latest_starts(const Trace& trace, const OperationGroup& group,
                                  std::size_t step) {
  std::vector<double> latest(trace.dp_ranks);
  for (const std::uint32_t member : group.members) {
    for (std::size_t d = 0; d < trace.dp_ranks; ++d)
      latest[d] = std::max(latest[d], trace.start[trace.at(step, member, d)]);
  }
  if (group.reach == Reach::all_dp_ranks)
    std::ranges::fill(latest, *std::ranges::max_element(latest));
  return latest;
}

// Removes waiting from communication. Returns how many negative times were set to zero.
std::size_t set_own_seconds(JobModel& model, const Trace& trace) {
  model.own_seconds = trace.seconds;
  std::size_t set_to_zero = 0;
  for (std::size_t s = 0; s < trace.steps.size(); ++s) {
    for (const OperationGroup& group : model.graph.groups) {
      if (!is_communication(trace.keys[group.members.front()].kind)) continue;
      const std::vector<double> latest = latest_starts(trace, group, s);
      for (const std::uint32_t member : group.members) {
        for (std::size_t d = 0; d < trace.dp_ranks; ++d) {
          const std::size_t place = trace.at(s, member, d);
          const double transfer = trace.end(place) - latest[d];
          const bool is_negative = transfer <= -kClockSeconds;
          model.own_seconds[place] = is_negative ? 0 : transfer;
          set_to_zero += is_negative ? 1 : 0;
        }
      }
    }
  }
  return set_to_zero;
}

// --- Gaps and doubts.

// Operations that start well before a dependency has ended.
struct EarlyStarts {
  std::size_t count = 0;
  std::string first;
};

EarlyStarts early_starts(const JobModel& model, const Trace& trace) {
  EarlyStarts early;
  for (std::size_t s = 0; s < trace.steps.size(); ++s) {
    for (std::uint32_t k = 0; k < trace.keys.size(); ++k) {
      const TraceKey& key = trace.keys[k];
      for (const std::uint32_t input : model.graph.depends_on[k]) {
        for (std::size_t d = 0; d < trace.dp_ranks; ++d) {
          const double by = trace.end(trace.at(s, input, d)) - trace.start[trace.at(s, k, d)];
          if (by < kClockSeconds || early.count++ > 0) continue;
          const std::int32_t rank =
              trace.ranks[d * trace.stages + static_cast<std::size_t>(key.stage)];
          early.first = fmt::format("{} {} of rank {} in step {} by {} s", to_string(key.kind),
                                    key.sequence, rank, trace.steps[s], significant(by, 2));
        }
      }
    }
  }
  return early;
}

void tell_clocks(JobModel& model, const Trace& trace, std::size_t set_to_zero) {
  const EarlyStarts early = early_starts(model, trace);
  if (set_to_zero > 0)
    model.gaps.push_back(
        fmt::format("{} communications end 10 ms or more before the start of the last operation "
                    "that they wait for, and count as taking no time: clocks of ranks disagree",
                    set_to_zero));
  if (early.count > 0)
    model.gaps.push_back(fmt::format(
        "{} times an operation starts 10 ms or more before the end of an operation that it needs "
        "({}): a clock ran backwards, or the program runs operations in another order",
        early.count, early.first));
  const auto faults = static_cast<double>(set_to_zero + early.count);
  if (faults > kDoubtfulShare * static_cast<double>(trace.start.size()))
    model.doubt = "clocks of ranks disagree";
}

bool has_kind(const Trace& trace, Kind kind, std::size_t stage) {
  return std::ranges::any_of(trace.keys, [kind, stage](const TraceKey& key) {
    return key.kind == kind && static_cast<std::size_t>(key.stage) == stage;
  });
}
bool has_kind(const Trace& trace, Kind kind) {
  return std::ranges::count(trace.keys, kind, &TraceKey::kind) > 0;
}

// If only one side of a wait was recorded, the delay of the missing side counts as the other side's
// own time.
void tell_halves(JobModel& model, const Trace& trace) {
  const auto tell = [&model](std::string_view what) {
    model.gaps.push_back(fmt::format(
        "the trace lacks {}; waiting for it counts as communication of the waiting ranks", what));
    model.doubt =
        fmt::format("the trace does not show how long ranks waited for the missing {}", what);
  };
  for (const Direction& direction : kDirections) {
    if (has_kind(trace, direction.send) == has_kind(trace, direction.receive)) continue;
    tell(to_string(has_kind(trace, direction.send) ? direction.receive : direction.send));
  }
  const std::size_t last = trace.stages - 1;
  constexpr Kind kEmbedding = Kind::embedding_grads_all_reduce;
  if (has_kind(trace, kEmbedding, 0) != has_kind(trace, kEmbedding, last))
    tell(fmt::format("{} of stage {}", to_string(kEmbedding),
                     has_kind(trace, kEmbedding, 0) ? last : 0));
  constexpr Kind kClip = Kind::optimizer_clip_main_grad;
  for (std::size_t stage = 0; stage < trace.stages && has_kind(trace, kClip); ++stage) {
    if (!has_kind(trace, kClip, stage))
      tell(fmt::format("{} of stage {}", to_string(kClip), stage));
  }
}

void tell_ranks(JobModel& model) {
  const auto world = static_cast<std::size_t>(*std::ranges::max_element(model.ranks)) + 1;
  if (world > model.ranks.size())
    model.gaps.push_back(
        fmt::format("the trace has {} ranks of at least {}: the others work alike and were not "
                    "recorded, or are missing",
                    model.ranks.size(), world));
}

void tell_missing_kinds(JobModel& model, const Trace& trace) {
  std::vector<Kind> expected = {Kind::forward_compute, Kind::backward_compute, Kind::optimizer};
  if (trace.stages > 1) {
    expected.insert(expected.end(), kPipelineKinds.begin(), kPipelineKinds.end());
    expected.push_back(Kind::embedding_grads_all_reduce);
  }
  if (trace.dp_ranks > 1)
    expected.insert(expected.end(), {Kind::params_all_gather, Kind::grads_reduce_scatter,
                                     Kind::optimizer_clip_main_grad});
  std::string names;
  for (const Kind kind : expected) {
    if (has_kind(trace, kind)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(kind));
  }
  if (!names.empty())
    model.gaps.push_back(fmt::format(
        "the trace has no {}: their time and the waits for them are not in the figures", names));
}

void add_operations(JobModel& model, const Trace& trace) {
  std::array<std::optional<std::uint16_t>, kOperationKindNames.size()> type_index;
  for (const TraceKey& key : trace.keys) {
    auto& index = type_index[static_cast<std::size_t>(key.kind)];
    if (!index) {
      index = static_cast<std::uint16_t>(model.types.size());
      model.types.push_back(type_of(key.kind));
    }
    model.operations.push_back({*index, static_cast<std::uint32_t>(key.stage)});
  }
}

double traced_seconds(const Trace& trace, std::size_t step) {
  const std::size_t begin = trace.at(step, 0, 0);
  double first = trace.start[begin];
  double last = 0;
  for (std::size_t place = begin; place < trace.at(step + 1, 0, 0); ++place) {
    first = std::min(first, trace.start[place]);
    last = std::max(last, trace.end(place));
  }
  return last - first;
}

}  // namespace

Result<JobModel> model_of(const Trace& trace) {
  GraphBuilder builder(trace);
  auto graph = builder.build();
  if (!graph.ok()) return graph.status();
  JobModel model;
  model.chunks = builder.chunks_of_stage();
  model.dp_ranks = trace.dp_ranks;
  model.stages = trace.stages;
  model.graph = *std::move(graph);
  model.ranks = trace.ranks;
  model.steps = trace.steps;
  model.gaps = trace.gaps;
  add_operations(model, trace);
  const std::size_t set_to_zero = set_own_seconds(model, trace);
  for (std::size_t s = 0; s < trace.steps.size(); ++s)
    model.traced_seconds.push_back(traced_seconds(trace, s));
  tell_ranks(model);
  tell_missing_kinds(model, trace);
  tell_halves(model, trace);
  tell_clocks(model, trace, set_to_zero);
  return model;
}

}  // namespace cox::diagnosis
