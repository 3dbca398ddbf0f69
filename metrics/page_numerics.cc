#include "metrics/page_numerics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/sparkline.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::uint64_t kRecentRounds = 100;  // an overflow that old is history
constexpr std::size_t kEarlierShown = 5;

std::string fact(std::string_view name, const std::string& value) {
  return "<div><dt>" + std::string(name) + "</dt><dd>" + value + "</dd></div>";
}

std::string scale_of_exponent(double exponent) {
  return scale_text(std::exp2(exponent));
}

// Doublings and halvings look alike at any level.
std::string scale_curve(const RoundPoints& points) {
  Curve curve{"Loss scale", {}, {}, scale_of_exponent, 0.1};
  for (std::size_t i = 0; i < points.size(); ++i) {
    const float scale = points[i].loss_scale;
    if (scale <= 0 && curve.values.empty()) continue;  // the scaler had not begun
    curve.values.push_back(scale > 0 ? std::log2(static_cast<double>(scale))
                                     : std::numeric_limits<double>::quiet_NaN());
    if (i > 0 && points[i].plan != points[i - 1].plan)
      curve.marks.push_back(curve.values.size() - 1);
  }
  return sparkline(curve);
}

// "7, of the last 300 rounds 2.3 %"
std::string skipped_text(const Snapshot& s) {
  std::string text = grouped(s.totals.skipped_rounds);
  if (s.points.size() == 0 || s.totals.skipped_rounds == 0) return text;
  double skipped = 0;
  for (std::size_t i = 0; i < s.points.size(); ++i) skipped += s.points[i].was_skipped ? 1 : 0;
  const auto rounds = static_cast<double>(s.points.size());
  return text + ", " + percent_text(skipped / rounds, 1) + " of the last " +
         std::to_string(s.points.size()) + " rounds";
}

std::string rules_text(const ScalerRules& rules) {
  const auto scale = [](float value) { return scale_text(static_cast<double>(value)); };
  std::string text = "×" + scale(rules.growth_factor) + " after " + grouped(rules.growth_interval) +
                     " clean steps, ×" + scale(rules.backoff_factor);
  text += rules.hysteresis > 1 ? " after " + grouped(rules.hysteresis) + " overflows in a row"
                               : " after an overflow";
  return text + ", from " + scale(rules.min_scale) + " to " + scale(rules.max_scale);
}

// "65536", with a mark where it cannot fall any further.
std::string scale_value(const Snapshot& s) {
  const float scale = s.numerics->loss_scale;
  if (scale <= 0) return "none: no block needs one";
  const bool is_at_floor = scale <= s.plan->scaler.min_scale;
  return "<b class=\"big\">" + scale_text(static_cast<double>(scale)) + "</b>" +
         (is_at_floor ? " <span class=\"tag warn\">▼ at its floor</span>" : "");
}

std::string scaler_part(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  std::string out = "<div class=\"scaler\"><dl class=\"facts\">";
  out += fact("Loss scale", scale_value(s));
  out += fact("Rounds with an overflow", grouped(view.overflow_rounds));
  out += fact("Rounds with a skipped step", skipped_text(s));
  out += "</dl>";
  if (view.loss_scale <= 0) return out + "</div>";
  return out + scale_curve(s.points) + "<p class=\"hint\">" + rules_text(s.plan->scaler) +
         "</p></div>";
}

// The newest overflow as one sentence; earlier ones folded away below it.
std::string overflow_part(const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  const Overflow* last = view.last_overflow();
  if (last == nullptr) return {};
  const bool is_recent = last->round.value() + kRecentRounds >= s.summary.round.value();
  std::string out = "<p class=\"group overflow" + std::string(is_recent ? " note bad" : "") +
                    "\"><strong>Last overflow:</strong> " + escape(overflow_text(*s.job, *last)) +
                    "</p>";
  const std::size_t earlier = view.overflows.size() - 1;
  if (earlier == 0) return out;
  const std::size_t shown = std::min(earlier, kEarlierShown);
  out += "<details class=\"group\"><summary>" + std::to_string(shown) +
         (shown == 1 ? " earlier one" : " earlier ones") + "</summary><ul class=\"plain\">";
  for (std::size_t i = 0; i < shown; ++i)
    out += "<li>" + escape(overflow_text(*s.job, view.overflows[earlier - 1 - i])) + "</li>";
  return out + "</ul></details>";
}

}  // namespace

std::string page_numerics(const Snapshot& s) {
  if (!is_at_work(*s.numerics)) return {};
  return "<section class=\"card\"><h2>Numerics</h2><p class=\"hint\">What each block computes in, "
         "and how well that goes. A format changes on all ranks in the same step. <a "
         "href=\"/api/v1/numerics\">All figures</a>.</p>" +
         overflow_part(s) + "<div class=\"split\"><div>" + numerics_cells(s) + "</div>" +
         scaler_part(s) + "</div>" + numerics_table(s) + "</section>";
}

}  // namespace cox::metrics
