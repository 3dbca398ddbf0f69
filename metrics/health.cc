#include "metrics/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "metrics/format.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

constexpr double kStallFloorSeconds = 30;
constexpr double kStallSteps = 20;

}  // namespace

double stall_after_seconds(const Snapshot& snapshot) {
  return std::max(kStallFloorSeconds,
                  kStallSteps * typical_step_seconds(snapshot.view<ProgressView>()));
}

Health liveness(const Snapshot& snapshot, UnixTime now) {
  const auto* stall = snapshot.views.find<StallView>();
  if (snapshot.state == JobState::waiting) {
    const std::string whom = stall != nullptr ? fmt::format("; {}", stall->text()) : "";
    return {Health::Verdict::good, fmt::format("waiting for the first round{}", whom)};
  }
  if (snapshot.state == JobState::finished) return {Health::Verdict::good, "the job has finished"};
  const double silent = now.seconds - snapshot.last_round_time.seconds;
  const double limit = stall_after_seconds(snapshot);
  const auto round = snapshot.summary.round.value();
  const std::string closed =
      fmt::format("round {} closed {} ago", round, duration_text(std::max(silent, 0.0)));
  if (stall != nullptr && (silent <= limit || stall->stall.is_save()))
    return {Health::Verdict::good, fmt::format("{}; {}", closed, stall->text())};
  if (silent <= limit) return {Health::Verdict::good, closed};
  return {Health::Verdict::bad,
          fmt::format("stalled: no round since round {}, {} ago; a typical step takes {}. {}",
                      round, duration_text(silent),
                      seconds_text(typical_step_seconds(snapshot.view<ProgressView>())),
                      stall != nullptr ? stall->text() : "No rank is known to wait for another")};
}

Health readiness(const Snapshot& snapshot) {
  constexpr std::size_t kNamed = 8;
  std::vector<bool> has_reported = snapshot.view<RanksView>().has_reported;
  has_reported.resize(snapshot.job->ranks(), false);
  const auto world = static_cast<std::int32_t>(has_reported.size());
  const std::int32_t seen = snapshot.view<RanksView>().ranks_seen();
  if (seen >= world)
    return {Health::Verdict::good, fmt::format("all {} ranks have reported", world)};
  std::string names;
  std::size_t named = 0;
  for (std::size_t rank = 0; rank < has_reported.size() && named < kNamed; ++rank) {
    if (has_reported[rank]) continue;
    names += fmt::format("{}{}", named++ == 0 ? "" : ", ", rank);
  }
  const std::int32_t unnamed = world - seen - static_cast<std::int32_t>(named);
  if (unnamed > 0) names += fmt::format(" and {} more", unnamed);
  return {Health::Verdict::bad,
          fmt::format("{} of {} ranks have reported; waiting for rank {}", seen, world, names)};
}

}  // namespace cox::metrics
