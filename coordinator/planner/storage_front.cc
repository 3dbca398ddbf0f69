#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "coordinator/planner/operator_graph.h"
#include "coordinator/planner/replay_model.h"

namespace cox::planner {
namespace {

// One subset of the groups.
struct Trial {
  std::int64_t bytes = 0;
  std::int64_t ns = 0;
  std::uint32_t mask = 0;  // the groups that are kept
};

// A group of storages that are kept or dropped together.
struct Group {
  std::int64_t bytes = 0;
  std::vector<std::int32_t> storages;
};

bool is_before(const StoragePoint& a, const StoragePoint& b) {
  if (a.held_bytes != b.held_bytes) return a.held_bytes < b.held_bytes;
  if (a.replay_ns != b.replay_ns) return a.replay_ns < b.replay_ns;
  if (a.replay_bytes != b.replay_bytes) return a.replay_bytes < b.replay_bytes;
  return a.kept > b.kept;
}

class FrontSearch {
 public:
  FrontSearch(const OperatorGraph& graph, const StorageFrontLimits& limits)
      : graph_(graph), limits_(limits), model_(graph), kept_(graph.storages.size()) {}

  StorageFront run() {
    make_groups();
    std::vector<Trial> trials = enumerate();
    std::vector<StoragePoint> points;
    for (const Trial& it : not_beaten(std::move(trials))) {
      set(it.mask);
      points.push_back(point_of(graph_, model_, kept_));
    }
    front_.points = thinned(std::move(points));
    if (!front_.is_exact) improve();
    front_.work = model_.work();
    return std::move(front_);
  }

 private:
  bool is_spent() const {
    return front_.subsets >= limits_.most_subsets || model_.work() >= limits_.most_work;
  }

  // Creates one group per candidate. Merges the two smallest groups while there are too many.
  void make_groups() {
    // Storages held anyway cost nothing to keep.
    for (std::size_t s = 0; s < kept_.size(); ++s) kept_[s] = graph_.storages[s].is_held;
    for (const std::int32_t s : candidates(graph_))
      groups_.push_back({kept_bytes(graph_.storages[static_cast<std::size_t>(s)]), {s}});
    const std::size_t most = most_groups();
    while (groups_.size() > most) {
      front_.is_exact = false;
      std::ranges::stable_sort(groups_, std::ranges::greater{}, &Group::bytes);
      const Group last = std::move(groups_.back());
      groups_.pop_back();
      groups_.back().bytes += last.bytes;
      auto& storages = groups_.back().storages;
      storages.insert(storages.end(), last.storages.begin(), last.storages.end());
    }
  }

  // Measures the cost of a subset with the one that keeps nothing. If not all subsets can be tried,
  // half of the work remains for improve().
  std::size_t most_groups() {
    const std::size_t before = model_.work();
    model_.nanoseconds(kept_);
    const std::size_t each = model_.work() - before + 1;
    std::size_t subsets = std::min(limits_.most_subsets, limits_.most_work / each);
    if (groups_.size() < 31 && std::size_t{1} << groups_.size() > subsets) subsets /= 2;
    return std::min<std::size_t>(
        31, static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(2, subsets))) - 1);
  }

  std::vector<Trial> enumerate() {
    std::vector<Trial> trials;
    const std::uint32_t all = (std::uint32_t{1} << groups_.size()) - 1;
    for (std::uint32_t mask = 0;; ++mask) {
      const std::int64_t bytes = set(mask);
      trials.push_back({bytes, model_.nanoseconds(kept_), mask});
      ++front_.subsets;
      if (mask == all) return trials;
    }
  }

