#include "metrics/topics/plan.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coordinator/core/plan_fields.h"
#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/plan_counts.h"
#include "metrics/topics/memory.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kNamedCells = 48;  // blocks; more are drawn as small cells
constexpr std::size_t kProfilesShown = 4;
constexpr std::size_t kRunsShown = 16;

bool is_named(const Snapshot& s) {
  return s.plan->precision.size() <= kNamedCells;
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      counter("coxswain_plans_total", "Plans published",
              value([](S s) { return s.control.plans_published; })),
      gauge("coxswain_plan_id", "", "Number of the newest published plan",
            value([](S s) { return s.plan->id.number; })),
      gauge("coxswain_plan_applied_id", "", "Number of the newest plan that ranks apply",
            value([](S s) { return s.summary.plan_applied_max; })),
      gauge("coxswain_plan_activation_lag_rounds", "rounds",
            "Rounds from the publication of the newest active plan to its activation",
            value(&PlanView::activation_lag_rounds)),
      gauge("coxswain_last_plan_timestamp_seconds", "seconds",
            "Unix time of the newest publication; 0 before the first",
            value([](S s) { return s.view<PlanView>().last_published.seconds; })),
      gauge("coxswain_plan_precision_blocks", "", "Blocks that compute in a precision",
            per("precision", kPrecisionNames,
                [](S s, std::size_t k) {
                  return knob_mix(*s.plan, s.job->world_size).precision_blocks[k];
                })),
      gauge("coxswain_plan_action_blocks", "",
            "Blocks under a memory action, averaged over the ranks; recompute at any level",
            per("action", kMemoryKindNames,
                [](S s, std::size_t k) {
                  return knob_mix(*s.plan, s.job->world_size).action_blocks[k];
                })),
      gauge("coxswain_plan_hold_rounds", "rounds",
            "Rounds for which all knobs still rest after trouble", value([](S s) {
              const std::uint64_t hold = s.plan->hold_until.value();
              const std::uint64_t round = s.summary.round.value();
              return hold > round ? hold - round : 0;
            })),
  };
}

void put_plan_ids(io::JsonWriter& json, const Snapshot& s) {
  const Plan& plan = *s.plan;
  json.field("incarnation", plan.id.incarnation).field("number", plan.id.number);
  json.field("earliest_round", plan.earliest_round).field("activated_round", plan.activated_round);
  json.field("applied_number", s.summary.plan_applied_max);
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  json.key("plan").begin_object();
  put_plan_ids(json, s);
  json.end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot&, const RankRow& row) {
  json.field("plan_held", row.report.plan_held).field("plan_applied", row.report.plan_applied);
}

const BlockCost* known_cost(const Snapshot& s, std::size_t block) {
  const auto& costs = s.view<PlanView>().costs;
  if (!costs || block >= costs->size() || !(*costs)[block].is_known) return nullptr;
  return &(*costs)[block];
}

void put_action_ranks(io::JsonWriter& json, const ActionRanks& ranks) {
  json.key("ranks_by_action").begin_object();
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a] > 0) json.field(kMemoryActionNames[a], ranks[a]);
  }
  json.end_object();
}

// Adds the cost of the block on the slowest rank for the block; nothing before the first
// measurement.
void put_cost(io::JsonWriter& json, const Snapshot& s, std::size_t block) {
  const BlockCost* known = known_cost(s, block);
  if (known == nullptr) return;
  const BlockCost& cost = *known;
  json.field("parameters", cost.profile.parameters);
  json.field("saved_bytes", cost.profile.saved_bytes);
  json.field("forward_seconds", static_cast<double>(cost.profile.forward_seconds));
  json.field("backward_seconds", static_cast<double>(cost.profile.backward_seconds));
  if (cost.profile.flops > 0) json.field("flops", cost.profile.flops);
  json.field("measured_on_rank", cost.rank);
}

// Writes the fields of the plan that are one number, the newest field first.
void put_numbers(io::JsonWriter& json, const Plan& plan) {
  struct Number {
    std::string_view name;
    std::uint64_t value;
  };
  std::vector<Number> numbers;
  for_each_plan_field([&]<class T>(const PlanField<T>& field) {
    const T& value = plan.*field.member;
    if constexpr (std::is_unsigned_v<T>) numbers.push_back({field.name, value});
    if constexpr (std::is_same_v<T, RoundId>) numbers.push_back({field.name, value.value()});
  });
  std::ranges::reverse(numbers);
  for (const Number& number : numbers) json.field(number.name, number.value);
}

// Writes the fields of the plan that are lists of numbers or orders to the trainer.
void put_lists_and_orders(io::JsonWriter& json, const Plan& plan) {
  for_each_plan_field([&]<class T>(const PlanField<T>& field) {
    const T& value = plan.*field.member;
    if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
      put_list(json, field.name, value);
    } else if constexpr (std::is_same_v<T, RollbackOrder>) {
      json.key(field.name).begin_object().field("ticket", value.ticket);
      json.field("before_round", value.before_round).end_object();
    }
  });
}

