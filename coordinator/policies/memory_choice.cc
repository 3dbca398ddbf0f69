#include "coordinator/policies/memory_choice.h"

#include <algorithm>

namespace cox {
namespace {

MemoryAction nearest(ActionSet allowed) {
  for (unsigned a = 0; a < 4; ++a) {
    if (contains(allowed, static_cast<MemoryAction>(a))) return static_cast<MemoryAction>(a);
  }
  return MemoryAction::keep;
}

// Keeping more costs what the block keeps; where that is unknown, at most what keeping all does.
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

double worth_of(std::int64_t saved_us, std::int64_t added_us, std::int64_t step_us) {
  if (step_us <= 0) return 1;
  return static_cast<double>(saved_us) / static_cast<double>(step_us + added_us);
}

std::int64_t below_ceiling(std::int64_t bytes, const RankPlace& place) {
  return place.ceiling_bytes > 0 ? std::min(bytes, place.ceiling_bytes - 1) : bytes;
}

Move why_heavier(const RankPlace& place) {
  if (!place.now_allowed) return Move::rules;
  return place.breached ? Move::breach : Move::over_budget;
}

void look_for_room(const MemoryFront& front, std::int64_t step_us, const RankPlace& place,
                   std::int64_t fits, Choice& choice) {
  const double part = place.eager ? 1 : kRoom;
  const auto roomy = static_cast<std::int64_t>(part * static_cast<double>(place.budget_bytes));
  const std::int64_t room =
      place.eager ? fits : std::min(fits, below_ceiling(roomy - place.correction_bytes, place));
  const auto lighter = lookup(front, room);
  if (!lighter || front[*lighter].added_us >= place.now->added_us) return;
  choice.worth =
      worth_of(place.now->added_us - front[*lighter].added_us, place.now->added_us, step_us);
  if (choice.worth < place.least_worth) return;
  choice.room_rounds = place.room_rounds + 1;
  if (choice.room_rounds < kRoomRounds && !place.eager) return;
  choice.move = Move::lighter;
  choice.point = *lighter;
  choice.room_rounds = 0;
}

}  // namespace

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
    const auto known = std::find_if(points.begin(), points.end(), [&bound](const auto& other) {
      return other.actions == bound.actions;
    });
    if (known == points.end()) {
      points.push_back(std::move(bound));
    } else if (known - points.begin() >= static_cast<std::ptrdiff_t>(exact)) {
      known->peak_bytes = std::min(known->peak_bytes, bound.peak_bytes);
      known->added_us = std::min(known->added_us, bound.added_us);
    }
  }
  return front_of(std::move(points));
}

bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed) {
  for (std::size_t b = 0; b < actions.size() && b < allowed.size(); ++b) {
    if (!contains(allowed[b], actions[b])) return false;
  }
  return true;
}

Choice choose(const MemoryFront& front, std::int64_t step_us, const RankPlace& place) {
  Choice choice;
  const std::int64_t fits = below_ceiling(place.budget_bytes - place.correction_bytes, place);
  const auto fastest = lookup(front, fits);
  choice.feasible = fastest.has_value();
  const bool stays_possible = place.now_allowed && place.now && place.now->peak_bytes <= fits;
  if (stays_possible) {
    look_for_room(front, step_us, place, fits, choice);
    return choice;
  }
  choice.point = fastest.value_or(0);
  const MemoryPoint& target = front[choice.point];
  const bool is_there = place.now_allowed && place.now &&
                        place.now->peak_bytes <= target.peak_bytes && !choice.feasible;
  if (!is_there) choice.move = why_heavier(place);
  return choice;
}

}  // namespace cox
