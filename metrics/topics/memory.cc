#include "metrics/topics/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "coordinator/core/share_units.h"
#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/plan_counts.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show the tightest only
constexpr std::size_t kTightestShown = 8;
constexpr std::size_t kRunsShown = 16;

// Kind is the figures of the ranks that share a profile and a model.
struct Kind {
  RankMemoryView rank;
  std::int64_t kept_block_bytes = 0;
};

bool keeps_all(const std::vector<MemoryAction>& actions) {
  return std::all_of(actions.begin(), actions.end(),
                     [](MemoryAction action) { return action == MemoryAction::keep; });
}

std::int64_t block_bytes(const MemoryModel& model, const std::vector<MemoryAction>* actions) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < model.kept_bytes.size(); ++b) {
    const bool is_kept =
        actions == nullptr || (b < actions->size() && (*actions)[b] == MemoryAction::keep);
    if (is_kept) bytes += model.kept_bytes[b];
  }
  return bytes;
}

Kind kind_of(const MemoryModel& model, const std::vector<MemoryAction>& actions) {
  Kind kind;
  // If some blocks are forced, no plan that keeps all blocks was measured.
  const bool knows_keep_all = !model.front.empty() && keeps_all(model.front.back().actions);
  if (knows_keep_all) kind.rank.keep_all_peak_bytes = model.front.back().peak_bytes;
  if (const std::optional<MemoryCost> cost = cost_of(model, actions)) {
    kind.rank.predicted_peak_bytes = cost->peak_bytes;
    if (model.step_us > 0) {
      kind.rank.added_ratio =
          static_cast<double>(cost->added_us) / static_cast<double>(model.step_us);
    }
  }
  kind.kept_block_bytes = block_bytes(model, &actions);
  return kind;
}

// Scales the predictions from the samples of the model's measurement to `samples`.
void fit_to(std::uint64_t samples, const MemoryModel& model, RankMemoryView& rank) {
  rank.predicted_peak_bytes = peak_with(model, rank.predicted_peak_bytes, samples);
  rank.keep_all_peak_bytes = peak_with(model, rank.keep_all_peak_bytes, samples);
}

void add(MemoryView& view, const RankMemoryView& rank) {
  view.predicted_peak_bytes = std::max(view.predicted_peak_bytes, rank.predicted_peak_bytes);
  view.keep_all_peak_bytes = std::max(view.keep_all_peak_bytes, rank.keep_all_peak_bytes);
  if (rank.predicted_peak_bytes > 0 && rank.keep_all_peak_bytes > 0) {
    view.saved_bytes =
        std::max(view.saved_bytes, rank.keep_all_peak_bytes - rank.predicted_peak_bytes);
  }
  if (rank.budget_bytes > 0 && (view.budget_bytes == 0 || rank.budget_bytes < view.budget_bytes)) {
    view.budget_bytes = rank.budget_bytes;
  }
  view.added_ratio = std::fmax(view.added_ratio, rank.added_ratio);  // ignores NaN
}

struct HeldKind {
  std::string_view name;
  std::int64_t HeldBytes::*bytes;
};
constexpr std::array<HeldKind, 4> kHeldKinds = {{{"parameters", &HeldBytes::parameters},
                                                 {"gradients", &HeldBytes::gradients},
                                                 {"optimizer", &HeldBytes::optimizer},
                                                 {"buckets", &HeldBytes::buckets}}};

double known(std::int64_t bytes) {
  return bytes > 0 ? static_cast<double>(bytes) : kUnknown;
}

bool has_headroom(const Snapshot& s) {
  return s.view<MemoryHeadroom>().tightest.value() >= 0;
}

// Reads bytes of the view; NaN, which is not exported, if the bytes are unknown.
Reader view_bytes(std::int64_t MemoryView::*bytes) {
  return value([bytes](const Snapshot& s) { return known(s.view<MemoryView>().*bytes); });
}

Reader held_bytes() {
  std::vector<Case> kinds;
  for (const HeldKind& kind : kHeldKinds)
    kinds.push_back({std::string(kind.name), [bytes = kind.bytes](const Snapshot& s) {
                       return known(s.view<HeldBytes>().*bytes);
                     }});
  return cases("kind", std::move(kinds));
}

