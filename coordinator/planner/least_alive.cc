// The set of kept storages with which the least is alive at once in a chain of equal regions.
#include <utility>
#include <vector>

#include "coordinator/planner/operator_graph.h"
#include "coordinator/planner/replay_model.h"

namespace cox::planner {
namespace {

class LeastAlive {
 public:
  LeastAlive(const OperatorGraph& graph, const StorageFrontLimits& limits)
      : graph_(graph), limits_(limits), model_(graph), candidates_(candidates(graph)) {}

  StoragePoint run() {
    const StoragePoint from_none = improved(priced(end_of(Keeps::none)));
    const StoragePoint from_all = improved(priced(end_of(Keeps::all)));
    return is_less(from_all, from_none) ? from_all : from_none;
  }

 private:
  static bool is_less(const StoragePoint& a, const StoragePoint& b) {
    const std::int64_t of_a = chain_bytes(a), of_b = chain_bytes(b);
    return of_a != of_b ? of_a < of_b : a.held_bytes < b.held_bytes;
  }

  enum class Keeps : bool { none, all };
  KeptSet end_of(Keeps keeps) const {
    KeptSet kept(graph_.storages.size());
    for (std::size_t s = 0; s < kept.size(); ++s) kept[s] = graph_.storages[s].is_held;
    for (const std::int32_t s : candidates_)
      kept[static_cast<std::size_t>(s)] = keeps == Keeps::all;
    return kept;
  }

  StoragePoint priced(const KeptSet& kept) {
    ++subsets_;
    return point_of(graph_, model_, kept);
  }

  bool is_spent() const {
    return subsets_ >= limits_.most_subsets || model_.work() >= limits_.most_work;
  }

  // Repeats the best change of one storage, or of two if no single change helps, until nothing
  // helps.
  StoragePoint improved(StoragePoint from) {
    for (bool helps = true; helps && !is_spent();) {
      StoragePoint best = best_change(from, Changes::one);
      if (!is_less(best, from)) best = best_change(from, Changes::two);
      helps = is_less(best, from);
      from = std::move(best);
    }
    return from;
  }

  enum class Changes : bool { one, two };
  StoragePoint best_change(const StoragePoint& from, Changes changes) {
    StoragePoint best = from;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      const std::size_t end = changes == Changes::one ? i + 1 : candidates_.size();
      for (std::size_t k = changes == Changes::one ? i : i + 1; k < end && !is_spent(); ++k) {
        KeptSet kept = from.kept;
        kept[static_cast<std::size_t>(candidates_[i])].flip();
        if (k != i) kept[static_cast<std::size_t>(candidates_[k])].flip();
        StoragePoint tried = priced(kept);
        if (is_less(tried, best)) best = std::move(tried);
      }
    }
    return best;
  }

  const OperatorGraph& graph_;
  const StorageFrontLimits limits_;
  ReplayModel model_;
  const std::vector<std::int32_t> candidates_;
  std::size_t subsets_ = 0;
};

}  // namespace

std::int64_t chain_bytes(const StoragePoint& point) {
  return point.held_bytes + point.alive_bytes;
}

StoragePoint least_alive(const OperatorGraph& graph, const StorageFrontLimits& limits) {
  return LeastAlive(graph, limits).run();
}

}  // namespace cox::planner
