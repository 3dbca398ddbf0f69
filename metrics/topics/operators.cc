#include "metrics/topics/operators.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/records/operator_table_file.h"
#include "metrics/topics/plan.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kBlocksShown = 16;
constexpr std::size_t kOperatorsShown = 12;

double known_flops(const RankSignal& s) {
  const auto flops = static_cast<double>(s.flops);
  const bool is_known = s.rounds > 0 && !s.has(SignalFlag::finished) && std::isfinite(flops) &&
                        flops > 0 && std::isfinite(s.wall_seconds) && s.wall_seconds > 0;
  return is_known ? flops : 0;
}

void follow(const Round& round, Snapshot& now) {
  if (!round.refreshes_tables) return;
  if (const auto view = operators_view(round.record.signals, now.peak_flops_per_device))
    now.views.set(std::make_shared<const OperatorsView>(*view));
}

std::vector<Metric> metrics() {
  return {
      gauge("coxswain_step_flops", "flops",
            "FLOPs of the model in a step, forward and backward, of all ranks that follow their "
            "operators; 0 where none does",
            value(&OperatorsView::step_flops)),
      gauge(
          "coxswain_achieved_flops_per_second", "flops_per_second",
          "FLOPs of the model a second, the ranks added up; 0 where no rank follows its operators",
          value(&OperatorsView::flops_per_second)),
      gauge("coxswain_mfu_ratio", "ratio",
            "Part of run.peak_flops_per_device that the model's FLOPs reach, mean over the ranks; "
            "absent where that setting is not given",
            value(&OperatorsView::mfu_ratio)),
  };
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  const OperatorsView& view = s.view<OperatorsView>();
  json.key("operators").begin_object();
  put_known(json, "step_flops", view.step_flops);
  put_known(json, "flops_per_second", view.flops_per_second);
  json.field("mfu_ratio", view.mfu_ratio).end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot&, const RankRow& row) {
  put_known(json, "step_flops", known_flops(row.report) / std::max(row.report.rounds, 1u));
}

Result<std::string> operators_json(const Snapshot& s, std::string_view) {
  return io::to_json(s.view<OperatorTable>());
}

std::string rate_of(double flops, double seconds) {
  return flops > 0 && seconds > 0 ? flops_text(flops / seconds) + "/s" : "–";
}

std::vector<const BlockProfile*> dearest_blocks(const Snapshot& s) {
  std::vector<const BlockProfile*> blocks;
  const auto& costs = s.view<PlanView>().costs;
  if (!costs) return blocks;
  for (const BlockCost& cost : *costs) {
    if (cost.is_known && cost.profile.flops > 0) blocks.push_back(&cost.profile);
  }
  std::ranges::stable_sort(blocks, std::ranges::greater{},
                           [](const BlockProfile* p) { return seconds_of(*p); });
  return blocks;
}

// Returns the table of blocks, most expensive first.
List block_table(const Snapshot& s) {
  const auto blocks = dearest_blocks(s);
  if (blocks.empty()) return {};
  const double longest = seconds_of(*blocks.front());
  const auto row_of = [&](const BlockProfile* profile) {
    const double seconds = seconds_of(*profile);
    const auto flops = static_cast<double>(profile->flops);
    return Record{{"name", block_name(*s.job, profile->block.value())},
                  {"forward", seconds_text(static_cast<double>(profile->forward_seconds))},
                  {"backward", seconds_text(static_cast<double>(profile->backward_seconds))},
                  {"part", fixed(longest > 0 ? 100 * seconds / longest : 0, 1)},
                  {"flops", flops_text(flops)},
                  {"rate", rate_of(flops, seconds)}};
  };
  return with_rows(list_of(blocks, row_of, kBlocksShown), blocks.size());
}

List operator_table(const OperatorTable* all) {
  if (all == nullptr) return {};
  auto rows = by_operator(*all, "*");
  sort_rows(rows, OperatorOrder::time);
  const OperatorRow sum = sum_of(rows);
  const auto steps = static_cast<double>(std::max<std::uint64_t>(all->steps, 1));
  const auto seconds = [steps](const OperatorRow& row) {
    return 1e-9 * static_cast<double>(row.forward_ns) / steps;
  };
  const auto record_of = [&](const OperatorRow& row) {
    const double part = sum.forward_ns > 0 ? seconds(row) / seconds(sum) : 0;
    const double flops = row.flops ? row.flops->forward / steps : 0;
    const double bytes = static_cast<double>(row.result_bytes) / steps;
    return Record{{"name", row.name},
                  {"calls", rate_text(static_cast<double>(row.calls) / steps)},
                  {"forward", seconds_text(seconds(row))},
                  {"share", percent_text(part, 1)},
                  {"part", fixed(100 * part, 1)},
                  {"results", bytes_text(static_cast<std::uint64_t>(bytes))},
                  {"flops", row.flops ? flops_text(flops) : "–"},
                  {"rate", rate_of(flops, seconds(row))}};
  };
  return {{{"steps", grouped(all->steps)},
           {"seconds", seconds_text(seconds(sum))},
           {"uncounted", seconds_text(seconds(uncounted_of(rows)))},
           {"rows", list_of(rows, record_of, kOperatorsShown)},
           {"more", more_text(rows.size(), kOperatorsShown)}}};
}

std::string mfu_text(const Snapshot& s) {
  if (!(s.peak_flops_per_device > 0)) return "– (run.peak_flops_per_device is not given)";
  return percent_text(s.view<OperatorsView>().mfu_ratio, 1) + " of " +
         flops_text(s.peak_flops_per_device) + "/s a device";
}

Record operators_section(const Snapshot& s) {
  const OperatorsView& view = s.view<OperatorsView>();
  const auto* table = s.views.find<OperatorTable>();
  if (!(view.step_flops > 0) && table == nullptr) return {};
  return {{"step_flops", view.step_flops > 0 ? flops_text(view.step_flops) : ""},
          {"flops_per_second", flops_text(view.flops_per_second)},
          {"mfu", mfu_text(s)},
          {"blocks", block_table(s)},
          {"operators", operator_table(table)}};
}

}  // namespace

std::optional<OperatorsView> operators_view(const StepSignals& signals,
                                            double peak_flops_per_device) {
  OperatorsView view;
  double flops = 0;
  double seconds = 0;
  for (const RankSignal& s : signals.reports) {
    const double known = known_flops(s);
    if (known == 0) continue;
    view.step_flops += known / s.rounds;
    view.flops_per_second += known / s.wall_seconds;
    flops += known;
    seconds += s.wall_seconds;
  }
  if (view.step_flops == 0) return std::nullopt;
  if (peak_flops_per_device > 0) view.mfu_ratio = flops / (seconds * peak_flops_per_device);
  return view;
}

Topic operators_topic() {
  return {.title = "Operators",
          .follow = follow,
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .documents = {{"/api/v1/operators", "rank 0's operators by block", operators_json}},
          .sections = {{"operators.html", operators_section}}};
}

}  // namespace cox::metrics
