#include "coordinator/planner/search_label.h"

#include <algorithm>

namespace cox::planner {

std::int32_t Departures::add(std::int32_t previous, std::int64_t ready_us, std::int64_t copy_us,
                             std::int64_t bytes) {
  const std::int64_t before = previous < 0 ? 0 : all_[index(previous)].total_bytes;
  all_.push_back({previous, std::max(ready_us, end_us(previous)) + copy_us, before + bytes});
  return static_cast<std::int32_t>(all_.size()) - 1;
}

std::int64_t Departures::bytes_after(std::int32_t newest, std::int64_t time) const {
  if (newest < 0 || all_[index(newest)].end_us <= time) return 0;
  const std::int64_t total = all_[index(newest)].total_bytes;
  std::int32_t i = newest;
  while (i >= 0 && all_[index(i)].end_us > time) i = all_[index(i)].previous;
  return total - (i < 0 ? 0 : all_[index(i)].total_bytes);
}

std::int64_t Departures::bytes_to_move(std::int32_t newest, std::int64_t time,
                                       std::int64_t per_ms) const {
  if (newest < 0 || all_[index(newest)].end_us <= time) return 0;
  const std::int64_t total = all_[index(newest)].total_bytes;
  std::int32_t oldest = newest;
  while (previous(oldest) >= 0 && all_[index(previous(oldest))].end_us > time)
    oldest = previous(oldest);
  const std::int32_t gone = previous(oldest);
  const std::int64_t gone_bytes = gone < 0 ? 0 : all_[index(gone)].total_bytes;
  const std::int64_t bytes = all_[index(oldest)].total_bytes - gone_bytes;
  const std::int64_t remaining_us = all_[index(oldest)].end_us - time;
  const double movable = static_cast<double>(remaining_us) * static_cast<double>(per_ms) / 1000;
  const bool has_moved = movable < static_cast<double>(bytes);
  return total - gone_bytes - (has_moved ? bytes - remaining_us * per_ms / 1000 : 0);
}

std::int64_t Departures::time_within(std::int32_t newest, std::int64_t room) const {
  if (newest < 0) return 0;
  const std::int64_t total = all_[index(newest)].total_bytes;
  std::int32_t i = newest;
  // While all up to and with the one before `i` may be gone and it still is too much, `i` must go.
  while (i >= 0) {
    const std::int32_t before = all_[index(i)].previous;
    const std::int64_t left = total - (before < 0 ? 0 : all_[index(before)].total_bytes);
    if (left > room) return all_[index(i)].end_us;
    i = before;
  }
  return 0;
}

bool Departures::never_more(const Label& a, const Label& b, std::int64_t now) const {
  const std::int64_t lead = b.kept_bytes - a.kept_bytes;
  if (lead < 0) return false;
  if (a.departure == b.departure) return true;
  if (bytes_after(a.departure, now) - bytes_after(b.departure, now) > lead) return false;
  for (std::int32_t i = b.departure; i >= 0 && all_[index(i)].end_us > now; i = previous(i)) {
    const std::int64_t time = all_[index(i)].end_us;
    if (bytes_after(a.departure, time) - bytes_after(b.departure, time) > lead) return false;
  }
  return true;
}

bool dominates(const Label& a, const Label& b, const StepTables& tables, const Departures& out,
               std::int64_t now) {
  if (a.added_us > b.added_us || a.kept_bytes > b.kept_bytes || a.need_us > b.need_us) return false;
  if (a.floor_us > std::max(b.floor_us, b.added_us)) return false;
  if (tables.is_tier_scarce && a.tier_bytes > b.tier_bytes) return false;
  if (tables.is_recompute_scarce && a.recomputed > b.recomputed) return false;
  if (a.further == Further::offloads &&
      std::max(out.end_us(a.departure), now) > std::max(out.end_us(b.departure), now))
    return false;
  return out.never_more(a, b, now);
}

}  // namespace cox::planner
