#include "coordinator/planner/completion_bound.h"

#include <algorithm>

#include "coordinator/planner/budget_search.h"

namespace cox::planner {
namespace {

constexpr std::size_t kTreadsInAll = std::size_t{1} << 21;

}  // namespace

CompletionBound::CompletionBound(const StepTables& tables, std::int64_t budget_bytes)
    : tables_(tables), room_bytes_(budget_bytes - tables.problem.base_bytes) {
  const std::size_t n = tables.problem.stages.size();
  most_treads_ = std::clamp<std::size_t>(kTreadsInAll / n, 256, 16384);
  stairs_.resize(4 * (n + 1));
  for (const Before before : {Before::resident, Before::offloaded}) {
    for (const Further further : {Further::none, Further::offloads})
      stairs(n, before, further) = {{kNever, 0}};
  }
  for (std::size_t i = n; i-- > 0;) {
    for (const Further further : {Further::none, Further::offloads}) {
      build(i, Before::resident, further);
      if (i > 0 && tables.problem.stages[i - 1].options[kOffload].allowed)
        build(i, Before::offloaded, further);
    }
  }
}

CompletionBound::Stairs& CompletionBound::stairs(std::size_t stage, Before before,
                                                 Further further) {
  return stairs_[4 * stage + 2 * static_cast<std::size_t>(before) +
                 static_cast<std::size_t>(further)];
}

void CompletionBound::build(std::size_t stage, Before before, Further further) {
  Stairs all;
  for (std::size_t a = 0; a < kActions; ++a) {
    const bool is_offload = a == kOffload;
    if (!tables_.problem.stages[stage].options[a].allowed) continue;
    if (is_offload && further == Further::none) continue;
    const std::size_t middle = all.size();
    append(stage, a, before, further, all);
    std::inplace_merge(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(middle), all.end(),
                       [](const Tread& x, const Tread& y) {
                         return x.added_us != y.added_us ? x.added_us < y.added_us
                                                         : x.most_kept > y.most_kept;
                       });
  }
  Stairs& out = stairs(stage, before, further);
  for (const Tread& tread : all) {
    if (out.empty() || tread.most_kept > out.back().most_kept) out.push_back(tread);
  }
  if (out.size() > most_treads_) coarsen(out);
}

void CompletionBound::append(std::size_t stage, std::size_t action, Before before, Further further,
                             Stairs& out) {
  const StageOption& option = tables_.problem.stages[stage].options[action];
  std::int64_t added = option.added_us;
  std::int64_t fetched = 0;
  if (before == Before::offloaded) {
    added += tables_.wait_us(stage - 1, action);
    fetched = tables_.problem.stages[stage - 1].options[kOffload].copied_bytes;
  }
  const std::int64_t room = room_bytes_ - std::max(option.forward_high_bytes,
                                                   option.backward_high_bytes + fetched);
  const Before next = action == kOffload ? Before::offloaded : Before::resident;
  std::int64_t highest = -1;
  for (const Tread& tread : stairs(stage + 1, next, further)) {
    const std::int64_t most = std::min(room, tread.most_kept - option.kept_bytes);
    if (most <= highest) continue;
    highest = most;
    out.push_back({most, tread.added_us + added});
  }
}

// Two neighbours become one that is easier to reach than either.
void CompletionBound::coarsen(Stairs& all) {
  is_whole_ = false;
  Stairs fewer;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const std::size_t last = std::min(i + 1, all.size() - 1);
    fewer.push_back({all[last].most_kept, all[i].added_us});
  }
  all = std::move(fewer);
}

std::int64_t CompletionBound::added_us(std::size_t stage, Before before, Further further,
                                       std::int64_t kept_bytes) const {
  const Stairs& all = stairs_[4 * stage + 2 * static_cast<std::size_t>(before) +
                              static_cast<std::size_t>(further)];
  const auto found = std::lower_bound(
      all.begin(), all.end(), kept_bytes,
      [](const Tread& tread, std::int64_t kept) { return tread.most_kept < kept; });
  return found == all.end() ? kNever : found->added_us;
}

}  // namespace cox::planner
