#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "coordinator/core/text.h"
#include "metrics/command/analysis_report.h"
#include "metrics/html.h"
#include "metrics/records/statistics.h"
#include "metrics/topics/heat_map.h"

namespace cox::tools {

using diagnosis::RunView;
using metrics::escape;

const std::string_view kChartStyle = R"css(
.curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,360px),1fr));gap:16px 24px;margin-top:10px}
.curve{margin:0;min-width:0}.curve figcaption{display:flex;justify-content:space-between;gap:12px;font-weight:550;font-size:13px}
.curve figcaption span{overflow-wrap:anywhere}.curve figcaption small{color:var(--soft);font-weight:400;white-space:nowrap;font-size:12px}
.plot{display:block;width:100%;height:110px;margin-top:4px;background:var(--faint);border-radius:4px;cursor:crosshair;touch-action:pan-y}
.curve path{fill:none;vector-effect:non-scaling-stroke}
.plot .line{stroke:var(--accent);stroke-width:1.5;stroke-linejoin:round}
.plot .plan{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 2;opacity:.7}
.plot .gap{stroke:var(--bad);stroke-width:2.5}
.plot rect{fill:var(--accent);opacity:.2}
.tools{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin-top:10px}.tools[hidden]{display:none}
.tools button{font:inherit;font-size:13px;color:var(--ink);background:var(--calm-bg);border:1px solid var(--line);border-radius:6px;padding:4px 10px;min-width:34px;cursor:pointer}
.tools button:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.tools output{color:var(--soft);font-size:13px;margin-left:4px}
.heat .plot{margin:0;background:none;stroke:none}.heat li{overflow:hidden}
.lanes{min-width:860px;width:100%;height:auto;display:block;margin-top:8px;font:11px system-ui,sans-serif}
.lanes text{fill:var(--soft)}.lanes .beat{stroke:var(--line);stroke-width:1}
.f0{fill:var(--p0)}.f1{fill:var(--p1)}.f2{fill:var(--p2)}.f3{fill:var(--p3)}.f4{fill:var(--p4)}.f5{fill:var(--p5)}.f6{fill:var(--p6)}.f7{fill:var(--p7)}
.fw{fill:var(--faint);stroke:var(--bad);stroke-width:1}.keys i.fw{background:var(--faint);box-shadow:inset 0 0 0 1px var(--bad)}
)css";

