#include "metrics/command/whatif_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "metrics/json_parts.h"

namespace cox::tools {
namespace {

using diagnosis::Blame;
using diagnosis::JobModel;
using diagnosis::kLeastLoss;
using diagnosis::LabelSlowdown;
using diagnosis::StepTimes;
using diagnosis::WhatIf;

constexpr double kLargeShare = 0.5;
constexpr double kNotableShare = 0.25;  // smallest share of the loss that gets a sentence
constexpr std::size_t kMostRows = 16;

// --- Sentences.

std::string loss_sentence(const WhatIf& figures) {
  if (figures.slowdown < 1 + kLeastLoss)
    return fmt::format(
        "S = {:.3f}: stragglers cost this job less than 1 %: a step takes {}, {} without them.",
        figures.slowdown, seconds_text(figures.actual_seconds),
        seconds_text(figures.ideal_seconds));
  return fmt::format(
      "S = {:.3f}: without stragglers a step would take {} instead of {}; the job would be {:.3f} "
      "times as fast.",
      figures.slowdown, seconds_text(figures.ideal_seconds), seconds_text(figures.actual_seconds),
      figures.slowdown);
}

std::string ranks_of(const std::vector<std::int32_t>& ranks) {
  std::vector<std::size_t> numbers(ranks.begin(), ranks.end());
  std::ranges::sort(numbers);
  return ranks_text(numbers, 0);
}

std::string culprits_sentence(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  const std::vector<std::int32_t>& ranks = figures.culprits.ranks;
  if (!report.model.doubt.empty()) return "No rank is named: " + report.model.doubt + ".";
  if (ranks.empty()) return "No rank stands out: what is lost is spread over many of them.";
  const bool is_one = ranks.size() == 1;
  const std::string names = ranks_of(ranks);
  return fmt::format("{}{} {} it: if {} worked like the others, {} of the loss would disappear.",
                     "R", names.substr(1), is_one ? "costs" : "cost", is_one ? "it" : "they",
                     share_text(figures.culprits.blame.removed_share));
}

std::string label_sentence(const WhatIf& figures) {
  std::string names;
  for (const LabelSlowdown& label : figures.labels) {
    if (label.slowdown - 1 < kNotableShare * (figures.slowdown - 1)) break;
    names +=
        fmt::format("{}{} (S_t = {:.3f})", names.empty() ? "" : ", ", label.label, label.slowdown);
  }
  if (names.empty()) return "No kind of operation stands out.";
  return "The loss arises in " + names + ".";
}

bool is_compute(const std::string& label) {
  return label == "forward-compute" || label == "backward-compute";
}

// Applies section 8 of the published definitions: computes cause the loss, and neither workers nor
// the last stage do.
bool has_uneven_microbatches(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  return report.model.doubt.empty() && figures.culprits.ranks.empty() &&
         figures.last_stage.removed_share.value_or(0) < kLargeShare &&
         is_compute(figures.labels.front().label) &&
         figures.labels.front().slowdown - 1 >= kNotableShare * (figures.slowdown - 1);
}

// --- Tables.

std::string more_text(std::size_t rows) {
  return rows > kMostRows ? fmt::format("and {} more, none of them above\n", rows - kMostRows) : "";
}

std::string label_table(const WhatIf& figures) {
  std::string out = fmt::format("{:<28} {:>8}\n", "only with the delays of", "S_t");
  for (const LabelSlowdown& label : figures.labels)
    out += fmt::format("{:<28} {:>8}\n", label.label, ratio_text(label.slowdown));
  return out;
}

std::string worker_table(const WhatIfReport& report) {
  const std::vector<std::size_t> places = workers_by_cost(report);
  std::string out = fmt::format("{:<6} {:>8} {:>6} {:>8}\n", "rank", "dp rank", "stage", "S_w");
  for (std::size_t i = 0; i < std::min(places.size(), kMostRows); ++i)
    out += fmt::format("{:<6} {:>8} {:>6} {:>8}\n", report.model.ranks[places[i]],
                       places[i] / report.model.stages, places[i] % report.model.stages,
                       ratio_text(report.figures.of_workers[places[i]]));
  return out + more_text(places.size());
}

// Returns a table of ranks by phases, for runs: the own time of a mean step.
std::string phase_table(const WhatIfReport& report) {
  const std::size_t labels = report.figures.labels.size();
  std::string out = fmt::format("{:<6} {:>8}", "rank", "S_w");
  for (const LabelSlowdown& label : report.figures.labels)
    out += fmt::format(" {:>10}", label.label);
  out += "\n";
  const std::vector<std::size_t> places = workers_by_cost(report);
  for (std::size_t i = 0; i < std::min(places.size(), kMostRows); ++i) {
    out += fmt::format("{:<6} {:>8}", report.model.ranks[places[i]],
                       ratio_text(report.figures.of_workers[places[i]]));
    for (std::size_t l = 0; l < labels; ++l)
      out +=
          fmt::format(" {:>10}", seconds_text(report.figures.work_seconds[places[i] * labels + l]));
    out += "\n";
  }
  return out + more_text(places.size());
}

std::string free_lines(const WhatIf& figures) {
  std::string out;
  if (figures.pipeline_free)
    out += fmt::format("with free pipeline communication       {:.4f} times as fast\n",
                       *figures.pipeline_free);
  if (figures.data_parallel_free)
    out += fmt::format("with free data-parallel communication  {:.4f} times as fast\n",
                       *figures.data_parallel_free);
  return out;
}

std::string share_lines(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  if (!figures.worst.removed_share) return {};
  std::string out =
      fmt::format("worst {} of {} ranks, M_W: {} of the loss ({})\n", figures.worst_ranks.size(),
                  report.model.ranks.size(), share_text(figures.worst.removed_share),
                  ranks_of(figures.worst_ranks));
  if (report.model.stages > 1)
    out += fmt::format("last stage, M_S: {} of the loss\n",
                       share_text(figures.last_stage.removed_share));
  return out;
}

// --- JSON.

void write_layout(io::JsonWriter& json, const JobModel& model) {
  // If the ranks' numbers are evenly spaced, the spacing is the number of ranks for each recorded
  // one.
  std::vector<std::int32_t> ranks = model.ranks;
  std::ranges::sort(ranks);
  std::int32_t apart = ranks.size() > 1 ? std::numeric_limits<std::int32_t>::max() : 1;
  for (std::size_t i = 1; i < ranks.size(); ++i) apart = std::min(apart, ranks[i] - ranks[i - 1]);
  const std::int32_t world_size = ranks.back() + apart;
  const bool is_whole = static_cast<std::size_t>(world_size) == ranks.size();
  json.key("layout").begin_object().field("dp_size", model.dp_ranks);
  is_whole ? json.field("dsp_size", 1) : json.key("dsp_size").null();
  json.field("pp_size", model.stages);
  is_whole ? json.field("tp_size", 1) : json.key("tp_size").null();
  json.field("vpp_size", model.chunks).field("world_size", world_size).end_object();
}

void write_blame(io::JsonWriter& json, std::string_view name, const Blame& blame,
                 const std::vector<std::int32_t>* ranks) {
  json.key(name).begin_object();
  json.field("t_removed", blame.removed_seconds).field("t_added", blame.added_seconds);
  json.field("removed_share", blame.removed_share).field("added_share", blame.added_share);
  if (ranks != nullptr) metrics::put_list(json, "worst_ranks", *ranks);
  json.end_object();
}

// Writes an object from numbers to values.
void write_numbered(io::JsonWriter& json, std::string_view name,
                    const std::vector<double>& values) {
  json.new_line(1).key(name).begin_object();
  for (std::size_t i = 0; i < values.size(); ++i) json.field(std::to_string(i), values[i]);
  json.end_object();
}

void write_steps(io::JsonWriter& json, std::string_view name, const WhatIf& figures,
                 const std::function<double(const StepTimes&)>& value) {
  json.new_line(1).key(name).begin_object();
  for (const StepTimes& step : figures.steps) json.field(std::to_string(step.step), value(step));
  json.end_object();
}

void write_labels_of_steps(io::JsonWriter& json, const WhatIf& figures) {
  json.new_line(1).key("S_type_per_step").begin_object();
  for (std::size_t s = 0; s < figures.steps.size(); ++s) {
    json.key(std::to_string(figures.steps[s].step)).begin_object();
    for (const LabelSlowdown& label : figures.labels) json.field(label.label, label.of_steps[s]);
    json.end_object();
  }
  json.end_object();
}

// Writes the keys that are not among the published figures.
void write_own(io::JsonWriter& json, const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  json.new_line(1).key("S_worker").begin_object();
  for (std::size_t place = 0; place < report.model.ranks.size(); ++place)
    json.field(std::to_string(report.model.ranks[place]), figures.of_workers[place]);
  json.end_object();
  metrics::put_list(json.new_line(1), "culprits", figures.culprits.ranks);
  metrics::put_list(json.new_line(1), "answer", sentences_of(report));
  metrics::put_list(json.new_line(1), "gaps", report.model.gaps);
}

}  // namespace

std::string ratio_text(double value) {
  return fixed(value, 3);
}

std::string share_text(const std::optional<double>& share) {
  return share ? percent_text(*share, 0) : "-";
}

std::vector<std::size_t> workers_by_cost(const WhatIfReport& report) {
  std::vector<std::size_t> places(report.model.ranks.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::ranges::stable_sort(places, std::greater<>(),
                           [&report](std::size_t p) { return report.figures.of_workers[p]; });
  return places;
}

std::string layout_text(const WhatIfReport& report) {
  const JobModel& model = report.model;
  std::string out =
      fmt::format("{} rank{}", model.ranks.size(), model.ranks.size() == 1 ? "" : "s");
  if (report.source == WhatIfReport::Source::trace) {
    out += fmt::format(" ({} data-parallel x {} stage{}", model.dp_ranks, model.stages,
                       model.stages == 1 ? "" : "s");
    out += model.chunks > 1 ? fmt::format(" with {} model chunks each)", model.chunks) : ")";
  }
  return out + fmt::format(", {} step{}", model.steps.size(), model.steps.size() == 1 ? "" : "s");
}

std::vector<std::string> sentences_of(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  std::vector<std::string> out = {loss_sentence(figures)};
  if (figures.slowdown < 1 + kLeastLoss) return out;
  const double last_stage = figures.last_stage.removed_share.value_or(0);
  const bool is_sure = report.model.doubt.empty();
  if (is_sure && report.model.stages > 1 && last_stage >= kLargeShare)
    out.push_back(fmt::format(
        "The last stage is too long: if it worked like the others, {} of the loss would disappear.",
        percent_text(last_stage, 0)));
  out.push_back(culprits_sentence(report));
  out.push_back(label_sentence(figures));
  if (has_uneven_microbatches(report))
    out.emplace_back(
        "Work differs from one micro-batch to another, for instance by the length of sequences.");
  return out;
}

std::string whatif_text(const WhatIfReport& report) {
  const bool is_run = report.source == WhatIfReport::Source::run;
  std::string out = fmt::format("{} {}: {}\n", is_run ? "run" : "trace", printable(report.name),
                                layout_text(report));
  for (const std::string& sentence : sentences_of(report)) out += sentence + "\n";
  out += "\n" + (is_run ? phase_table(report) : worker_table(report)) + "\n";
  out += label_table(report.figures) + "\n" + share_lines(report) + free_lines(report.figures);
  out += fmt::format("simulated steps are {} of the recorded ones\n",
                     percent_text(1 / report.figures.simulation_gap(), 1));
  for (const std::string& gap : report.model.gaps) out += "gap: " + printable(gap) + "\n";
  return out;
}

std::string whatif_json(const WhatIfReport& report) {
  const WhatIf& figures = report.figures;
  io::JsonWriter json;
  json.begin_object().new_line(1).field("trace", report.name).new_line(1);
  write_layout(json, report.model);
  json.new_line(1).field("traced_ranks", report.model.ranks.size());
  json.field("steps", figures.steps.size()).new_line(1);
  json.field("t_traced", figures.traced_seconds).field("t_actual", figures.actual_seconds);
  json.field("t_ideal", figures.ideal_seconds).field("S", figures.slowdown);
  json.field("M_W", figures.worst.removed_share).field("M_S", figures.last_stage.removed_share);
  json.field("simulation_gap", figures.simulation_gap()).new_line(1);
  write_blame(json, "M_W_detail", figures.worst, &figures.worst_ranks);
  json.new_line(1);
  write_blame(json, "M_S_detail", figures.last_stage, nullptr);
  json.new_line(1).key("S_type").begin_object();
  for (const LabelSlowdown& label : figures.labels) json.field(label.label, label.slowdown);
  json.end_object();
  write_numbered(json, "S_dp_rank", figures.of_dp_ranks);
  write_numbered(json, "S_stage", figures.of_stages);
  write_steps(json, "S_step", figures,
              [](const StepTimes& step) { return step.actual_seconds / step.ideal_seconds; });
  write_steps(json, "step_traced", figures, std::mem_fn(&StepTimes::traced_seconds));
  write_steps(json, "step_actual", figures, std::mem_fn(&StepTimes::actual_seconds));
  write_steps(json, "step_ideal", figures, std::mem_fn(&StepTimes::ideal_seconds));
  write_labels_of_steps(json, figures);
  json.new_line(1).field("speedup_if_pipeline_comm_free", figures.pipeline_free.value_or(1));
  json.field("speedup_if_data_parallel_comm_free", figures.data_parallel_free.value_or(1));
  json.new_line(1);
  json.key("ideal_seconds_per_type_own_calculator").begin_object();
  for (const diagnosis::TypeSeconds& type : figures.types)
    json.field(type.type, type.ideal_seconds);
  json.end_object().new_line(1);
  json.field("tolerance", "calculated in double precision from the numbers of the file");
  write_own(json, report);
  return json.new_line().end_object().take() + "\n";
}

}  // namespace cox::tools