Result<std::string> plan_json(const Snapshot& s, std::string_view) {
  const Plan& plan = *s.plan;
  io::JsonWriter json;
  json.begin_object();
  put_plan_ids(json, s);
  put_numbers(json, plan);
  put_memory(json, s);
  const auto actions = action_ranks(plan, s.job->world_size);
  json.key("blocks").begin_array();
  for (std::size_t block = 0; block < plan.precision.size(); ++block) {
    json.begin_object().field("name", block_name(*s.job, block));
    json.field("precision", to_string(plan.precision[block]));
    put_action_ranks(json, actions[block]);
    put_cost(json, s, block);
    json.end_object();
  }
  json.end_array().key("profiles").begin_array();
  const auto sizes = profile_sizes(plan, s.job->world_size);
  for (std::size_t c = 0; c < plan.profiles.size(); ++c) {
    json.begin_object().field("ranks", sizes[c]).key("actions").begin_array();
    for (const MemoryAction action : plan.profiles[c]) json.value(to_string(action));
    json.end_array().end_object();
  }
  json.end_array();
  put_lists_and_orders(json, plan);
  json.end_object();
  return json.take();
}

// Returns "forward 41 ms, backward 80 ms, 12 MiB saved, 198,272 parameters".
std::string cost_text(const BlockCost& cost) {
  return concat("forward ", seconds_text(static_cast<double>(cost.profile.forward_seconds)),
                ", backward ", seconds_text(static_cast<double>(cost.profile.backward_seconds)),
                ", ", bytes_text(cost.profile.saved_bytes), " saved, ",
                grouped(cost.profile.parameters), " parameters, on rank ", cost.rank);
}

Record cell(const Snapshot& s, std::size_t block, const BlockRun& run, std::size_t prefix_length) {
  const std::string name = block_name(*s.job, block);
  const BlockCost* cost = known_cost(s, block);
  return {{"format", static_cast<int>(run.precision)},
          {"kind", static_cast<int>(kind_of(run.action))},
          {"name", name},
          {"short_name", std::string_view(name).substr(prefix_length)},
          {"precision", to_string(run.precision)},
          {"action", in_words(run.action)},
          {"cost", cost != nullptr ? cost_text(*cost) : ""},
          {"saved", cost != nullptr ? bytes_text(cost->profile.saved_bytes) : ""}};
}

// Returns the block that takes the most time; null before the first measurement.
const BlockCost* dearest_block(const Snapshot& s) {
  const BlockCost* dearest = nullptr;
  for (std::size_t block = 0; block < s.job->blocks.size(); ++block) {
    const BlockCost* cost = known_cost(s, block);
    if (cost == nullptr) continue;
    const bool is_dearer =
        dearest == nullptr || seconds_of(cost->profile) > seconds_of(dearest->profile);
    if (is_dearer) dearest = cost;
  }
  return dearest;
}

List cells(const Snapshot& s, const std::vector<BlockRun>& runs) {
  const std::size_t prefix_length = is_named(s) ? common_prefix(*s.job).size() : 0;
  List out;
  for (const BlockRun& run : runs) {
    for (std::size_t block = run.first; block <= run.last; ++block)
      out.push_back(cell(s, block, run, prefix_length));
  }
  return out;
}

// Returns "Rank 2", "Ranks 0, 3", "12 ranks".
std::string profile_title(const Plan& plan, std::size_t index, std::int32_t ranks) {
  constexpr std::int32_t kNamed = 4;
  std::string names;
  for (std::size_t r = 0; ranks <= kNamed && r < plan.rank_profile.size(); ++r) {
    if (plan.rank_profile[r].value() == index)
      names += (names.empty() ? "" : ", ") + std::to_string(r);
  }
  if (names.empty()) return grouped(static_cast<std::uint64_t>(ranks)) + " ranks";
  return (ranks == 1 ? "Rank " : "Ranks ") + names;
}

Record profile_of(const Snapshot& s, std::size_t index, std::int32_t ranks) {
  const auto runs = block_runs(*s.plan, index);
  const auto run_of = [&s](const BlockRun& run) {
    return Record{{"blocks", block_names(*s.job, run.first, run.last)},
                  {"precision", to_string(run.precision)},
                  {"action", in_words(run.action)}};
  };
  List shown = is_named(s) ? List() : list_of(runs, run_of, kRunsShown);
  return {{"title", s.plan->profiles.size() > 1 ? profile_title(*s.plan, index, ranks) : ""},
          {"cells", cells(s, runs)},
          {"runs", with_rows(std::move(shown), runs.size())}};
}