// Curves carry the least and the largest value of each bucket; the script draws them again for the
// stretch that is looked at, and moves the heat map along.
const std::string_view kChartScript = R"js(
(() => {
  const box = document.querySelector('[data-rows]');
  if (!box) return;
  const rows = +box.dataset.rows, per = +box.dataset.per;
  const steps = box.dataset.steps.split(' ').map(Number);
  const list = text => text.split(' ').map(v => v === '' ? NaN : +v);
  const curves = [...document.querySelectorAll('.curve')].map(figure => ({figure,
    low: list(figure.dataset.low), high: list(figure.dataset.high)}));
  const short = v => String(+v.toPrecision(4));
  const text = (v, unit) => {
    if (unit === 's') return v >= 1 || v === 0 ? short(v) + ' s' : v >= 1e-3 ? short(v * 1e3) + ' ms' : short(v * 1e6) + ' µs';
    if (unit === 'B') { let n = 0; while (v >= 1024 && n < 4) { v /= 1024; n++; } return short(v) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][n]; }
    return short(v);
  };
  let from = 0, to = rows;
  const stepAt = row => steps[Math.max(0, Math.min(steps.length - 1, Math.floor(row / per)))];
  const draw = () => {
    const first = Math.floor(from / per), last = Math.max(first + 1, Math.ceil(to / per));
    for (const {figure, low, high} of curves) {
      let least = Infinity, most = -Infinity;
      for (let i = first; i < last; i++) { if (low[i] < least) least = low[i]; if (high[i] > most) most = high[i]; }
      if (!(least <= most)) { figure.querySelector('.line').setAttribute('d', ''); continue; }
      const span = most - least || Math.abs(most) || 1, middle = (most + least) / 2;
      const y = v => (50 - (v - middle) / span * 90).toFixed(2);
      let d = '', pen = 'M';
      for (let i = first; i < last; i++) {
        if (!(low[i] <= high[i])) { pen = 'M'; continue; }
        const x = (((i + .5) * per - from) / (to - from) * 1000).toFixed(1);
        d += pen + x + ' ' + y(low[i]) + (high[i] > low[i] ? 'L' + x + ' ' + y(high[i]) : pen === 'M' ? 'h0' : '');
        pen = 'L';
      }
      figure.querySelector('.line').setAttribute('d', d);
      const marks = figure.querySelector('.fixed');
      if (marks) marks.setAttribute('transform', `translate(${-from / (to - from) * 1000} 0) scale(${rows / (to - from)} 1)`);
      figure.querySelector('small').textContent = text(least, figure.dataset.unit) + ' to ' + text(most, figure.dataset.unit);
    }
    for (const heat of document.querySelectorAll('svg[data-first]')) {
      const scale = +heat.dataset.per, at = (from - heat.dataset.first) / scale;
      heat.setAttribute('viewBox', `${at} 0 ${(to - from) / scale} ${heat.dataset.height}`);
    }
    for (const out of document.querySelectorAll('.tools output'))
      out.textContent = `steps ${stepAt(from)} to ${stepAt(to - 1)}`;
  };
  const show = (a, b) => {
    const size = Math.min(rows, Math.max(4 * per, b - a));
    from = Math.min(Math.max(0, a), rows - size); to = from + size; draw();
  };
  const zoom = ratio => { const middle = (from + to) / 2, half = (to - from) / 2 * ratio; show(middle - half, middle + half); };
  const move = part => show(from + part * (to - from), to + part * (to - from));
  const acts = {in: () => zoom(.5), out: () => zoom(2), left: () => move(-.5), right: () => move(.5), all: () => show(0, rows)};
  for (const tools of document.querySelectorAll('.tools')) {
    tools.hidden = false;
    for (const button of tools.querySelectorAll('button')) button.addEventListener('click', acts[button.value]);
  }
  for (const plot of document.querySelectorAll('.curve .plot')) {
    let start = null, mark = null;
    const part = e => { const r = plot.getBoundingClientRect(); return Math.min(1, Math.max(0, (e.clientX - r.left) / r.width)); };
    plot.addEventListener('pointerdown', e => {
      start = part(e); plot.setPointerCapture(e.pointerId);
      mark = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
      mark.setAttribute('height', 100); plot.append(mark);
    });
    plot.addEventListener('pointermove', e => {
      if (!mark) return;
      const now = part(e);
      mark.setAttribute('x', 1000 * Math.min(start, now)); mark.setAttribute('width', 1000 * Math.abs(now - start));
    });
    const end = e => {
      if (!mark) return;
      mark.remove(); mark = null;
      const now = part(e), size = to - from, a = from + Math.min(start, now) * size, b = from + Math.max(start, now) * size;
      if (e.type === 'pointerup' && Math.abs(now - start) > .01) show(a, b);
    };
    plot.addEventListener('pointerup', end); plot.addEventListener('pointercancel', end);
    plot.addEventListener('dblclick', acts.all);
  }
  draw();
})();
)js";

const std::string_view kChartScriptHash = "bB/RHTXf9V+GgP/zUhZGBRShpxt7X4HeseGZQN+fR8g=";