const std::string kOrAbsent = "; absent where it is not known, as where memory is not planned";

std::vector<Metric> budget_metrics() {
  using S = const Snapshot&;
  using V = MemoryView;
  return {
      gauge("coxswain_memory_predicted_peak_bytes", "bytes",
            "Highest peak that a rank is predicted to have under the newest plan" + kOrAbsent,
            view_bytes(&V::predicted_peak_bytes)),
      gauge("coxswain_memory_keep_all_peak_bytes", "bytes",
            "Highest peak that a rank is predicted to have with every block kept" + kOrAbsent,
            view_bytes(&V::keep_all_peak_bytes)),
      gauge("coxswain_memory_budget_bytes", "bytes", "Lowest budget of a rank" + kOrAbsent,
            view_bytes(&V::budget_bytes)),
      gauge("coxswain_memory_headroom_bytes", "bytes",
            "Least that a rank's measured peak of the newest round is below its budget, or below "
            "what its machine lets it have where that is less; negative is above it" +
                kOrAbsent,
            value([](S s) {
              return has_headroom(s) ? static_cast<double>(s.view<MemoryHeadroom>().least_bytes)
                                     : kUnknown;
            })),
      gauge("coxswain_memory_tightest_rank", "",
            "The rank with that headroom; -1 where none is known",
            value([](S s) { return s.view<MemoryHeadroom>().tightest.value(); })),
      gauge("coxswain_memory_over_budget_ranks", "ranks",
            "Ranks whose measured peak of the newest round is above their budget",
            value(&MemoryHeadroom::over_budget)),
      gauge("coxswain_memory_added_time_ratio", "ratio",
            "Most time that the newest plan is predicted to add to a rank's step, divided by the "
            "step with every block kept" +
                kOrAbsent,
            value(&MemoryView::added_ratio)),
  };
}

std::vector<Metric> held_metrics() {
  using S = const Snapshot&;
  return {
      gauge("coxswain_memory_resident_bytes", "bytes",
            "What a rank holds all through a step (parameters, gradients, optimizer state, "
            "buckets), most of a rank" +
                kOrAbsent,
            view_bytes(&MemoryView::resident_bytes)),
      gauge("coxswain_memory_held_bytes", "bytes",
            "What every rank holds beside activations, by what it is: gradients are those at the "
            "end of a backward pass, optimizer is its state after the first step; absent where it "
            "is not known",
            held_bytes()),
      gauge("coxswain_memory_activation_bytes", "bytes",
            "What blocks hold for the backward pass, most of a rank: all of them when every one is "
            "kept, and those that the newest plan keeps" +
                kOrAbsent,
            cases("blocks",
                  {{"all", [](S s) { return known(s.view<MemoryView>().keep_all_block_bytes); }},
                   {"kept_by_plan",
                    [](S s) {
                      const MemoryView& view = s.view<MemoryView>();
                      return view.keep_all_block_bytes > 0
                                 ? static_cast<double>(view.plan_kept_block_bytes)
                                 : kUnknown;
                    }}})),
  };
}

// MadeOf owns the inputs of the MemoryView, so an equal pointer means an equal input.
struct MadeOf {
  std::shared_ptr<const JobFacts> job;
  std::shared_ptr<const Plan> plan;
};

// Rebuilds the view only if one of its inputs has changed.
void follow(const Round& round, Snapshot& now) {
  if (!round.has_figures) return;
  const StepRecord& record = round.record;
  const MadeOf& made_of = now.view<MadeOf>();
  const bool is_made = made_of.job == now.job && made_of.plan == now.plan &&
                       has_budgets(now.view<MemoryView>(), record.memory_budget_bytes);
  if (!is_made) {
    now.views.set(memory_view(*now.job, *now.plan, record.memory_budget_bytes));
    now.views.set(std::make_shared<const MadeOf>(MadeOf{now.job, now.plan}));
  }
  now.views.set(std::make_shared<const MemoryHeadroom>(
      memory_headroom(now.view<MemoryView>(), record.signals)));
}

