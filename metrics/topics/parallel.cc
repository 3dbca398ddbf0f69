#include "metrics/topics/parallel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show both ends only
constexpr std::ptrdiff_t kEndsShown = 4;

std::optional<double> samples_of(const RankSignal& s) {
  return s.samples / static_cast<double>(s.rounds);
}

// Leaves out times that are negative or not finite, as for phases.
template <float RankSignal::*member>
std::optional<double> reduction_time(const RankSignal& s) {
  const float reduction = s.reduction_seconds;
  const float exposed = s.reduction_exposed_seconds;
  if (!std::isfinite(reduction + exposed) || reduction < 0 || exposed < 0) return std::nullopt;
  return static_cast<double>(s.*member) / s.rounds;
}

void follow(const Round& round, Snapshot& now) {
  if (!round.refreshes_tables) return;
  now.views.set(std::make_shared<const ParallelView>(
      parallel_view(*now.job, round.record.signals, now.view<ParallelView>())));
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      gauge("coxswain_step_samples", "samples",
            "Samples that ranks reported for a step of the newest round: the effective batch",
            value(&ParallelView::step_samples)),
      gauge("coxswain_plan_step_samples", "samples",
            "Samples of a step under the newest plan; 0 if the loop decides",
            value([](S s) { return planned_samples(*s.plan, *s.job); })),
      gauge("coxswain_rank_step_samples", "samples", "Samples of a rank in a step" + kOverRanks,
            spread(&ParallelView::rank_samples)),
      gauge("coxswain_accumulation_anchor", "",
            "Micro-batches of a step on the rank that had fewest; 0 where the job has no fixed "
            "micro-batch",
            value(&ParallelView::micro_batches)),
      gauge(
          "coxswain_reduction_duration_seconds", "seconds",
          "Time of a step's gradient buckets from launch to result, summed over buckets, by rank" +
              kOverRanks,
          spread(&ParallelView::reduction_seconds)),
      gauge("coxswain_reduction_exposed_duration_seconds", "seconds",
            "The part of the reduction's time after the end of the backward pass, by rank" +
                kOverRanks,
            spread(&ParallelView::exposed_seconds)),
      gauge("coxswain_reduction_hidden_ratio", "ratio",
            "Part of the reduction's time that the backward pass hid, of the medians over the "
            "ranks; absent where nothing was reduced",
            value([](S s) { return hidden_ratio(s.view<ParallelView>()); })),
      counter(
          "coxswain_repeated_rounds_total",
          "Control rounds in which a step was repeated, because an exact sum was out of range or a "
          "rank ran out of memory",
          value(&ProgressView::repeated_rounds)),
      counter("coxswain_shared_updates_total",
              "Updates of parameters that the ranks of a node hold once, as seen by rank 0",
              value(&SharedUpdates::updates)),
      counter("coxswain_shared_writes_total",
              "Operators that wrote to parameters in these updates, or read a whole state",
              value(&SharedUpdates::writes)),
      counter("coxswain_shared_waits_total",
              "Waits for another rank in these updates, and for turns to add gradients",
              value(&SharedUpdates::waits)),
      counter("coxswain_shared_wait_seconds_total", "Time of these waits",
              value(&SharedUpdates::wait_seconds), "seconds"),
      counter("coxswain_shared_new_sequences_total",
              "Updates that wrote in an order that had not occurred before, so that every write "
              "waited for the other ranks",
              value(&SharedUpdates::new_sequences)),
  };
}

