#include "coordinator/planner/linear_bound.h"

#include <algorithm>
#include <cmath>

#include "coordinator/planner/step_tables.h"

namespace cox::planner {
namespace {

struct Choice {
  std::int64_t kept = 0;
  std::int64_t added = 0;
};

// Going from one choice of a stage to the next cheaper one in bytes.
struct Saving {
  std::size_t stage = 0;
  std::int64_t bytes = 0;
  std::int64_t added = 0;
  double price() const { return static_cast<double>(added) / static_cast<double>(bytes); }
};

// The choices of a stage that lie on its lower hull, by falling kept bytes.
std::vector<Choice> hull_of(const Stage& stage) {
  std::vector<Choice> all;
  for (const StageOption& o : stage.options) {
    if (o.allowed) all.push_back({o.kept_bytes, o.added_us});
  }
  std::sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) {
    return a.added != b.added ? a.added < b.added : a.kept < b.kept;
  });
  std::vector<Choice> hull;
  for (const Choice& c : all) {
    if (!hull.empty() && c.kept >= hull.back().kept) continue;
    const auto price = [](const Choice& from, const Choice& to) {
      return Saving{0, from.kept - to.kept, to.added - from.added}.price();
    };
    while (hull.size() > 1 &&
           price(hull[hull.size() - 2], c) <= price(hull[hull.size() - 2], hull.back()))
      hull.pop_back();
    hull.push_back(c);
  }
  return hull;
}

std::int64_t least_high(const Stage& stage) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const StageOption& o : stage.options) {
    if (o.allowed) least = std::min(least, std::max(o.forward_high_bytes, o.backward_high_bytes));
  }
  return least;
}

}  // namespace

LinearBound::LinearBound(const MemoryProblem& problem, std::size_t places) {
  const std::size_t n = problem.stages.size();
  std::vector<Saving> savings;
  std::vector<Choice> fastest(n + 1);  // sums before each stage
  for (std::size_t i = 0; i < n; ++i) {
    const std::vector<Choice> hull = hull_of(problem.stages[i]);
    fastest[i + 1] = {fastest[i].kept + hull[0].kept, fastest[i].added + hull[0].added};
    for (std::size_t c = 1; c < hull.size(); ++c)
      savings.push_back({i, hull[c - 1].kept - hull[c].kept, hull[c].added - hull[c - 1].added});
  }
  std::sort(savings.begin(), savings.end(), [](const Saving& a, const Saving& b) {
    return a.price() != b.price() ? a.price() < b.price() : a.stage < b.stage;
  });
  places = std::min(places, n);
  for (std::size_t p = 1; p <= places; ++p) {
    const std::size_t place = n * p / places - 1;
    std::int64_t peak =
        problem.base_bytes + fastest[place].kept + least_high(problem.stages[place]);
    double added = static_cast<double>(fastest[n].added);
    std::vector<Corner> curve = {{peak, added}};
    for (const Saving& s : savings) {
      if (s.stage >= place) continue;
      peak -= s.bytes;
      added += static_cast<double>(s.added);
      curve.push_back({peak, added});
    }
    std::reverse(curve.begin(), curve.end());
    curves_.push_back(std::move(curve));
  }
}

std::int64_t LinearBound::added_us(std::int64_t budget_bytes) const {
  double most = 0;
  for (const std::vector<Corner>& curve : curves_) {
    const auto above = std::upper_bound(
        curve.begin(), curve.end(), budget_bytes,
        [](std::int64_t budget, const Corner& c) { return budget < c.peak_bytes; });
    if (above == curve.begin() || above == curve.end()) {
      most = std::max(most, above == curve.end() ? curve.back().added_us : curve.front().added_us);
      continue;
    }
    const Corner& low = *(above - 1);
    const double part = static_cast<double>(budget_bytes - low.peak_bytes) /
                        static_cast<double>(above->peak_bytes - low.peak_bytes);
    most = std::max(most, low.added_us + part * (above->added_us - low.added_us));
  }
  return static_cast<std::int64_t>(std::floor(most));
}

}  // namespace cox::planner