std::vector<Metric> metrics() {
  return joined(budget_metrics(), held_metrics());
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  put_memory(json, s);
  json.key("held_bytes").begin_object();
  for (const HeldKind& kind : kHeldKinds)
    put_known(json, kind.name, s.view<HeldBytes>().*kind.bytes);
  json.end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.field("memory_used_bytes", row.report.memory_used_bytes);
  json.field("memory_peak_bytes", row.report.memory_peak_bytes);
  json.field("memory_limit_bytes", row.report.memory_limit_bytes);
  const auto rank = static_cast<std::size_t>(row.report.rank.value());
  const auto& planned = s.view<MemoryView>().ranks;
  const RankMemoryView view = rank < planned.size() ? planned[rank] : RankMemoryView{};
  put_known(json, "memory_predicted_peak_bytes", view.predicted_peak_bytes);
  put_known(json, "memory_keep_all_peak_bytes", view.keep_all_peak_bytes);
  put_known(json, "memory_budget_bytes", view.budget_bytes);
  json.field("memory_added_time_ratio", view.added_ratio);
}

std::string known_text(std::int64_t bytes) {
  return bytes > 0 ? bytes_text(static_cast<std::uint64_t>(bytes)) : "–";
}

// Returns "+3.2 %"; a dash if the time of a step is unknown.
std::string added_text(double ratio) {
  return std::isfinite(ratio) ? "+" + percent_text(ratio, 1) : "–";
}

// Returns "1.2 MiB", "−300 KiB".
std::string signed_bytes(std::int64_t bytes) {
  return bytes < 0 ? "−" + bytes_text(static_cast<std::uint64_t>(-bytes))
                   : bytes_text(static_cast<std::uint64_t>(bytes));
}

// Returns the bytes between a rank's peak and the lower of its budget and limit; negative if the
// peak is higher. REQUIRES: both the budget and the peak are known.
std::int64_t left_of(std::int64_t budget_bytes, const RankSignal& report) {
  const auto bounded = [](std::uint64_t bytes) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return static_cast<std::int64_t>(std::min(bytes, kMost));
  };
  const std::int64_t limit =
      report.memory_limit_bytes > 0 ? bounded(report.memory_limit_bytes) : budget_bytes;
  return std::min(budget_bytes, limit) - bounded(report.memory_peak_bytes);
}

struct RankLine {
  const RankSignal* report = nullptr;
  RankMemoryView view;

  bool has_headroom() const { return view.budget_bytes > 0 && report->memory_peak_bytes > 0; }
  std::int64_t headroom() const { return left_of(view.budget_bytes, *report); }
  bool is_over_budget() const {
    return has_headroom() &&
           report->memory_peak_bytes > static_cast<std::uint64_t>(view.budget_bytes);
  }
};

// Orders by headroom, least first. Ranks of unknown headroom follow, highest peak first.
bool is_tighter(const RankLine& a, const RankLine& b) {
  if (a.has_headroom() != b.has_headroom()) return a.has_headroom();
  if (a.has_headroom() && a.headroom() != b.headroom()) return a.headroom() < b.headroom();
  const auto peak = [](const RankLine& line) { return line.report->memory_peak_bytes; };
  return peak(a) != peak(b) ? peak(a) > peak(b) : a.report->rank < b.report->rank;
}

std::vector<RankLine> lines_shown(const Snapshot& s) {
  const auto& planned = s.view<MemoryView>().ranks;
  std::vector<RankLine> lines;
  for (const RankRow& row : s.view<RanksView>().table->rows) {
    const auto rank = static_cast<std::size_t>(row.report.rank.value());
    if (rank < planned.size()) lines.push_back({&row.report, planned[rank]});
  }
  if (lines.size() <= kShowAll) return lines;
  std::partial_sort(lines.begin(), lines.begin() + kTightestShown, lines.end(), is_tighter);
  lines.resize(kTightestShown);
  return lines;
}