void put_shared_updates(io::JsonWriter& json, const SharedUpdates& shared) {
  json.key("shared_updates").begin_object();
  json.field("updates", shared.updates).field("writes", shared.writes);
  json.field("waits", shared.waits).field("wait_seconds", shared.wait_seconds);
  json.field("new_sequences", shared.new_sequences).end_object();
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  const ParallelView& view = s.view<ParallelView>();
  json.key("data_parallel").begin_object();
  json.field("step_samples", view.step_samples);
  put_known(json, "planned_step_samples", planned_samples(*s.plan, *s.job));
  put_known(json, "job_step_samples", s.job->global_batch);
  put_known(json, "micro_batch_samples", s.job->micro_batch);
  put_known(json, "fewest_micro_batches", view.micro_batches);
  put_spread(json, "rank_samples", view.rank_samples);
  put_spread(json, "reduction_seconds", view.reduction_seconds);
  put_spread(json, "reduction_exposed_seconds", view.exposed_seconds);
  json.field("reduction_hidden_ratio", hidden_ratio(view));
  json.field("repeated_rounds", s.view<ProgressView>().repeated_rounds);
  put_shared_updates(json, s.view<SharedUpdates>());
  json.end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.field("samples_per_step", row.samples_per_step);
  json.field("share_ratio", row.samples_per_step / s.view<RanksView>().table->samples_per_step);
  json.field("reduction_seconds", row.reduction_seconds);
  json.field("reduction_exposed_seconds", row.reduction_exposed_seconds);
}

std::string count_text(double count) {
  return grouped(static_cast<std::uint64_t>(std::llround(std::max(count, 0.0))));
}

// Returns "160 samples, 10.00× the job's 16", or "16 samples, 160 planned".
Record batch_of(const Snapshot& s) {
  const double now = s.view<ParallelView>().step_samples;
  const std::uint64_t planned = planned_samples(*s.plan, *s.job);
  const auto own = static_cast<double>(s.job->global_batch);
  const bool differs = s.plan->step_samples != 0 && static_cast<double>(planned) != now;
  return {{"samples", count_text(now)},
          {"planned", differs ? grouped(planned) : ""},
          {"times", !differs && own > 0 && now != own ? times_text(now / own) : ""},
          {"own", count_text(own)}};
}

std::string samples_text(const RankRow& row) {
  const bool is_whole = std::round(row.samples_per_step) == row.samples_per_step;
  return is_whole ? count_text(row.samples_per_step) : fixed(row.samples_per_step, 1);
}

Record spread_of(const Spread& spread, std::string (*text)(double)) {
  return {{"least", text(spread.min)},
          {"median", text(spread.median)},
          {"most", text(spread.max)},
          {"rank", spread.rank_of_max.value()},
          {"is_even", spread.min == spread.max}};
}

// Returns all ranks, ascending. Large jobs show the ranks with the most and the fewest samples.
std::vector<const RankRow*> rows_shown(const RankTable& table) {
  std::vector<const RankRow*> rows;
  for (const RankRow& row : table.rows) rows.push_back(&row);
  if (rows.size() <= kShowAll) return rows;
  const auto has_more = [](const RankRow* a, const RankRow* b) {
    return a->samples_per_step != b->samples_per_step ? a->samples_per_step > b->samples_per_step
                                                      : a->report.rank < b->report.rank;
  };
  const auto most = rows.begin() + kEndsShown;
  const auto fewest = rows.end() - kEndsShown;
  std::nth_element(rows.begin(), most, rows.end(), has_more);
  std::nth_element(most, fewest, rows.end(), has_more);
  rows.erase(most, fewest);
  std::sort(rows.begin(), rows.end(),
            [](const RankRow* a, const RankRow* b) { return a->report.rank < b->report.rank; });
  return rows;
}

List rank_rows(const std::vector<const RankRow*>& rows, double all) {
  double longest = 0;
  for (const RankRow* row : rows) longest = std::max(longest, row->samples_per_step);
  return list_of(rows, [&](const RankRow* row) {
    const double width = longest > 0 ? 100 * row->samples_per_step / longest : 0;
    const double hidden = hidden_ratio(row->reduction_seconds, row->reduction_exposed_seconds);
    const bool is_reduced = row->reduction_seconds > 0;
    return Record{{"rank", row->report.rank.value()},
                  {"samples", samples_text(*row)},
                  {"share", percent_text(all > 0 ? row->samples_per_step / all : 0, 1)},
                  {"part", fixed(width, 1)},
                  {"reduction", is_reduced ? seconds_text(row->reduction_seconds) : "–"},
                  {"exposed", is_reduced ? seconds_text(row->reduction_exposed_seconds) : "–"},
                  {"hidden", is_reduced ? percent_text(hidden, 0) : "–"}};
  });
}

