#include "metrics/topics/progress.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/sparkline.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

double rate_per_second(const StepSummary& summary) {
  const double seconds = summary.wall_seconds.median * std::max<std::uint32_t>(summary.rounds, 1);
  const double amount = static_cast<double>(summary.tokens > 0 ? summary.tokens : summary.samples);
  return seconds > 0 && std::isfinite(seconds) ? amount / seconds : 0;
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  return {
      counter("coxswain_rounds_total",
              "Control rounds that the coordinator has closed; one may cover several steps",
              value([](S s) { return s.control.rounds; })),
      gauge("coxswain_step", "", "Optimizer step of the newest round; goes back after a rollback",
            value([](S s) { return s.summary.step.value(); })),
      histogram("coxswain_step_duration_seconds", "Wall time of a step, median over the ranks",
                [](S s) -> const BucketCounts& { return s.view<ProgressView>().step_seconds; }),
      counter("coxswain_samples_total", "Samples trained on by all ranks",
              value(&ProgressView::samples)),
      counter("coxswain_tokens_total",
              "Tokens trained on by all ranks; 0 where the trainer reports none",
              value(&ProgressView::tokens)),
      gauge("coxswain_last_round_timestamp_seconds", "seconds", "Unix time of the newest round",
            value([](S s) { return s.last_round_time.seconds; })),
      gauge("coxswain_start_timestamp_seconds", "seconds",
            "Unix time at which this incarnation of the job started",
            value([](S s) { return s.started.seconds; })),
      gauge("coxswain_incarnation", "", "Starts of the job, counting this one",
            value([](S s) { return s.job->incarnation; })),
      gauge("coxswain_loss", "",
            "Weighted mean loss of the newest round; absent when no rank had a finite one",
            value([](S s) { return s.summary.loss; })),
      gauge("coxswain_gradient_norm", "",
            "Largest gradient norm reported in the newest round; absent when none was measured",
            value([](S s) { return s.summary.gradient_norm; })),
      counter("coxswain_nonfinite_rounds_total",
              "Control rounds in which a rank reported a loss or gradient that is not finite",
              cases("source",
                    {{"loss", [](S s) { return s.view<ProgressView>().nonfinite_loss_rounds; }},
                     {"gradient",
                      [](S s) { return s.view<ProgressView>().nonfinite_gradient_rounds; }}})),
      counter("coxswain_skipped_rounds_total",
              "Control rounds in which an optimizer step was skipped",
              value(&ProgressView::skipped_rounds)),
      counter("coxswain_rollbacks_total", "Control rounds in which ranks went back to a snapshot",
              value(&ProgressView::rollbacks)),
      counter("coxswain_nonfinite_observations_total",
              "Values kept out of counters and histograms because they were not finite",
              value([](S s) {
                return s.view<ProgressView>().step_seconds.refused() +
                       s.view<DecisionsView>().decide_seconds.refused();
              })),
  };
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  const StepSummary& summary = s.summary;
  const ProgressView& view = s.view<ProgressView>();
  json.field("round", summary.round).field("step", summary.step);
  put_known(json, "last_step", s.last_step);
  json.field("seconds_left", seconds_left(s));
  json.field("loss", summary.loss).field("first_loss", view.first_loss);
  json.field("gradient_norm", summary.gradient_norm);
  json.field("samples_total", view.samples).field("tokens_total", view.tokens);
  json.field(summary.tokens > 0 ? "tokens_per_second" : "samples_per_second",
             view.points.empty() ? 0.0 : view.points.back().rate_per_second);
  json.field("skipped_rounds", view.skipped_rounds).field("rollbacks", view.rollbacks);
  json.field("nonfinite_ranks", summary.nonfinite_ranks);
}

std::string loss_text(double loss) {
  return significant(loss, 4);
}

// Tile is a figure of the newest round in which some rank trained, with its curve.
struct Tile {
  std::string_view title;
  double RoundPoint::*figure;
  std::string (*text)(double);
  std::string_view unit;
  std::string hint;
  double flat_ratio = 0.1;
};

// REQUIRES: `points` is not empty.
Record tile_of(const Tile& tile, const RoundPoints& points) {
  Curve curve{tile.title, {}, {}, tile.text, tile.flat_ratio};
  for (std::size_t i = 0; i < points.size(); ++i) {
    curve.values.push_back(points[i].*tile.figure);
    if (i > 0 && points[i].plan != points[i - 1].plan) curve.marks.push_back(i);
  }
  return {{"title", tile.title},
          {"value", tile.text(curve.values.back())},
          {"unit", tile.unit},
          {"hint", tile.hint},
          {"spark", sparkline(curve)}};
}

std::string time_hint(const Spread& wall) {
  if (wall.rank_of_max.value() < 0) return {};
  return concat("longest ", seconds_text(wall.max), ", rank ", wall.rank_of_max);
}

std::string skew_hint(const Snapshot& s) {
  const SlowRank* slowest = s.view<RanksView>().slow.slowest();
  if (slowest == nullptr)
    return s.view<ProgressView>().points.back().skew_ratio <= 1.005 ? "the ranks are even" : "";
  return concat("rank ", slowest->rank, " slow in ", slowest->phase());
}