Record row_of(const RankLine& line) {
  const bool has_headroom = line.has_headroom();
  const double part = has_headroom ? static_cast<double>(line.report->memory_peak_bytes) /
                                         static_cast<double>(line.view.budget_bytes)
                                   : 0;
  return {{"rank", line.report->rank.value()},
          {"predicted", known_text(line.view.predicted_peak_bytes)},
          {"real", known_text(static_cast<std::int64_t>(line.report->memory_peak_bytes))},
          {"budget", known_text(line.view.budget_bytes)},
          {"left", has_headroom ? signed_bytes(line.headroom()) : "–"},
          {"part", has_headroom ? fixed(100 * std::min(part, 1.0), 1) : ""},
          {"class", part > 1 ? "over" : "ph2"},
          {"added", added_text(line.view.added_ratio)},
          {"is_over_budget", line.is_over_budget()}};
}

// Returns "recompute 2 of 7", or "offload on 2 of 4 ranks, keep on 2" if ranks differ. Keep comes
// last.
std::string action_text(const ActionRanks& ranks) {
  std::int32_t world = 0;
  for (const std::int32_t count : ranks) world += count;
  std::string text;
  const auto add = [&](MemoryAction action) {
    const std::int32_t count = ranks[static_cast<std::size_t>(action)];
    if (count == 0) return;
    const std::string all = text.empty() ? fmt::format(" of {} ranks", world) : "";
    text += fmt::format("{}{} on {}{}", text.empty() ? "" : ", ", in_words(action), count, all);
  };
  for (const MemoryAction action : kActionsInOrder) {
    if (ranks[static_cast<std::size_t>(action)] == world) return std::string(in_words(action));
    if (action != MemoryAction::keep) add(action);
  }
  add(MemoryAction::keep);
  return text;
}

// Returns one row for neighbouring blocks with the same actions on the same number of ranks.
List block_rows(const Snapshot& s) {
  const std::vector<ActionRanks> ranks = action_ranks(*s.plan, s.job->world_size);
  List rows;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[first]) ++last;
    rows.push_back(
        {{"blocks", block_names(*s.job, first, last)}, {"action", action_text(ranks[first])}});
    first = last + 1;
  }
  return rows;
}

// Returns "Every rank holds parameters 3.2 MiB, optimizer 6.4 MiB."; empty if no bytes are known.
std::string held_text(const HeldBytes& held) {
  std::string text;
  for (const HeldKind& kind : kHeldKinds) {
    if (held.*kind.bytes <= 0) continue;
    text += concat(text.empty() ? "" : ", ", kind.name, " ", known_text(held.*kind.bytes));
  }
  return text;
}

Record memory_section(const Snapshot& s) {
  const MemoryView& view = s.view<MemoryView>();
  const std::vector<RankLine> lines = lines_shown(s);
  List blocks = block_rows(s);
  const std::size_t all = blocks.size();
  blocks.resize(std::min(all, kRunsShown));
  const bool shows_all = lines.size() == s.view<RanksView>().table->rows.size();
  return {{"is_planned", s.views.find<MemoryView>() != nullptr},
          {"only_watches", s.summary.watching > 0 && s.summary.watching == s.summary.reporting},
          {"has_named_blocks", !s.job->blocks.empty()},
          {"has_budget", s.job->capabilities.actions != only(MemoryAction::keep)},
          {"held", held_text(s.view<HeldBytes>())},
          {"predicted", known_text(view.predicted_peak_bytes)},
          {"real", known_text(static_cast<std::int64_t>(s.summary.memory_peak_bytes))},
          {"budget", view.budget_bytes > 0 ? known_text(view.budget_bytes) : "none"},
          {"left", has_headroom(s) ? signed_bytes(s.view<MemoryHeadroom>().least_bytes) : ""},
          {"tightest", s.view<MemoryHeadroom>().tightest.value()},
          {"keep_all", known_text(view.keep_all_peak_bytes)},
          {"added", added_text(view.added_ratio)},
          {"nearest", shows_all ? "" : std::to_string(lines.size())},
          {"rows", list_of(lines, row_of)},
          {"block_table", with_rows(std::move(blocks), all)}};
}

}  // namespace

