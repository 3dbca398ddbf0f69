#include "coordinator/diagnosis/host_lanes.h"

#include <array>
#include <cmath>
#include <string>
#include <variant>

#include "coordinator/core/text.h"

namespace cox::diagnosis {
namespace {

constexpr std::int32_t kIdleLane = 7;  // below those of RankLanes
constexpr std::string_view kIdleName = "idle time, by its cause";

// What a sum grew by in a second; no value where it went back, or is not known.
double rate(double before, double now, double seconds) {
  return now >= before ? (now - before) / seconds : absent();
}

}  // namespace

std::size_t events_of(const HostSample& sample) {
  constexpr std::size_t kOfProcess = 2;
  constexpr std::size_t kOfNode = 5;
  return kOfProcess + (sample.node ? kOfNode : 0) + 2 * sample.gpus.size();
}

std::optional<std::int64_t> HostLanes::place(double seconds) const {
  if (!(seconds <= last_seconds_)) return std::nullopt;
  const double since = seconds + clock_.offset_seconds - clock_.origin_seconds;
  constexpr double kMost = static_cast<double>(kMostTraceNs) / 1e9;
  if (!(since >= 0 && since <= kMost)) return std::nullopt;
  return std::llround(since * 1e9);
}

void HostLanes::draw(const HostSample& sample, const TraceSink& sink) {
  const bool is_first = !before_ || sample.start;
  if (!is_first && ++since_ < stride_) return;
  since_ = 0;
  auto at = place(sample.timestamp);
  if (at && *at < drawn_at_) at.reset();
  if (at) drawn_at_ = *at;
  if (at && !is_first && sample.timestamp > before_->timestamp) draw_rates(sample, *at, sink);
  if (at) draw_levels(sample, *at, sink);
  before_ = sample;
}

// Counters without any value that is known are none.
void HostLanes::put(std::string_view name, std::span<const TraceArgument> series, std::int64_t at,
                    const TraceSink& sink) const {
  std::array<TraceArgument, 4> known{};
  std::size_t count = 0;
  for (const TraceArgument& each : series) {
    if (std::isfinite(std::get<double>(each.value))) known[count++] = each;
  }
  if (count > 0)
    sink({TraceKind::counter, process_of(rank_), 0, name, at, 0, std::span(known).first(count)});
}

void HostLanes::draw_rates(const HostSample& sample, std::int64_t at, const TraceSink& sink) const {
  const double seconds = sample.timestamp - before_->timestamp;
  const std::array<TraceArgument, 2> own = {
      {{"user", rate(before_->user_seconds, sample.user_seconds, seconds)},
       {"system", rate(before_->system_seconds, sample.system_seconds, seconds)}}};
  put("process: cores in use", own, at, sink);
  if (!sample.node || !before_->node) return;
  const NodeCounters& now = *sample.node;
  const NodeCounters& then = *before_->node;
  const std::array<TraceArgument, 4> cores = {
      {{"user", rate(then.user_seconds, now.user_seconds, seconds)},
       {"system", rate(then.system_seconds, now.system_seconds, seconds)},
       {"waiting for disks", rate(then.iowait_seconds, now.iowait_seconds, seconds)},
       {"stolen", rate(then.steal_seconds, now.steal_seconds, seconds)}}};
  put("node: cores", cores, at, sink);
  const std::array<TraceArgument, 2> disks = {
      {{"read", rate(then.disk_read_bytes, now.disk_read_bytes, seconds)},
       {"written", rate(then.disk_written_bytes, now.disk_written_bytes, seconds)}}};
  put("node: disks (bytes a second)", disks, at, sink);
  const std::array<TraceArgument, 2> network = {
      {{"received", rate(then.network_received_bytes, now.network_received_bytes, seconds)},
       {"sent", rate(then.network_sent_bytes, now.network_sent_bytes, seconds)}}};
  put("node: network (bytes a second)", network, at, sink);
}

void HostLanes::draw_levels(const HostSample& sample, std::int64_t at,
                            const TraceSink& sink) const {
  const auto put_one = [&](std::string_view name, std::string_view figure, double value) {
    const std::array<TraceArgument, 1> series = {{{figure, value}}};
    put(name, series, at, sink);
  };
  put_one("process: memory (bytes)", "resident", sample.resident_bytes);
  if (sample.node) {
    const std::array<TraceArgument, 2> memory = {
        {{"used", sample.node->memory_used_bytes},
         {"available", sample.node->memory_available_bytes}}};
    put("node: memory (bytes)", memory, at, sink);
    put_one("node: swap (bytes)", "used", sample.node->swap_used_bytes);
  }
  for (std::size_t g = 0; g < sample.gpus.size(); ++g) {
    put_one(concat("GPU ", g, ": busy"), "ratio", sample.gpus[g].busy_ratio);
    put_one(concat("GPU ", g, ": memory (bytes)"), "used", sample.gpus[g].memory_bytes);
  }
}

void HostLanes::draw_idle(std::span<const IdleSpan> spans, const TraceSink& sink) const {
  std::optional<std::int64_t> last;  // end of the one before
  for (const IdleSpan& span : spans) {
    const auto start = place(span.begin_seconds);
    const auto end = place(span.end_seconds);
    if (!start || !end || *end <= *start || *start < last.value_or(0)) continue;
    if (!last) sink({TraceKind::lane, process_of(rank_), kIdleLane, kIdleName});
    last = end;
    const bool is_one = span.cause == IdleCause::waiting_for_rank && span.waits_for >= 0;
    const std::string name =
        is_one ? concat("waiting for rank ", span.waits_for) : std::string(to_string(span.cause));
    sink({TraceKind::span, process_of(rank_), kIdleLane, name, *start, *end - *start});
  }
}

}  // namespace cox::diagnosis