namespace {

// --- Curves: 1000 by 100 units, stretched to the width that there is.

constexpr double kWidth = 1000;
constexpr double kHeight = 100;
constexpr std::size_t kMostPoints = 400;  // that are drawn without the script
constexpr std::size_t kMostMarks = 200;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Buckets {
  std::vector<double> low;  // NaN: no finite value
  std::vector<double> high;
  std::vector<std::size_t> broken;  // rows of values that are not finite, of each bucket the first
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

std::string verticals(const std::vector<std::size_t>& at, std::size_t rows,
                      std::string_view css_class, double from, double to) {
  std::string d;
  const std::size_t every = at.size() / kMostMarks + 1;
  for (std::size_t i = 0; i < at.size(); i += every)
    d += fmt::format("M{:.1f} {}V{}",
                     static_cast<double>(at[i]) / static_cast<double>(rows) * kWidth, from, to);
  return d.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>", css_class, d);
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

// --- Which ranks are shown where there are too many: those that stand out most, ascending.

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

std::string shown_ranks(const RunView& view, std::size_t shown) {
  if (shown == view.ranks.size()) return {};
  return fmt::format(" The {} of {} ranks that stand out most are shown.", shown,
                     view.ranks.size());
}

// --- The heat map.

constexpr std::size_t kHeatColumns = 240;
constexpr std::size_t kHeatRowPixels = 14;  // as high as its label

// Work of the median rank in each column of so many steps; of an even number of ranks the quicker
// of the two in the middle, so that half of them may be slow.
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

std::string heat_paths(const RunView& view, const std::vector<std::size_t>& ranks,
                       std::size_t per) {
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
  std::string out;
  for (std::size_t level = 0; level < paths.size(); ++level) {
    if (!paths[level].empty())
      out += fmt::format("<path class=\"h{}\" d=\"{}\"/>", level, paths[level]);
  }
  return out;
}

// --- Lanes.

// The phases in the order in which a step goes through them, and their colours on all pages;
// others, which only foreign records have, come before the communication.
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

// The stretch of steps that is drawn, and where its seconds lie in the picture.
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

// Draws the parts of one lane one after another.
class LanePen {
 public:
  LanePen(double row, double scale) : top_(4 + row * kLaneHeight), scale_(scale) {}

  void go_to(double seconds) { at_ = seconds; }
  void draw(double seconds, const std::string& css_class, const std::string& what) {
    if (!(seconds > 0) || !std::isfinite(seconds)) return;
    const double width = seconds * scale_;
    if (width >= 0.3)
      out_ += fmt::format(
          "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}, "
          "{}</title></rect>",
          css_class, kLanesLeft + at_ * scale_, top_, width, kLaneHeight - 5, what,
          seconds_text(seconds));
    at_ += seconds;
  }
  std::string take() { return std::move(out_); }

 private:
  double top_;
  double scale_;
  double at_ = 0;
  std::string out_;
};

using PhaseColumns = std::map<std::string, std::vector<double>, std::less<>>;

PhaseColumns phases_of(const RunView& view, std::size_t rank) {
  PhaseColumns out;
  for (const auto& [name, column] : view.run->ranks[rank].phases)
    out.emplace(name, view.column(rank, view.run->ranks[rank].phases, name));
  return out;
}

std::string lane_of(const RunView& view, const Window& window, std::size_t rank, double row) {
  const PhaseColumns phases = phases_of(view, rank);
  LanePen pen(row, window.scale());
  double begin = 0;
  for (std::size_t s = window.begin; s < window.end; ++s) {
    const std::string where =
        fmt::format("rank {}, step {}: ", view.run->ranks[rank].rank, view.steps[s]);
    const auto draw = [&](std::string_view name, std::size_t colour) {
      const auto found = phases.find(name);
      if (found == phases.end() || diagnosis::is_absent(found->second[s])) return;
      pen.draw(found->second[s], fmt::format("f{}", colour), where + escape(name));
    };
    pen.go_to(begin);
    for (const Lane& lane : kBefore) draw(lane.name, lane.colour);
    for (const auto& [name, column] : phases) {
      if (!is_placed(name)) draw(name, kForeignColour);
    }
    pen.draw(view.wait(rank, s), "fw", where + "waiting for the last rank");
    pen.draw(view.transfer(rank, s), fmt::format("f{}", kTransferColour), where + "communication");
    for (const Lane& lane : kAfter) draw(lane.name, lane.colour);
    begin += view.wall(s);
  }
  return pen.take();
}

std::string lane_keys() {
  std::string out = "<ul class=\"keys\">";
  const auto add = [&out](std::string_view css_class, std::string_view name) {
    out += fmt::format("<li><i class=\"{}\"></i>{}</li>", css_class, name);
  };
  for (const Lane& lane : kBefore) add(fmt::format("ph{}", lane.colour), lane.name);
  add("fw", "waiting for the last rank");
  add(fmt::format("ph{}", kTransferColour), "communication");
  for (const Lane& lane : kAfter) add(fmt::format("ph{}", lane.colour), lane.name);
  return out + "</ul>";
}

}  // namespace

std::string axis_attributes(const RunAxis& axis) {
  std::vector<double> steps;
  for (std::size_t row = 0; row < axis.rows(); row += axis.per_bucket())
    steps.push_back(axis.steps[row]);
  return fmt::format(" data-rows=\"{}\" data-per=\"{}\" data-steps=\"{}\"", axis.rows(),
                     axis.per_bucket(), numbers_of(steps));
}

std::string curve_figure(const RunAxis& axis, const RunCurve& curve) {
  const Buckets fine = buckets_of(curve.values, axis.per_bucket());
  const Extent extent = extent_of(fine);
  if (std::isnan(extent.low)) return {};
  const std::size_t merge = (fine.low.size() + kMostPoints - 1) / kMostPoints;
  const std::string line =
      line_of(merge > 1 ? merged(fine, merge) : fine, extent,
              static_cast<double>(axis.per_bucket() * merge), static_cast<double>(axis.rows()));
  const std::string range =
      value_text(extent.low, curve.unit) + " to " + value_text(extent.high, curve.unit);
  constexpr std::array kUnits = {"", "s", "B"};
  return fmt::format(
      "<figure class=\"curve\" data-unit=\"{}\" data-low=\"{}\" data-high=\"{}\"><figcaption>"
      "<span>{}</span><small>{}</small></figcaption><svg class=\"plot\" viewBox=\"0 0 1000 100\" "
      "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{} over the run, {}\">"
      "<g class=\"fixed\">{}{}</g><path class=\"line\" d=\"{}\"/></svg></figure>",
      kUnits[static_cast<std::size_t>(curve.unit)], numbers_of(fine.low), numbers_of(fine.high),
      escape(curve.title), range, escape(curve.title), range,
      verticals(axis.marks, axis.rows(), "plan", 0, kHeight),
      verticals(fine.broken, axis.rows(), "gap", kHeight - 12, kHeight), line);
}

std::string run_heat_map(const RunView& view) {
  if (view.ranks.size() < 2 || view.size() == 0) return {};
  const std::size_t per = (view.size() + kHeatColumns - 1) / kHeatColumns;
  const std::size_t columns = (view.size() + per - 1) / per;
  const std::vector<std::size_t> ranks = standing_out(view, kHeatRows);
  std::string labels = "<ol>";
  for (const std::size_t rank : ranks)
    labels += fmt::format("<li>{}</li>", view.run->ranks[rank].rank);
  return fmt::format(
      "<p class=\"hint\">A row is a rank, a column {}; the colour is its own work over the median "
      "rank's.{}</p><div class=\"heat\">{}</ol><svg class=\"plot\" role=\"img\" aria-label=\"Own "
      "work of {} ranks over the median in steps {} to {}\" data-first=\"{}\" data-per=\"{}\" "
      "data-height=\"{}\" style=\"height:{}px\" viewBox=\"0 0 {} {}\" "
      "preserveAspectRatio=\"none\">{}</svg></div>"
      "<p class=\"range\"><span>step {}</span><span>step {}</span></p><ul class=\"keys\">{}</ul>",
      per == 1 ? "a step" : fmt::format("the mean of {} steps", per),
      shown_ranks(view, ranks.size()), labels, ranks.size(), view.steps.front(), view.steps.back(),
      view.first, per, ranks.size(), kHeatRowPixels * ranks.size(), columns, ranks.size(),
      heat_paths(view, ranks, per), view.steps.front(), view.steps.back(), metrics::heat_keys());
}

std::string phase_lanes(const RunView& view) {
  if (view.size() == 0) return {};
  const Window window = window_of(view);
  if (!(window.seconds > 0) || !std::isfinite(window.seconds)) return {};
  const std::vector<std::size_t> ranks = standing_out(view, kLaneRanks);
  const double bottom = 4 + kLaneHeight * static_cast<double>(ranks.size());
  std::string out = fmt::format(
      "<p class=\"hint\">Steps {} to {}, around the longest one ({}, {}).{}</p><div "
      "class=\"scroll\"><svg class=\"lanes\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"Phases of {} ranks in steps {} to {}\">",
      view.steps[window.begin], view.steps[window.end - 1], view.steps[window.longest],
      seconds_text(view.wall(window.longest)), shown_ranks(view, ranks.size()), kLanesWidth,
      bottom + 18, ranks.size(), view.steps[window.begin], view.steps[window.end - 1]);
  double begin = 0;
  for (std::size_t s = window.begin; s < window.end; ++s) {
    const double x = kLanesLeft + begin * window.scale();
    out += fmt::format(
        "<path class=\"beat\" d=\"M{:.1f} 0V{}\"/><text x=\"{:.1f}\" y=\"{}\">{}"
        "</text>",
        x, bottom + 4, x + 2, bottom + 14, view.steps[s]);
    begin += view.wall(s);
  }
  for (std::size_t row = 0; row < ranks.size(); ++row) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">rank {}</text>", kLanesLeft - 8,
                       4 + kLaneHeight * static_cast<double>(row) + 13,
                       view.run->ranks[ranks[row]].rank);
    out += lane_of(view, window, ranks[row], static_cast<double>(row));
  }
  return out + "</svg></div>" + lane_keys();
}

}  // namespace cox::tools