std::shared_ptr<const MemoryView> memory_view(const JobFacts& job, const Plan& plan,
                                              std::span<const std::int64_t> budget_bytes) {
  const MemoryFacts& facts = job.memory;
  if (facts.models.empty() || plan.profiles.empty()) return nullptr;
  auto view = std::make_shared<MemoryView>();
  std::map<std::tuple<std::size_t, std::size_t>, Kind> kinds;
  const std::vector<std::uint64_t> samples = samples_of_ranks(job, plan);
  view->ranks.resize(static_cast<std::size_t>(std::max(job.world_size, 0)));
  for (std::size_t r = 0; r < view->ranks.size(); ++r) {
    const std::size_t c = r < plan.rank_profile.size() ? plan.rank_profile[r].value() : 0;
    const std::size_t m = r < facts.model_of_rank.size() ? facts.model_of_rank[r] : 0;
    if (c >= plan.profiles.size() || m >= facts.models.size()) continue;
    const auto [kind, is_new] = kinds.try_emplace({c, m});
    if (is_new) kind->second = kind_of(facts.models[m], plan.profiles[c]);
    view->ranks[r] = kind->second.rank;
    if (r < samples.size()) fit_to(samples[r], facts.models[m], view->ranks[r]);
    if (r < budget_bytes.size()) view->ranks[r].budget_bytes = budget_bytes[r];
    add(*view, view->ranks[r]);
  }
  for (const auto& [key, kind] : kinds) {
    const MemoryModel& model = facts.models[std::get<1>(key)];
    view->resident_bytes = std::max(view->resident_bytes, model.base_bytes);
    view->keep_all_block_bytes = std::max(view->keep_all_block_bytes, block_bytes(model, nullptr));
    view->plan_kept_block_bytes = std::max(view->plan_kept_block_bytes, kind.kept_block_bytes);
  }
  return view;
}

bool has_budgets(const MemoryView& view, std::span<const std::int64_t> budget_bytes) {
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    const std::int64_t budget = r < budget_bytes.size() ? budget_bytes[r] : 0;
    if (view.ranks[r].budget_bytes != budget) return false;
  }
  return true;
}

MemoryHeadroom memory_headroom(const MemoryView& view, const StepSignals& signals) {
  MemoryHeadroom headroom;
  for (const RankSignal& report : signals.reports) {
    const auto r = static_cast<std::size_t>(report.rank.value());
    if (r >= view.ranks.size()) continue;
    const RankLine line{&report, view.ranks[r]};
    if (!line.has_headroom()) continue;
    if (line.is_over_budget()) ++headroom.over_budget;
    if (headroom.tightest.value() >= 0 && line.headroom() >= headroom.least_bytes) continue;
    headroom.tightest = report.rank;
    headroom.least_bytes = line.headroom();
  }
  return headroom;
}

void put_memory(io::JsonWriter& json, const Snapshot& s) {
  json.key("memory");
  if (s.views.find<MemoryView>() == nullptr) return static_cast<void>(json.null());
  const MemoryView& view = s.view<MemoryView>();
  const MemoryHeadroom& headroom = s.view<MemoryHeadroom>();
  json.begin_object();
  put_known(json, "predicted_peak_bytes", view.predicted_peak_bytes);
  put_known(json, "measured_peak_bytes",
            static_cast<std::int64_t>(s.summary.memory_peak_bytes & ~(std::uint64_t{1} << 63)));
  put_known(json, "keep_all_peak_bytes", view.keep_all_peak_bytes);
  json.field("saved_bytes", view.saved_bytes);
  put_known(json, "budget_bytes", view.budget_bytes);
  json.field("headroom_bytes",
             has_headroom(s) ? std::optional(headroom.least_bytes) : std::nullopt);
  put_id(json, "tightest_rank", headroom.tightest.value());
  json.field("over_budget_ranks", headroom.over_budget);
  json.field("added_time_ratio", view.added_ratio);
  put_known(json, "resident_bytes", view.resident_bytes);
  json.end_object();
}

Topic memory_topic() {
  return {.title = "Activation memory",
          .follow = follow,
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .sections = {{"memory.html", memory_section}}};
}

}  // namespace cox::metrics