  std::int64_t set(std::uint32_t mask) {
    std::int64_t bytes = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const bool is_kept = (mask >> g & 1) != 0;
      if (is_kept) bytes += groups_[g].bytes;
      for (const std::int32_t s : groups_[g].storages) kept_[static_cast<std::size_t>(s)] = is_kept;
    }
    return bytes;
  }

  // Keeps all trials of equal bytes and time, because their bytes in replay are not known yet.
  static std::vector<Trial> not_beaten(std::vector<Trial> trials) {
    std::ranges::sort(trials, [](const Trial& a, const Trial& b) {
      if (a.bytes != b.bytes) return a.bytes < b.bytes;
      return a.ns != b.ns ? a.ns < b.ns : a.mask > b.mask;
    });
    std::vector<Trial> left;
    for (const Trial& it : trials) {
      const bool is_equal =
          !left.empty() && left.back().bytes == it.bytes && left.back().ns == it.ns;
      if (left.empty() || it.ns < left.back().ns || is_equal) left.push_back(it);
    }
    return left;
  }

  static std::vector<StoragePoint> thinned(std::vector<StoragePoint> points) {
    std::ranges::sort(points, is_before);
    std::vector<StoragePoint> left;
    for (StoragePoint& it : points) {
      if (left.empty() || it.replay_ns < left.back().replay_ns) left.push_back(std::move(it));
    }
    return left;
  }

  // Flips single storages of each point, as long as new points are found.
  void improve() {
    const std::vector<std::int32_t> storages = candidates(graph_);
    std::vector<StoragePoint> fresh = front_.points;
    while (!fresh.empty()) {
      std::vector<StoragePoint> tried;
      for (const StoragePoint& from : fresh) {
        for (const std::int32_t s : storages) {
          if (is_spent()) break;
          KeptSet kept = from.kept;
          kept[static_cast<std::size_t>(s)].flip();
          ++front_.subsets;
          const std::int64_t bytes = held_bytes(graph_, kept);
          if (!is_beaten(bytes, model_.nanoseconds(kept)))
            tried.push_back(point_of(graph_, model_, kept));
        }
      }
      fresh = merge(std::move(tried));
    }
  }

  bool is_beaten(std::int64_t bytes, std::int64_t ns) const {
    const auto after =
        std::ranges::upper_bound(front_.points, bytes, {}, &StoragePoint::held_bytes);
    return after != front_.points.begin() && std::prev(after)->replay_ns <= ns;
  }

  // Returns the tried points that are now in the front.
  std::vector<StoragePoint> merge(std::vector<StoragePoint> tried) {
    std::vector<StoragePoint> all = front_.points;
    const std::vector<StoragePoint> before = std::exchange(front_.points, {});
    all.insert(all.end(), tried.begin(), tried.end());
    front_.points = thinned(std::move(all));
    std::vector<StoragePoint> fresh;
    for (const StoragePoint& it : front_.points) {
      if (std::ranges::find(before, it.kept, &StoragePoint::kept) == before.end())
        fresh.push_back(it);
    }
    return fresh;
  }

  const OperatorGraph& graph_;
  const StorageFrontLimits limits_;
  ReplayModel model_;
  KeptSet kept_;
  std::vector<Group> groups_;
  StorageFront front_;
};

// StepLosses is the time lost if only some points of a front remain: a budget between two of them
// then takes the time of the lower one. Summed over all budgets between the two.
class StepLosses {
 public:
  explicit StepLosses(const std::vector<StoragePoint>& points) : points_(points), sums_{0} {
    for (std::size_t i = 0; i + 1 < points.size(); ++i) {
      const double width = bytes(i + 1) - bytes(i);
      sums_.push_back(sums_.back() + width * ns(i));
    }
  }
  double between(std::size_t from, std::size_t to) const {
    return ns(from) * (bytes(to) - bytes(from)) - (sums_[to] - sums_[from]);
  }

 private:
  double bytes(std::size_t i) const { return static_cast<double>(points_[i].held_bytes); }
  double ns(std::size_t i) const { return static_cast<double>(points_[i].replay_ns); }

  const std::vector<StoragePoint>& points_;
  std::vector<double> sums_;  // integral of time over bytes, up to each point
};

// Choice is the last chosen point before another one, with the loss up to that one.
struct Choice {
  double lost = std::numeric_limits<double>::infinity();
  std::size_t before = 0;
};

// Returns the best choices with one more point between the first point and each point.
std::vector<Choice> with_one_more(const std::vector<Choice>& choices, const StepLosses& losses) {
  std::vector<Choice> more(choices.size());
  for (std::size_t to = 1; to < choices.size(); ++to) {
    for (std::size_t before = 1; before < to; ++before) {
      const double lost = choices[before].lost + losses.between(before, to);
      if (lost < more[to].lost) more[to] = {lost, before};
    }
  }
  return more;
}

}  // namespace

StorageFront storage_front(const OperatorGraph& graph, const StorageFrontLimits& limits) {
  return FrontSearch(graph, limits).run();
}

std::vector<std::size_t> levels(const StorageFront& front, std::size_t most) {
  const std::size_t n = front.points.size();
  if (n <= 2) return {};
  const std::size_t count = std::min(most, n - 2);
  const StepLosses losses(front.points);
  std::vector<std::vector<Choice>> choices{std::vector<Choice>(n)};
  for (std::size_t i = 0; i < n; ++i) choices[0][i].lost = losses.between(0, i);
  for (std::size_t k = 0; k < count; ++k) choices.push_back(with_one_more(choices.back(), losses));
  std::vector<std::size_t> chosen(count);
  std::size_t at = n - 1;
  for (std::size_t k = count; k > 0; --k) chosen[k - 1] = at = choices[k][at].before;
  return chosen;
}

}  // namespace cox::planner
