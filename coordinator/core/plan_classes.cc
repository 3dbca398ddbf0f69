#include "coordinator/core/plan_classes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cox {

std::vector<ClassMove> class_moves(const Plan& before, const Plan& after) {
  const std::size_t ranks = std::max(before.rank_class.size(), after.rank_class.size());
  if (ranks == 0) return {ClassMove{}};
  std::map<std::pair<ClassId, ClassId>, std::vector<RankId>> moves;
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankId rank(static_cast<std::int32_t>(r));
    moves[{class_of(before, rank), class_of(after, rank)}].push_back(rank);
  }
  std::vector<ClassMove> sorted;
  for (auto& [pair, members] : moves) {
    sorted.push_back({pair.first, pair.second, std::move(members)});
  }
  return sorted;
}

bool same_actions(const Plan& a, const Plan& b) {
  if (a.classes == b.classes && a.rank_class == b.rank_class) return true;
  for (const ClassMove& move : class_moves(a, b)) {
    if (a.classes[move.before.value()] != b.classes[move.after.value()]) return false;
  }
  return true;
}

}  // namespace cox
