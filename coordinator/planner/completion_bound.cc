#include "coordinator/planner/completion_bound.h"

#include <algorithm>
#include <array>

#include "coordinator/planner/budget_search.h"  // kNever

namespace cox::planner {
CompletionBound::CompletionBound(const StepTables& tables, std::int64_t budget_bytes,
                                 std::size_t most_treads)
    : tables_(tables),
      room_bytes_(budget_bytes - tables.problem.base_bytes),
      most_treads_(most_treads) {
  const std::size_t n = tables.problem.stages.size();
  has_rate_ = tables.can_offload && tables.is_rate_exact;
  stairs_.resize(index(n + 1, Before::resident, Easing::fast_engine));
  for (std::size_t i = index(n, Before::resident, Easing::fast_engine); i < stairs_.size(); ++i)
    stairs_[i] = {{kNever, 0}};
  for (std::size_t i = n; i-- > 0;) {
    build_stage(i, Before::resident);
    if (i > 0 && tables.problem.stages[i - 1].options[kOffload].allowed)
      build_stage(i, Before::offloaded);
  }
}

std::size_t CompletionBound::index(std::size_t stage, Before before, Easing easing) {
  return (2 * stage + static_cast<std::size_t>(before)) * kEasings +
         static_cast<std::size_t>(easing);
}

void CompletionBound::build_stage(std::size_t stage, Before before) {
  build(stage, before, Easing::fast_engine_no_offload);
  if (!tables_.can_offload) return;
  build(stage, before, Easing::fast_engine);
  if (has_rate_) build(stage, before, Easing::forward_only);
}

// Merges what each action makes of the stairs behind by time; a tread stays if it is the highest.
void CompletionBound::build(std::size_t stage, Before before, Easing easing) {
  std::array<Lane, kActions> lanes;
  std::size_t used = 0;
  for (std::size_t a = 0; a < kActions; ++a) {
    const StageOption& option = tables_.problem.stages[stage].options[a];
    if (!option.allowed) continue;
    if (option.is_copied() && easing == Easing::fast_engine_no_offload) continue;
    lanes[used++] = lane(stage, a, before, easing);
  }
  Stairs& out = stairs_[index(stage, before, easing)];
  std::int64_t highest = -1;
  while (true) {
    Lane* first = nullptr;
    for (std::size_t l = 0; l < used; ++l) {
      Lane& lane = lanes[l];
      while (lane.at != lane.end && lane.most() <= highest && !lane.is_full(highest)) ++lane.at;
      if (lane.at == lane.end || lane.is_full(highest)) continue;
      if (!first || lane.added() < first->added() ||
          (lane.added() == first->added() && lane.most() > first->most()))
        first = &lane;
    }
    if (!first) break;
    highest = first->most();
    out.push_back({highest, first->added()});
  }
  if (out.size() > most_treads_) coarsen(out);
}

std::int64_t CompletionBound::room(std::size_t stage, std::size_t action, Before before,
                                   Easing easing) const {
  const StageOption& option = tables_.problem.stages[stage].options[action];
  if (easing == Easing::forward_only)
    return room_bytes_ + tables_.carried_bytes(stage, Round::up) - option.forward_high_bytes;
  std::int64_t backward = option.backward_high_bytes;
  if (before == Before::offloaded)
    backward += tables_.problem.stages[stage - 1].options[kOffload].copied_bytes;
  return room_bytes_ - std::max(option.forward_high_bytes, backward);
}

CompletionBound::Lane CompletionBound::lane(std::size_t stage, std::size_t action, Before before,
                                            Easing easing) const {
  const StageOption& option = tables_.problem.stages[stage].options[action];
  const Before next = option.is_copied() ? Before::offloaded : Before::resident;
  const Stairs& behind = stairs_[index(stage + 1, next, easing)];
  Lane lane{behind.data(), behind.data() + behind.size(), room(stage, action, before, easing),
            option.kept_bytes, option.added_us};
  if (easing == Easing::forward_only) lane.bytes += option.copied_bytes;
  if (before == Before::offloaded) lane.added_us += tables_.wait_us(stage - 1, action);
  return lane;
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

std::int64_t CompletionBound::look(std::size_t stage, Before before, Easing easing,
                                   std::int64_t bytes) const {
  const Stairs& all = stairs_[index(stage, before, easing)];
  const auto found = std::lower_bound(
      all.begin(), all.end(), bytes,
      [](const Tread& tread, std::int64_t kept) { return tread.most_kept < kept; });
  return found == all.end() ? kNever : found->added_us;
}

std::int64_t CompletionBound::added_us(std::size_t stage, Before before, Further further,
                                       std::int64_t kept_bytes, std::int64_t leaving_bytes) const {
  if (further == Further::none)
    return look(stage, before, Easing::fast_engine_no_offload, kept_bytes);
  const std::int64_t most = look(stage, before, Easing::fast_engine, kept_bytes);
  if (!has_rate_ || most >= kNever) return most;
  const std::int64_t flow = kept_bytes + leaving_bytes + tables_.carried_bytes(stage, Round::down);
  return std::max(most, look(stage, before, Easing::forward_only, flow));
}

}  // namespace cox::planner
