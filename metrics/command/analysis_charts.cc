#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "coordinator/core/text.h"
#include "metrics/command/analysis_report.h"
#include "metrics/pages/values.h"
#include "metrics/records/statistics.h"
#include "metrics/topics/heat_map.h"

namespace cox::tools {

using diagnosis::RunView;
using metrics::List;
using metrics::list_of;
using metrics::Record;

namespace {

// --- Curves: 1000 by 100 units, stretched to the available width.

constexpr double kWidth = 1000;
constexpr double kHeight = 100;
constexpr std::size_t kMostPoints = 400;  // drawn without the script
constexpr std::size_t kMostMarks = 200;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Buckets {
  std::vector<double> low;  // NaN: no finite value
  std::vector<double> high;
  std::vector<std::size_t> broken;  // first row of each bucket with a value that is not finite
};

Buckets buckets_of(const std::vector<double>& values, std::size_t per) {
  Buckets out;
  for (std::size_t begin = 0; begin < values.size(); begin += per) {
    out.low.push_back(kNone);
    out.high.push_back(kNone);
    bool is_broken = false;
    for (std::size_t i = begin; i < std::min(begin + per, values.size()); ++i) {
      const double value = values[i];
      if (std::isfinite(value)) {
        out.low.back() = std::fmin(out.low.back(), value);
        out.high.back() = std::fmax(out.high.back(), value);
      } else if (!is_broken && !diagnosis::is_absent(value)) {
        is_broken = true;
        out.broken.push_back(i);
      }
    }
  }
  return out;
}

Buckets merged(const Buckets& fine, std::size_t count) {
  Buckets out;
  for (std::size_t begin = 0; begin < fine.low.size(); begin += count) {
    out.low.push_back(kNone);
    out.high.push_back(kNone);
    for (std::size_t i = begin; i < std::min(begin + count, fine.low.size()); ++i) {
      out.low.back() = std::fmin(out.low.back(), fine.low[i]);
      out.high.back() = std::fmax(out.high.back(), fine.high[i]);
    }
  }
  return out;
}

struct Extent {
  double low = kNone;
  double high = kNone;
};

Extent extent_of(const Buckets& buckets) {
  Extent out;
  for (const double value : buckets.low) out.low = std::fmin(out.low, value);
  for (const double value : buckets.high) out.high = std::fmax(out.high, value);
  return out;
}

std::string line_of(const Buckets& buckets, const Extent& extent, double per, double rows) {
  double span = extent.high - extent.low;
  if (!(span > 0)) span = extent.high != 0 ? std::fabs(extent.high) : 1;
  const double middle = extent.low / 2 + extent.high / 2;
  const auto y = [&](double v) { return kHeight / 2 - (v - middle) / span * 0.9 * kHeight; };
  std::string d;
  char pen = 'M';
  for (std::size_t i = 0; i < buckets.low.size(); ++i) {
    if (std::isnan(buckets.low[i])) {
      pen = 'M';
      continue;
    }
    const double x = std::min(1.0, (static_cast<double>(i) + 0.5) * per / rows) * kWidth;
    d += fmt::format("{}{:.1f} {:.1f}", pen, x, y(buckets.low[i]));
    if (buckets.high[i] > buckets.low[i])
      d += fmt::format("L{:.1f} {:.1f}", x, y(buckets.high[i]));
    else if (pen == 'M')
      d += "h0";
    pen = 'L';
  }
  return d;
}

std::string verticals(const std::vector<std::size_t>& at, std::size_t rows, double from,
                      double to) {
  std::string d;
  const std::size_t every = at.size() / kMostMarks + 1;
  for (std::size_t i = 0; i < at.size(); i += every)
    d += fmt::format("M{:.1f} {}V{}",
                     static_cast<double>(at[i]) / static_cast<double>(rows) * kWidth, from, to);
  return d;
}

std::string numbers_of(const std::vector<double>& values) {
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ' ';
    if (std::isfinite(values[i])) out += fmt::format("{:.6g}", values[i]);
  }
  return out;
}

std::string value_text(double value, CurveUnit unit) {
  if (unit == CurveUnit::seconds) return seconds_text(value);
  const bool is_size = unit == CurveUnit::bytes && value >= 0 && value < 1e18;
  return is_size ? bytes_text(static_cast<std::uint64_t>(value)) : significant(value, 4);
}

// --- The shown ranks of a large job: those that differ most, ascending.

double mean_work(const RunView& view, std::size_t rank) {
  double sum = 0;
  for (const float work : view.ranks[rank].work) sum += static_cast<double>(work);
  return view.size() > 0 ? sum / static_cast<double>(view.size()) : 0;
}

std::vector<std::size_t> standing_out(const RunView& view, std::size_t most) {
  std::vector<std::size_t> ranks(view.ranks.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  if (ranks.size() <= most) return ranks;
  std::vector<double> work;
  for (const std::size_t rank : ranks) work.push_back(mean_work(view, rank));
  const double median = diagnosis::median_of(work);
  std::ranges::stable_sort(ranks, std::greater<>(),
                           [&](std::size_t rank) { return std::fabs(work[rank] - median); });
  ranks.resize(most);
  std::ranges::sort(ranks);
  return ranks;
}

// --- The heat map.

constexpr std::size_t kHeatColumns = 240;
constexpr std::size_t kHeatRowPixels = 14;  // height of a label

// Returns the work of the median rank in each column of `per` steps. An even number of ranks uses
// the quicker of the middle two, so that half of the ranks may be slow.
std::vector<double> usual_work(const RunView& view, std::size_t per) {
  std::vector<double> usual((view.size() + per - 1) / per, 0.0);
  std::vector<double> of_ranks(view.ranks.size());
  for (std::size_t s = 0; s < view.size(); ++s) {
    for (std::size_t r = 0; r < view.ranks.size(); ++r)
      of_ranks[r] = static_cast<double>(view.ranks[r].work[s]);
    const auto middle = of_ranks.begin() + static_cast<std::ptrdiff_t>((of_ranks.size() - 1) / 2);
    std::nth_element(of_ranks.begin(), middle, of_ranks.end());
    usual[s / per] += *middle;
  }
  return usual;
}

// Returns the level of each column of a rank.
std::vector<std::size_t> levels_of(const RunView& view, std::size_t rank, std::size_t per,
                                   const std::vector<double>& usual) {
  std::vector<double> work(usual.size(), 0.0);
  for (std::size_t s = 0; s < view.size(); ++s)
    work[s / per] += static_cast<double>(view.ranks[rank].work[s]);
  std::vector<std::size_t> levels;
  for (std::size_t c = 0; c < usual.size(); ++c)
    levels.push_back(usual[c] > 0 ? metrics::heat_level(work[c] / usual[c])
                                  : metrics::kOrdinaryHeat);
  return levels;
}

List heat_paths(const RunView& view, const std::vector<std::size_t>& ranks, std::size_t per) {
  const std::vector<double> usual = usual_work(view, per);
  std::array<std::string, metrics::kHeatLevels.size()> paths;
  for (std::size_t row = 0; row < ranks.size(); ++row) {
    const std::vector<std::size_t> levels = levels_of(view, ranks[row], per, usual);
    for (std::size_t begin = 0; begin < levels.size();) {
      std::size_t end = begin + 1;
      while (end < levels.size() && levels[end] == levels[begin]) ++end;
      paths[levels[begin]] += fmt::format("M{} {}h{}v1h-{}z", begin, row, end - begin, end - begin);
      begin = end;
    }
  }
  List out;
  for (std::size_t level = 0; level < paths.size(); ++level) {
    if (!paths[level].empty()) out.push_back({{"level", level}, {"d", std::move(paths[level])}});
  }
  return out;
}

// --- Lanes.

// Lane is a phase and its colour on all pages. Lanes follow the order of phases in a step. Phases
// of foreign records come before the communication.
struct Lane {
  std::string_view name;
  std::size_t colour;
};
constexpr std::array<Lane, 5> kBefore = {
    {{"data", 0}, {"forward", 1}, {"backward", 2}, {"compute", 3}, {"other", 6}}};
constexpr std::array<Lane, 1> kAfter = {{{"optimizer", 5}}};
constexpr std::size_t kTransferColour = 4;
constexpr std::size_t kForeignColour = 7;

bool is_placed(std::string_view name) {
  const auto has = [name](const auto& lanes) {
    return std::ranges::find(lanes, name, &Lane::name) != lanes.end();
  };
  return name == "comm" || has(kBefore) || has(kAfter);
}

constexpr double kLanesWidth = 1000;
constexpr double kLanesLeft = 58;
constexpr double kLaneHeight = 22;

// Window is the drawn stretch of steps, and the scale of seconds in the picture.
struct Window {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t longest = 0;
  double seconds = 0;

  double scale() const { return (kLanesWidth - kLanesLeft - 4) / seconds; }
};

Window window_of(const RunView& view) {
  Window out;
  for (std::size_t s = 0; s < view.size(); ++s) {
    if (view.wall(s) > view.wall(out.longest)) out.longest = s;
  }
  const std::size_t length = std::min(kLaneSteps, view.size());
  const std::size_t before = std::min(out.longest, length / 2);
  out.begin = std::min(out.longest - before, view.size() - length);
  out.end = out.begin + length;
  for (std::size_t s = out.begin; s < out.end; ++s) out.seconds += view.wall(s);
  return out;
}

// LanePen draws the parts of one lane one after another.
class LanePen {
 public:
  LanePen(std::size_t row, double scale)
      : top_(4 + static_cast<double>(row) * kLaneHeight), scale_(scale) {}

  void go_to(double seconds) { at_ = seconds; }
  void draw(double seconds, std::string_view css_class, std::int64_t step, std::string_view what) {
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    const double width = seconds * scale_;
    if (width >= 0.3)
      parts_.push_back({{"class", css_class},
                        {"x", fixed(kLanesLeft + at_ * scale_, 1)},
                        {"y", fixed(top_, 1)},
                        {"width", fixed(width, 1)},
                        {"step", step},
                        {"phase", what},
                        {"seconds", seconds_text(seconds)}});
    at_ += seconds;
  }
  List take() { return std::move(parts_); }

 private:
  double top_;
  double scale_;
  double at_ = 0;
  List parts_;
};

using PhaseColumns = std::map<std::string, std::vector<double>, std::less<>>;

PhaseColumns phases_of(const RunView& view, std::size_t rank) {
  PhaseColumns out;
  for (const auto& [name, column] : view.run->ranks[rank].phases)
    out.emplace(name, view.column(rank, view.run->ranks[rank].phases, name));
  return out;
}

List lane_of(const RunView& view, const Window& window, std::size_t rank, std::size_t row) {
  const PhaseColumns phases = phases_of(view, rank);
  LanePen pen(row, window.scale());
  double begin = 0;
  for (std::size_t s = window.begin; s < window.end; ++s) {
    const auto draw = [&](std::string_view name, std::size_t colour) {
      const auto found = phases.find(name);
      if (found == phases.end() || diagnosis::is_absent(found->second[s])) return;
      pen.draw(found->second[s], concat("f", colour), view.steps[s], name);
    };
    pen.go_to(begin);
    for (const Lane& lane : kBefore) draw(lane.name, lane.colour);
    for (const auto& [name, column] : phases) {
      if (!is_placed(name)) draw(name, kForeignColour);
    }
    pen.draw(view.wait(rank, s), "fw", view.steps[s], "waiting for the last rank");
    pen.draw(view.transfer(rank, s), concat("f", kTransferColour), view.steps[s], "communication");
    for (const Lane& lane : kAfter) draw(lane.name, lane.colour);
    begin += view.wall(s);
  }
  return pen.take();
}

List lanes_of(const RunView& view, const Window& window, const std::vector<std::size_t>& ranks) {
  List out;
  for (std::size_t row = 0; row < ranks.size(); ++row)
    out.push_back({{"rank", view.run->ranks[ranks[row]].rank},
                   {"y", fixed(4 + kLaneHeight * static_cast<double>(row) + 13, 0)},
                   {"parts", lane_of(view, window, ranks[row], row)}});
  return out;
}

// Returns the beginning of each step of the window.
List beats_of(const RunView& view, const Window& window) {
  List out;
  double begin = 0;
  for (std::size_t s = window.begin; s < window.end; ++s) {
    const double x = kLanesLeft + begin * window.scale();
    out.push_back({{"x", fixed(x, 1)}, {"text_x", fixed(x + 2, 1)}, {"step", view.steps[s]}});
    begin += view.wall(s);
  }
  return out;
}

}  // namespace

std::string bucket_steps(const RunAxis& axis) {
  std::vector<double> steps;
  for (std::size_t row = 0; row < axis.rows(); row += axis.per_bucket())
    steps.push_back(axis.steps[row]);
  return numbers_of(steps);
}

void add_figure(List& to, const RunAxis& axis, const RunCurve& curve) {
  const Buckets fine = buckets_of(curve.values, axis.per_bucket());
  const Extent extent = extent_of(fine);
  if (std::isnan(extent.low)) return;
  const std::size_t merge = (fine.low.size() + kMostPoints - 1) / kMostPoints;
  constexpr std::array kUnits = {"", "s", "B"};
  to.push_back({{"unit", kUnits[static_cast<std::size_t>(curve.unit)]},
                {"low", numbers_of(fine.low)},
                {"high", numbers_of(fine.high)},
                {"title", curve.title},
                {"least", value_text(extent.low, curve.unit)},
                {"most", value_text(extent.high, curve.unit)},
                {"marks", verticals(axis.marks, axis.rows(), 0, kHeight)},
                {"gaps", verticals(fine.broken, axis.rows(), kHeight - 12, kHeight)},
                {"line", line_of(merge > 1 ? merged(fine, merge) : fine, extent,
                                 static_cast<double>(axis.per_bucket() * merge),
                                 static_cast<double>(axis.rows()))}});
}

List run_heat_map(const RunView& view) {
  if (view.ranks.size() < 2 || view.size() == 0) return {};
  const std::size_t per = (view.size() + kHeatColumns - 1) / kHeatColumns;
  const std::vector<std::size_t> ranks = standing_out(view, kHeatRows);
  const bool shows_all = ranks.size() == view.ranks.size();
  return {{{"mean_of", per > 1 ? std::to_string(per) : ""},
           {"shown", ranks.size()},
           {"of_ranks", shows_all ? "" : std::to_string(view.ranks.size())},
           {"labels", list_of(ranks,
                              [&](std::size_t rank) {
                                return Record{{"rank", view.run->ranks[rank].rank}};
                              })},
           {"first", view.first},
           {"per", per},
           {"pixels", kHeatRowPixels * ranks.size()},
           {"columns", (view.size() + per - 1) / per},
           {"paths", heat_paths(view, ranks, per)},
           {"first_step", view.steps.front()},
           {"last_step", view.steps.back()},
           {"keys", metrics::heat_keys()}}};
}

List phase_lanes(const RunView& view) {
  if (view.size() == 0) return {};
  const Window window = window_of(view);
  if (!(window.seconds > 0) || !std::isfinite(window.seconds)) return {};
  const std::vector<std::size_t> ranks = standing_out(view, kLaneRanks);
  const bool shows_all = ranks.size() == view.ranks.size();
  const double bottom = 4 + kLaneHeight * static_cast<double>(ranks.size());
  return {{{"first_step", view.steps[window.begin]},
           {"last_step", view.steps[window.end - 1]},
           {"longest", view.steps[window.longest]},
           {"longest_time", seconds_text(view.wall(window.longest))},
           {"shown", ranks.size()},
           {"of_ranks", shows_all ? "" : std::to_string(view.ranks.size())},
           {"height", fixed(bottom + 18, 0)},
           {"bottom", fixed(bottom + 4, 0)},
           {"text_y", fixed(bottom + 14, 0)},
           {"beats", beats_of(view, window)},
           {"lanes", lanes_of(view, window, ranks)}}};
}

}  // namespace cox::tools