// Returns the figures of an update, on average; none if ranks share no parameters.
List shared_of(const SharedUpdates& shared) {
  if (shared.updates == 0) return {};
  const auto updates = static_cast<double>(shared.updates);
  return {{{"writes", fixed(static_cast<double>(shared.writes) / updates, 1)},
           {"waits", fixed(static_cast<double>(shared.waits) / updates, 1)},
           {"waited", seconds_text(shared.wait_seconds / updates)},
           {"new_orders", shared.new_sequences > 0 ? grouped(shared.new_sequences) : ""}}};
}

Record parallel_section(const Snapshot& s) {
  const ParallelView& view = s.view<ParallelView>();
  if (s.job->world_size < 2 && s.plan->step_samples == 0) return {};
  const std::uint64_t repeated = s.view<ProgressView>().repeated_rounds;
  const double hidden = hidden_ratio(view);
  const RankTable& ranks = *s.view<RanksView>().table;
  const auto rows = rows_shown(ranks);
  return {{"batch", batch_of(s)},
          {"rank_samples", spread_of(view.rank_samples, count_text)},
          {"fewest", view.micro_batches > 0 ? grouped(view.micro_batches) : ""},
          {"micro_batch", grouped(s.job->micro_batch)},
          {"reduction", spread_of(view.reduction_seconds, seconds_text)},
          {"exposed", spread_of(view.exposed_seconds, seconds_text)},
          {"hidden", std::isnan(hidden) ? "" : percent_text(hidden, 0)},
          {"is_reduced", view.reduction_seconds.max > 0},
          {"shared", shared_of(s.view<SharedUpdates>())},
          {"repeated", repeated > 0 ? grouped(repeated) : ""},
          {"ends", rows.size() < ranks.rows.size() ? std::to_string(kEndsShown) : ""},
          {"rows", rank_rows(rows, ranks.samples_per_step)}};
}

}  // namespace

ParallelView parallel_view(const JobFacts& job, const StepSignals& signals,
                           const ParallelView& before) {
  ParallelView view;
  view.rank_samples = spread_over(signals, samples_of);
  if (view.rank_samples.count == 0) return before;
  view.reduction_seconds = spread_over(signals, reduction_time<&RankSignal::reduction_seconds>);
  view.exposed_seconds =
      spread_over(signals, reduction_time<&RankSignal::reduction_exposed_seconds>);
  double fewest = 0;  // samples of a rank that had some
  for (const RankSignal& s : signals.reports) {
    if (s.rounds == 0 || s.has(SignalFlag::finished)) continue;
    const double samples = *samples_of(s);
    view.step_samples += samples;
    if (samples > 0 && (fewest == 0 || samples < fewest)) fewest = samples;
  }
  if (job.micro_batch > 0)
    view.micro_batches =
        static_cast<std::uint64_t>(std::ceil(fewest / static_cast<double>(job.micro_batch)));
  return view;
}

double hidden_ratio(double reduction_seconds, double exposed_seconds) {
  if (!(reduction_seconds > 0)) return std::numeric_limits<double>::quiet_NaN();
  return std::clamp(1 - exposed_seconds / reduction_seconds, 0.0, 1.0);
}

double hidden_ratio(const ParallelView& view) {
  return hidden_ratio(view.reduction_seconds.median, view.exposed_seconds.median);
}

std::uint64_t planned_samples(const Plan& plan, const JobFacts& job) {
  return plan.step_samples != 0 ? plan.step_samples : job.global_batch;
}

Topic parallel_topic() {
  return {.title = "Data parallel",
          .follow = follow,
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .sections = {{"parallel.html", parallel_section}}};
}

}  // namespace cox::metrics