// Returns "all in bf16, 4 recompute".
std::string mix_text(const Snapshot& s) {
  const KnobMix mix = knob_mix(*s.plan, s.job->world_size);
  const auto blocks = static_cast<double>(s.plan->precision.size());
  std::string text;
  for (std::size_t k = 0; k < mix.precision_blocks.size(); ++k) {
    if (mix.precision_blocks[k] == 0) continue;
    const bool all = mix.precision_blocks[k] == blocks;
    text += concat(text.empty() ? " " : ", ", all ? "all" : fixed(mix.precision_blocks[k], 0),
                   " in ", kPrecisionNames[k]);
  }
  for (std::size_t k = 1; k < mix.action_blocks.size(); ++k) {
    const double count = mix.action_blocks[k];
    if (count > 0)
      text += concat(", ", fixed(count, count == std::floor(count) ? 0 : 1), " ",
                     kMemoryKindNames[k], s.plan->profiles.size() > 1 ? " on average" : "");
  }
  return text;
}

List shares_of(const Plan& plan) {
  if (plan.shares.empty()) return {};
  const auto [low, high] = std::minmax_element(plan.shares.begin(), plan.shares.end());
  return {{{"low", *low}, {"high", *high}, {"is_equal", *low == *high}}};
}

Record plan_section(const Snapshot& s) {
  const Plan& plan = *s.plan;
  const auto sizes = profile_sizes(plan, s.job->world_size);
  const bool has_blocks = !plan.precision.empty();
  const RoundId published = s.view<PlanView>().published_round;
  const bool rests = plan.hold_until > s.summary.round;
  const BlockCost* dearest = has_blocks ? dearest_block(s) : nullptr;
  List profiles;
  for (std::size_t c = 0; c < std::min(sizes.size(), kProfilesShown); ++c)
    profiles.push_back(profile_of(s, c, sizes[c]));
  return {{"number", grouped(plan.id.number)},
          {"published", plan.id.number > 0 ? grouped(published.value()) : ""},
          {"active", plan.activated_round ? grouped(plan.activated_round->value()) : ""},
          {"is_measured", s.views.find<MemoryView>() != nullptr},
          {"step_samples", plan.step_samples != 0 ? grouped(plan.step_samples) : ""},
          {"shares", shares_of(plan)},
          {"rest_until", rests ? grouped(plan.hold_until.value()) : ""},
          {"blocks", has_blocks ? std::to_string(plan.precision.size()) : ""},
          {"mix", mix_text(s)},
          {"prefix", common_prefix(*s.job)},
          {"is_named", is_named(s)},
          {"profiles", std::move(profiles)},
          {"more_profiles", more_text(sizes.size(), kProfilesShown)},
          {"dearest", dearest != nullptr ? block_name(*s.job, dearest->profile.block.value()) : ""},
          {"cost", dearest != nullptr ? cost_text(*dearest) : ""}};
}

}  // namespace

double seconds_of(const BlockProfile& profile) {
  return static_cast<double>(profile.forward_seconds + profile.backward_seconds);
}

std::shared_ptr<const BlockCosts> with_profiles(std::shared_ptr<const BlockCosts> costs,
                                                std::size_t blocks, const StepSignals& signals) {
  std::shared_ptr<BlockCosts> changed;
  for (const RankSignal& report : signals.reports) {
    if (report.fragment.kind != FragmentKind::block_profile) continue;
    const auto profile = read_block_profile(report.fragment);
    if (!profile.ok() || profile->block.value() >= blocks) continue;
    if (!changed) {
      changed = costs ? std::make_shared<BlockCosts>(*costs) : std::make_shared<BlockCosts>();
      changed->resize(blocks);
    }
    BlockCost& cost = (*changed)[profile->block.value()];
    const bool is_newer_word = !cost.is_known || cost.rank == report.rank;
    if (is_newer_word || seconds_of(*profile) > seconds_of(cost.profile)) {
      cost = {true, report.rank, *profile};
    }
  }
  if (changed) return changed;
  return costs;
}

void PlanView::add(const Round& round) {
  const StepRecord& record = round.record;
  const auto is_active = [this](std::uint64_t plan, RoundId in) {
    if (plan <= activated_plan) return;
    activated_plan = plan;
    const std::uint64_t from = published_round.value();
    activation_lag_rounds = in.value() > from ? in.value() - from : 0;
  };
  if (record.decision.plan) {
    // A new plan follows only after all ranks apply the plan before.
    is_active(newest_plan, record.signals.round);
    last_published = record.signals.now;
    published_round = record.signals.round;
  }
  if (record.plan.activated_round) is_active(record.plan.id.number, *record.plan.activated_round);
  newest_plan = record.plan.id.number;
  costs = with_profiles(costs, record.job.blocks.size(), record.signals);
}

Topic plan_topic() {
  return {.title = "Plan",
          .follow = grow<PlanView>,
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .documents = {{"/api/v1/plan", "the newest plan, block by block", plan_json}},
          .sections = {{"plan.html", plan_section, Section::Width::half}}};
}

}  // namespace cox::metrics
