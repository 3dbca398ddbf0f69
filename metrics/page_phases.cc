#include "metrics/format.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

double total_median(const StepSummary& summary) {
  double total = 0;
  for (const Spread& spread : summary.phases) total += spread.median;
  return total;
}

std::string segment(std::size_t phase, double share) {
  return "<i class=\"ph" + std::to_string(phase) + "\" style=\"width:" + fixed(100 * share, 2) +
         "%\" title=\"" + std::string(kPhaseNames[phase]) + " " + percent_text(share, 0) +
         "\"></i>";
}

std::string legend_entry(std::size_t phase, const Spread& spread, double share) {
  std::string out = "<li><span class=\"key ph" + std::to_string(phase) + "\"></span><span>" +
                    std::string(kPhaseNames[phase]) + "</span><span>" + percent_text(share, 0) +
                    "</span><small>" + seconds_text(spread.median);
  if (spread.rank_of_max.value() >= 0 && spread.max > 1.05 * spread.median)
    out += "<br/>up to " + seconds_text(spread.max) + ", rank " +
           std::to_string(spread.rank_of_max.value());
  return out + "</small></li>";
}

}  // namespace

std::string page_phases(const StepSummary& summary) {
  const double total = total_median(summary);
  if (total <= 0) return {};
  std::string bar;
  std::string legend;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const Spread& spread = summary.phases[p];
    if (spread.max <= 0) continue;
    bar += segment(p, spread.median / total);
    legend += legend_entry(p, spread, spread.median / total);
  }
  return "<section class=\"card\"><h2>Where a step goes</h2><p class=\"hint\">Median over the "
         "ranks; waiting "
         "for others counts as communication.</p><div class=\"bar\" aria-hidden=\"true\">" +
         bar + "</div><ul class=\"legend\">" + legend + "</ul></section>";
}

}  // namespace cox::metrics
