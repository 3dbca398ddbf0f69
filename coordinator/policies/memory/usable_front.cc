#include "coordinator/policies/memory/usable_front.h"

#include <algorithm>
#include <utility>

namespace cox {
namespace {

// A level is used only where it was measured, so recompute that is forced is recompute in full.
MemoryAction nearest(ActionSet allowed) {
  for (std::size_t a = 0; a < kMemoryActionNames.size(); ++a) {
    if (contains(allowed, static_cast<MemoryAction>(a))) return static_cast<MemoryAction>(a);
  }
  return MemoryAction::keep;
}

// Where an action may not be, the block gets keep, or the only action it may have. Keeping more
// costs what the block keeps; where that is unknown, at most what keeping all does.
MemoryPoint repaired(const MemoryModel& model, const MemoryPoint& point,
                     std::span<const ActionSet> allowed) {
  MemoryPoint result = point;
  for (std::size_t b = 0; b < allowed.size(); ++b) {
    if (contains(allowed[b], point.actions[b])) continue;
    result.actions[b] = nearest(allowed[b]);
    if (result.actions[b] != MemoryAction::keep) continue;
    if (model.kept_bytes.empty()) {
      result.peak_bytes = std::max(result.peak_bytes, model.front.back().peak_bytes);
    } else {
      result.peak_bytes += model.kept_bytes[b];
    }
  }
  return result;
}

}  // namespace

bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed) {
  for (std::size_t b = 0; b < actions.size() && b < allowed.size(); ++b) {
    if (!contains(allowed[b], actions[b])) return false;
  }
  return true;
}

// Points that may be used come first and stay; the bytes of a repaired one are a bound.
MemoryFront usable_front(const MemoryModel& model, std::span<const ActionSet> allowed) {
  std::vector<MemoryPoint> points;
  points.reserve(model.front.size());
  for (const MemoryPoint& point : model.front) {
    if (is_allowed(point.actions, allowed)) points.push_back(point);
  }
  const std::size_t exact = points.size();
  for (const MemoryPoint& point : model.front) {
    if (is_allowed(point.actions, allowed)) continue;
    MemoryPoint bound = repaired(model, point, allowed);
    const auto known = std::ranges::find_if(
        points, [&bound](const auto& other) { return other.actions == bound.actions; });
    if (known == points.end()) {
      points.push_back(std::move(bound));
    } else if (known - points.begin() >= static_cast<std::ptrdiff_t>(exact)) {
      known->peak_bytes = std::min(known->peak_bytes, bound.peak_bytes);
      known->added_us = std::min(known->added_us, bound.added_us);
    }
  }
  return front_of(std::move(points));
}

std::vector<ActionSet> allowed_of_blocks(const PolicyInput& input,
                                         std::span<const RestingAction> resting) {
  std::vector<ActionSet> allowed;
  for (const std::string& block : input.job.blocks) {
    allowed.push_back(static_cast<ActionSet>(allowed_actions(input.config.memory, block) &
                                             input.job.capabilities.actions));
  }
  for (const RestingAction& rest : resting) {
    allowed[rest.block] = without_kind(allowed[rest.block], rest.action);
  }
  for (ActionSet& set : allowed) {
    if (set == 0) set = only(MemoryAction::keep);
  }
  return allowed;
}

}  // namespace cox