Record tiles_section(const Snapshot& s) {
  const ProgressView& view = s.view<ProgressView>();
  if (view.points.empty()) return {};
  const std::string first =
      std::isfinite(view.first_loss) ? loss_text(view.first_loss) + " at the start" : "";
  const bool tokens = view.tokens > 0;
  const std::string amount = concat(grouped(tokens ? view.tokens : view.samples),
                                    tokens ? " tokens" : " samples", " so far");
  const Tile tiles[] = {
      {"Loss", &RoundPoint::loss, loss_text, "", first, 0.002},
      {"Throughput", &RoundPoint::rate_per_second, rate_text, tokens ? "tokens/s" : "samples/s",
       amount},
      {"Step time", &RoundPoint::step_seconds, seconds_text, "median rank",
       time_hint(s.summary.wall_seconds)},
      {"Skew", &RoundPoint::skew_ratio, times_text, "slowest to median", skew_hint(s)}};
  return {{"tiles", list_of(tiles, [&](const Tile& tile) { return tile_of(tile, view.points); })}};
}

double total_median(const StepSummary& summary) {
  double total = 0;
  for (const Spread& spread : summary.phases) total += spread.median;
  return total;
}

Record phase_of(std::size_t phase, const Spread& spread, double share) {
  const bool is_uneven = spread.rank_of_max.value() >= 0 && spread.max > 1.05 * spread.median;
  const std::string part = percent_text(share, 0);
  return {{"class", concat("ph", phase)},
          {"name", kPhaseNames[phase]},
          {"width", fixed(100 * share, 2)},
          {"title", concat(kPhaseNames[phase], " ", part)},
          {"share", part},
          {"seconds", seconds_text(spread.median)},
          {"most", is_uneven ? seconds_text(spread.max) : ""},
          {"rank", spread.rank_of_max.value()}};
}

Record phases_section(const Snapshot& s) {
  const StepSummary& summary = s.summary;
  const double total = total_median(summary);
  if (total <= 0) return {};
  List phases;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const Spread& spread = summary.phases[p];
    if (spread.max > 0) phases.push_back(phase_of(p, spread, spread.median / total));
  }
  return {{"segments", std::move(phases)}};
}

}  // namespace

void add_point(RoundPoints& points, const RoundPoint& point) {
  if (points.size() == kPointsKept) points.erase(points.begin());
  points.push_back(point);
}

double typical_step_seconds(const ProgressView& view) {
  std::vector<double> seconds;
  for (const RoundPoint& point : view.points) {
    if (std::isfinite(point.step_seconds) && point.step_seconds > 0)
      seconds.push_back(point.step_seconds);
  }
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::optional<double> seconds_left(const Snapshot& s) {
  const double step_seconds = typical_step_seconds(s.view<ProgressView>());
  if (s.last_step == 0 || s.state != JobState::training || step_seconds == 0) return std::nullopt;
  const auto done = static_cast<std::uint64_t>(std::max<std::int64_t>(s.summary.step.value(), 0));
  return step_seconds * static_cast<double>(s.last_step - std::min(s.last_step, done));
}

float loss_scale_of(const StepSignals& signals, float before) {
  bool anybody = false;
  float scale = 0;
  for (const RankSignal& report : signals.reports) {
    if (report.has(SignalFlag::finished) || !std::isfinite(report.loss_scale)) continue;
    anybody = true;
    scale = std::max(scale, report.loss_scale);
  }
  return anybody ? scale : before;
}

void ProgressView::add(const Round& round) {
  const StepRecord& record = round.record;
  const StepSummary& summary = record.decision.summary;
  samples += summary.samples;
  tokens += summary.tokens;
  if (summary.wall_seconds.count > 0)
    step_seconds.observe(summary.wall_seconds.median, std::max<std::uint32_t>(summary.rounds, 1));
  if (std::isnan(first_loss) && std::isfinite(summary.loss)) first_loss = summary.loss;
  if (summary.skipped_ranks > 0) ++skipped_rounds;
  if (summary.rolled_back_ranks > 0) ++rollbacks;
  if (summary.repeated_ranks > 0) ++repeated_rounds;
  loss_scale = loss_scale_of(record.signals, loss_scale);
  const auto any_reports = [&record](SignalFlag flag) {
    const auto& reports = record.signals.reports;
    return std::any_of(reports.begin(), reports.end(),
                       [flag](const RankSignal& report) { return report.has(flag); });
  };
  if (summary.nonfinite_ranks > 0) {
    nonfinite_loss_rounds += any_reports(SignalFlag::nonfinite_loss) ? 1 : 0;
    nonfinite_gradient_rounds += any_reports(SignalFlag::nonfinite_gradient) ? 1 : 0;
  }
  if (summary.finished >= summary.reporting) return;  // no rank trained: only last reports came
  add_point(points, {record.signals.round, summary.loss, summary.wall_seconds.median,
                     skew_ratio(summary), rate_per_second(summary), summary.plan_applied_max,
                     loss_scale, summary.skipped_ranks > 0});
}

Topic progress_topic() {
  return {.title = "Progress",
          .follow = grow<ProgressView>,
          .metrics = metrics,
          .put_status = put_status,
          .sections = {{"tiles.html", tiles_section}, {"phases.html", phases_section}}};
}

}  // namespace cox::metrics
