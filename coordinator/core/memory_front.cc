#include "coordinator/core/memory_front.h"

#include <algorithm>
#include <utility>

namespace cox {
namespace {

bool is_sane(std::int64_t value) {
  return value >= 0 && value <= kMaxModelValue;
}

Status check_front(const MemoryFront& front, std::size_t blocks, const std::string& where) {
  if (front.empty() || front.size() > kMaxFrontPoints) {
    return invalid_argument(where, ": expected 1 to ", kMaxFrontPoints, " points, found ",
                            front.size());
  }
  for (std::size_t p = 0; p < front.size(); ++p) {
    const MemoryPoint& point = front[p];
    const bool in_order = is_sane(point.peak_bytes) && is_sane(point.added_us) &&
                          (p == 0 || (point.peak_bytes > front[p - 1].peak_bytes &&
                                      point.added_us < front[p - 1].added_us));
    if (!in_order) {
      return invalid_argument(
          where, ": point ", p,
          ": expected more bytes and less time than the one before, both from 0 to 2^50");
    }
    if (point.actions.size() != blocks) {
      return invalid_argument(where, ": point ", p, ": expected ", blocks, " actions, found ",
                              point.actions.size());
    }
    for (const MemoryAction action : point.actions) {
      if (action > kLastAction) {
        return invalid_argument(where, ": point ", p, ": expected actions from 0 to ",
                                static_cast<unsigned>(kLastAction), ", found ",
                                static_cast<unsigned>(action));
      }
    }
  }
  return ok_status();
}

Status check_model(const MemoryModel& model, std::size_t blocks, const std::string& where) {
  if (Status status = check_front(model.front, blocks, where); !status.ok()) return status;
  const bool sane = is_sane(model.base_bytes) && is_sane(model.step_us) &&
                    std::ranges::all_of(model.kept_bytes, is_sane);
  if (!sane) return invalid_argument(where, ": expected bytes and times from 0 to 2^50");
  if (model.samples > kMaxStepSamples) {
    return invalid_argument(where, ": expected samples from 0 to 2^31, found ", model.samples);
  }
  if (!model.kept_bytes.empty() && model.kept_bytes.size() != blocks) {
    return invalid_argument(where, ": expected kept_bytes of ", blocks, " blocks or none, found ",
                            model.kept_bytes.size());
  }
  return ok_status();
}

Status check_ranks(const MemoryFacts& facts, std::size_t ranks) {
  for (const std::size_t found : {facts.model_of_rank.size(), facts.limit_bytes.size()}) {
    if (found == 0 || found == ranks) continue;
    return invalid_argument("memory: expected one entry for each of ", ranks,
                            " ranks or none, found ", found);
  }
  for (const std::uint32_t model : facts.model_of_rank) {
    if (model < facts.models.size()) continue;
    return invalid_argument("memory: expected a model below ", facts.models.size(),
                            " for each rank, found ", model);
  }
  for (const std::int64_t limit : facts.limit_bytes) {
    if (is_sane(limit)) continue;
    return invalid_argument("memory: expected limits from 0 to 2^50 bytes, found ", limit);
  }
  return ok_status();
}

// Returns the bytes of the blocks that `actions` keep and `point` does not. Returns none if the two
// differ in another way.
std::optional<std::int64_t> kept_beyond(const MemoryModel& model, const MemoryPoint& point,
                                        std::span<const MemoryAction> actions) {
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < actions.size(); ++b) {
    if (actions[b] == point.actions[b]) continue;
    if (actions[b] != MemoryAction::keep || model.kept_bytes.empty()) return std::nullopt;
    bytes += model.kept_bytes[b];
  }
  return bytes;
}

// Returns the first allowed action by number. For forced recompute the result is recompute in full,
// which has a lower number than the levels: a level is used only where it was measured.
MemoryAction nearest(ActionSet allowed) {
  for (std::size_t a = 0; a < kMemoryActionNames.size(); ++a) {
    if (contains(allowed, static_cast<MemoryAction>(a))) return static_cast<MemoryAction>(a);
  }
  return MemoryAction::keep;
}

// Replaces each forbidden action by nearest() of the allowed ones. A block that is kept instead
// adds its kept bytes to the peak. If kept bytes are unknown, the peak becomes that of keeping all
// blocks.
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

std::optional<std::size_t> lookup(const MemoryFront& front, std::int64_t budget_bytes) {
  const auto above = std::ranges::partition_point(
      front, [budget_bytes](const MemoryPoint& point) { return point.peak_bytes <= budget_bytes; });
  if (above == front.begin()) return std::nullopt;
  return static_cast<std::size_t>(above - front.begin()) - 1;
}

MemoryFront thinned(const MemoryFront& front, std::size_t most) {
  if (front.size() <= most || most < 2) return front;
  MemoryFront few;
  const double low = static_cast<double>(front.front().peak_bytes);
  const double step =
      (static_cast<double>(front.back().peak_bytes) - low) / static_cast<double>(most - 1);
  for (std::size_t p = 0; p + 1 < front.size(); ++p) {
    const double due = low + step * static_cast<double>(few.size());
    const bool is_due = static_cast<double>(front[p].peak_bytes) >= due;
    if (few.size() + 1 < most && (p == 0 || is_due)) few.push_back(front[p]);
  }
  few.push_back(front.back());
  return few;
}

MemoryFront front_of(std::vector<MemoryPoint> plans) {
  std::ranges::stable_sort(plans, [](const MemoryPoint& a, const MemoryPoint& b) {
    return a.peak_bytes != b.peak_bytes ? a.peak_bytes < b.peak_bytes : a.added_us < b.added_us;
  });
  MemoryFront front;
  for (MemoryPoint& plan : plans) {
    if (front.empty() || plan.added_us < front.back().added_us) front.push_back(std::move(plan));
  }
  return front;
}

Status validate(const MemoryFacts& facts, std::size_t ranks, std::size_t blocks) {
  if (facts.models.size() > kMaxMemoryModels) {
    return invalid_argument("memory: expected at most ", kMaxMemoryModels, " models, found ",
                            facts.models.size());
  }
  for (std::size_t m = 0; m < facts.models.size(); ++m) {
    const Status status = check_model(facts.models[m], blocks, concat("memory: model ", m));
    if (!status.ok()) return status;
  }
  return check_ranks(facts, ranks);
}

std::int64_t peak_with(const MemoryModel& model, std::int64_t peak_bytes, std::uint64_t samples) {
  if (model.samples == 0 || peak_bytes <= model.base_bytes) return peak_bytes;
  const auto measured = static_cast<std::int64_t>(std::min(model.samples, kMaxStepSamples));
  const auto wanted = static_cast<std::int64_t>(std::min(samples, kMaxStepSamples));
  const std::int64_t grows = peak_bytes - model.base_bytes;
  const std::int64_t whole = grows / measured;
  const std::int64_t rest = grows % measured;
  // A floating-point product does not overflow, and is exact unless it is far too large.
  const double most = static_cast<double>(whole) * static_cast<double>(wanted);
  if (most > static_cast<double>(kMaxModelValue)) return kMaxModelValue;
  const std::int64_t grown = whole * wanted + (rest * wanted + measured - 1) / measured;
  return std::min(kMaxModelValue, model.base_bytes + grown);
}

std::uint64_t largest_share(const MemoryModel& model, std::int64_t peak_bytes, std::int64_t bytes) {
  const auto can_have = [&](std::uint64_t n) { return peak_with(model, peak_bytes, n) <= bytes; };
  // The division is a guess; rounding moves the result by one at most, nearly always.
  const double room = static_cast<double>(bytes) - static_cast<double>(model.base_bytes);
  const double grows = static_cast<double>(peak_bytes) - static_cast<double>(model.base_bytes);
  const double ideal = room * static_cast<double>(model.samples) / grows;
  if (ideal >= 0 && ideal < static_cast<double>(kMaxStepSamples)) {
    const auto guess = static_cast<std::uint64_t>(ideal);
    if (can_have(guess) && !can_have(guess + 1)) return guess;
  }
  if (can_have(kMaxStepSamples)) return kMaxStepSamples;
  std::uint64_t fits = 0;
  std::uint64_t breaks = kMaxStepSamples;
  while (breaks - fits > 1) {
    const std::uint64_t middle = fits + (breaks - fits) / 2;
    (can_have(middle) ? fits : breaks) = middle;
  }
  return fits;
}

std::optional<MemoryCost> cost_of(const MemoryModel& model, std::span<const MemoryAction> actions) {
  std::optional<MemoryCost> best;
  for (const MemoryPoint& point : model.front) {
    if (point.actions.size() != actions.size()) continue;
    const std::optional<std::int64_t> more = kept_beyond(model, point, actions);
    if (!more) continue;
    if (*more == 0 && std::equal(actions.begin(), actions.end(), point.actions.begin())) {
      return MemoryCost{point.peak_bytes, point.added_us};
    }
    const MemoryCost cost{point.peak_bytes + *more, point.added_us};
    if (!best || cost.peak_bytes < best->peak_bytes) best = cost;
  }
  return best;
}

bool is_allowed(std::span<const MemoryAction> actions, std::span<const ActionSet> allowed) {
  for (std::size_t b = 0; b < actions.size() && b < allowed.size(); ++b) {
    if (!contains(allowed[b], actions[b])) return false;
  }
  return true;
}

// Allowed points come first and stay. The bytes of a repaired point are a bound.
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

}  // namespace cox
