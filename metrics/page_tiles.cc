#include <cmath>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/plan_view.h"
#include "metrics/sparkline.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

struct Tile {
  std::string_view title;
  std::string value;
  std::string unit;
  std::string hint;
  std::string curve;
};

std::string html(const Tile& tile) {
  std::string out = "<section class=\"card tile\"><h2>" + std::string(tile.title) +
                    "</h2><p class=\"big\">" + tile.value;
  if (!tile.unit.empty()) out += "<small>" + tile.unit + "</small>";
  return out + "</p><p class=\"hint\">" + tile.hint + "</p>" + tile.curve + "</section>";
}

std::string curve(const RoundPoints& points, std::string_view name, double RoundPoint::*member,
                  std::string (*format)(double), double flat_ratio = 0.1) {
  Curve c{name, {}, {}, format, flat_ratio};
  for (std::size_t i = 0; i < points.size(); ++i) {
    c.values.push_back(points[i].*member);
    if (i > 0 && points[i].plan != points[i - 1].plan) c.marks.push_back(i);
  }
  return sparkline(c);
}

std::string loss_text(double loss) {
  return significant(loss, 4);
}

// The newest round in which somebody trained. Requires: there was one.
const RoundPoint& newest(const Snapshot& s) {
  return s.points[s.points.size() - 1];
}

Tile loss_tile(const Snapshot& s) {
  Tile tile{"Loss", loss_text(newest(s).loss), "", "", ""};
  if (std::isfinite(s.first_loss)) tile.hint = loss_text(s.first_loss) + " at the start";
  tile.curve = curve(s.points, "Loss", &RoundPoint::loss, loss_text, 0.002);
  return tile;
}

Tile rate_tile(const Snapshot& s) {
  const bool tokens = s.totals.tokens > 0;
  Tile tile{"Throughput", rate_text(newest(s).rate_per_second), tokens ? "tokens/s" : "samples/s",
            "", ""};
  tile.hint = grouped(tokens ? s.totals.tokens : s.totals.samples) +
              (tokens ? " tokens" : " samples") + " so far";
  tile.curve = curve(s.points, "Throughput", &RoundPoint::rate_per_second, rate_text);
  return tile;
}

Tile time_tile(const Snapshot& s) {
  const Spread& wall = s.summary.wall_seconds;
  Tile tile{"Step time", seconds_text(newest(s).step_seconds), "median rank", "", ""};
  if (wall.rank_of_max.value() >= 0)
    tile.hint =
        "longest " + seconds_text(wall.max) + ", rank " + std::to_string(wall.rank_of_max.value());
  tile.curve = curve(s.points, "Step time", &RoundPoint::step_seconds, seconds_text);
  return tile;
}

Tile skew_tile(const Snapshot& s) {
  Tile tile{"Skew", times_text(newest(s).skew_ratio), "slowest to median", "", ""};
  if (newest(s).skew_ratio <= 1.005) tile.hint = "the ranks are even";
  if (!s.summary.worst.empty() && s.summary.worst.front().slowdown_ratio > 1.005) {
    const WorstRank& worst = s.summary.worst.front();
    tile.hint = "rank " + std::to_string(worst.rank.value()) + ", mostly in " +
                std::string(to_string(worst.phase));
  }
  tile.curve = curve(s.points, "Skew", &RoundPoint::skew_ratio, times_text);
  return tile;
}

}  // namespace

std::string page_tiles(const Snapshot& s) {
  if (s.points.size() == 0) return {};
  return "<div class=\"tiles\">" + html(loss_tile(s)) + html(rate_tile(s)) + html(time_tile(s)) +
         html(skew_tile(s)) + "</div>";
}

}  // namespace cox::metrics
