#include "metrics/analysis/timeline/rank_lanes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "metrics/records/run_record.h"

namespace cox::diagnosis {
namespace {

enum Lane : std::int32_t { kSteps = 1, kCommunication, kRecompute, kPlans, kEvents, kBlocks };
constexpr std::array<std::string_view, 5> kLaneNames = {"steps and their phases", "communication",
                                                        "recompute and copies of activations",
                                                        "plan in force", "what happened"};

constexpr std::string_view kBlocksName = "blocks in one step, as last measured";

// The order of a step. Unknown names come first.
constexpr std::array<std::string_view, 6> kPhaseOrder = {"data",    "forward", "backward",
                                                         "compute", "comm",    "optimizer"};
constexpr std::string_view kRest = "other";

constexpr double kMostPhaseSeconds = 1e6;
constexpr double kMostUnixSeconds = 1e11;
// Smaller overlaps are no error, because stored times are rounded.
constexpr std::int64_t kToleratedNs = 1'000'000;

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

double own(const StepLine& line, std::string_view name) {
  return value_in(line, StepSection::own, name);
}

std::size_t order_of(std::string_view phase) {
  if (phase == kRest) return kPhaseOrder.size() + 1;
  return static_cast<std::size_t>(std::ranges::find(kPhaseOrder, phase) - kPhaseOrder.begin());
}

bool is_time(double seconds) {
  return seconds >= 0 && seconds <= kMostPhaseSeconds;
}

bool is_timestamp(double seconds) {
  return seconds >= 0 && seconds <= kMostUnixSeconds;
}

double positive(double value) {
  return value > 0 ? value : 0;
}

// Bounds the numbers of a profile, which may be arbitrary.
std::int64_t bounded_nanoseconds(float seconds) {
  constexpr float kMost = 1e5;
  return nanoseconds(double{std::clamp(seconds, 0.0F, kMost)});
}

// Comes after the lanes of every rank.
constexpr std::int32_t kIdleLane = 7;
constexpr std::string_view kIdleName = "idle time, by its cause";
constexpr std::int32_t kBucketsLane = 8;
constexpr std::string_view kBucketsName = "gradient buckets under way";
constexpr std::string_view kHiddenName = "hidden by backward";
constexpr std::string_view kExposedName = "exposed";

// Buckets in flight together: those of one span of a record, or all in a stretch of time.
struct BucketsUnderWay {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;  // the lowest bucket number
  std::int64_t last = 0;   // the highest bucket number
  std::int64_t count = 0;
  double bytes = 0;
};

// Returns the buckets of a span from number `first` on; nullopt for impossible numbers.
std::optional<BucketsUnderWay> placed(const StepBucketSpan& span, std::int64_t zero,
                                      std::int64_t first) {
  constexpr double kMostBuckets = 1e6;
  const auto is_moment = [](double seconds) { return std::fabs(seconds) <= kMostPhaseSeconds; };
  const bool is_possible = is_moment(span.begin_seconds) && is_moment(span.end_seconds) &&
                           span.begin_seconds <= span.end_seconds && span.buckets >= 1 &&
                           span.buckets <= kMostBuckets && span.bytes >= 0 &&
                           std::isfinite(span.bytes);
  if (!is_possible) return std::nullopt;
  const auto count = static_cast<std::int64_t>(span.buckets);
  return BucketsUnderWay{zero + nanoseconds(span.begin_seconds),
                         zero + nanoseconds(span.end_seconds),
                         first,
                         first + count - 1,
                         count,
                         span.bytes};
}

// Splits overlapping buckets into ascending stretches with the same buckets, because slices of one
// lane may not overlap. No stretch crosses `cut`.
std::vector<BucketsUnderWay> stretches_of(std::span<const BucketsUnderWay> buckets,
                                          std::int64_t cut) {
  std::vector<std::int64_t> edges = {cut};
  for (const BucketsUnderWay& each : buckets) edges.insert(edges.end(), {each.begin, each.end});
  std::ranges::sort(edges);
  std::vector<BucketsUnderWay> out;
  for (std::size_t e = 1; e < edges.size(); ++e) {
    BucketsUnderWay stretch{edges[e - 1], edges[e]};
    for (const BucketsUnderWay& each : buckets) {
      if (each.begin > stretch.begin || each.end < stretch.end) continue;
      if (stretch.count == 0) stretch.first = each.first;
      stretch.last = each.last;
      stretch.count += each.count;
      stretch.bytes += each.bytes;
    }
    if (stretch.count > 0 && stretch.end > stretch.begin) out.push_back(stretch);
  }
  return out;
}

void put_stretch(const BucketsUnderWay& stretch, std::int32_t process, const TraceSink& sink) {
  const std::string name = stretch.first == stretch.last
                               ? fmt::format("bucket {}", stretch.first)
                               : fmt::format("buckets {}-{}", stretch.first, stretch.last);
  const std::array<TraceArgument, 2> arguments = {
      {{"buckets", static_cast<double>(stretch.count)}, {"bytes", stretch.bytes}}};
  sink({TraceKind::span, process, kBucketsLane, name, stretch.begin, stretch.end - stretch.begin,
        arguments});
}

// Draws a total above stretches that follow each other without a gap.
void put_stretches(const std::vector<BucketsUnderWay>& all, std::int64_t backward_end,
                   std::int32_t process, const TraceSink& sink) {
  const auto is_end = [backward_end](const BucketsUnderWay& a, const BucketsUnderWay& b) {
    return a.end != b.begin || b.begin == backward_end;
  };
  for (auto begin = all.begin(); begin != all.end();) {
    const auto last = std::adjacent_find(begin, all.end(), is_end);
    const auto end = last == all.end() ? last : last + 1;
    const std::string_view name = begin->end <= backward_end ? kHiddenName : kExposedName;
    sink({TraceKind::span, process, kBucketsLane, name, begin->begin,
          std::prev(end)->end - begin->begin});
    for (; begin != end; ++begin) put_stretch(*begin, process, sink);
  }
}

// Returns the growth of a sum in a second; absent if the sum fell or is unknown.
double rate(double before, double now, double seconds) {
  return now >= before ? (now - before) / seconds : absent();
}

}  // namespace

void BlockProfiles::note(const RankSignal& report) {
  const auto profile = read_block_profile(report.fragment);
  if (!profile.ok() || profile->blocks != names_.size()) return;
  const auto block = static_cast<std::size_t>(profile->block.value());
  if (block >= names_.size()) return;
  const bool is_full = (ranks_.size() + 1) * names_.size() > kMostBlocks;
  if (is_full && !ranks_.contains(report.rank.value())) return;
  OfRank& rank = ranks_[report.rank.value()];
  rank.blocks.resize(names_.size());
  rank.round = static_cast<double>(report.round.value());
  rank.blocks[block] = {bounded_nanoseconds(profile->forward_seconds),
                        bounded_nanoseconds(profile->backward_seconds)};
}

BlockTimes BlockProfiles::times(std::int32_t rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return {};
  BlockTimes out{found->second.round, {}};
  for (std::size_t b = 0; b < names_.size(); ++b) {
    const Profile& profile = found->second.blocks[b];
    if (profile.forward_ns < 0) return {};
    out.blocks.push_back({names_[b], profile.forward_ns, profile.backward_ns});
  }
  return out;
}

double begin_of(const StepLine& line) {
  if (!is_timestamp(line.timestamp)) return absent();
  double wall = 0;
  for (const StepValue& each : line.values) {
    if (each.section == StepSection::phases && is_time(each.value)) wall += each.value;
  }
  return line.timestamp - wall;
}

void RankLanes::begin(const TraceSink& sink) {
  const std::string name = fmt::format("rank {}", rank_);
  sink({TraceKind::process, process_of(rank_), 0, name});
  for (std::size_t i = 0; i < kLaneNames.size(); ++i)
    sink({TraceKind::lane, process_of(rank_), static_cast<std::int32_t>(i + 1), kLaneNames[i]});
  if (!blocks_.blocks.empty()) sink({TraceKind::lane, process_of(rank_), kBlocks, kBlocksName});
}

void RankLanes::draw(const StepLine& line, const TraceSink& sink) {
  read_phases(line);
  std::int64_t wall = 0;
  for (const Phase& phase : phases_) wall += phase.ns;
  const auto start = place(line, wall);
  if (!start) return;
  draw_save(line, *start, sink);
  const std::string name = fmt::format("step {}", static_cast<std::int64_t>(line.step));
  const std::array<TraceArgument, 2> arguments = {
      {{"round", own(line, "round")}, {"plan", own(line, "plan")}}};
  const std::size_t known = is_absent(own(line, "round")) ? 0 : arguments.size();
  sink({TraceKind::span, process_of(rank_), kSteps, name, *start, wall,
        std::span(arguments).first(known)});
  std::int64_t at = *start;
  for (const Phase& phase : phases_) {
    sink({TraceKind::span, process_of(rank_), kSteps, phase.name, at, phase.ns});
    if (phase.name == "comm") draw_communication(line, at, phase.ns, sink);
    if (phase.name == "backward") draw_recompute(line, at, phase.ns, sink);
    at += phase.ns;
  }
  draw_buckets(line, *start, sink);
  draw_blocks(line, *start, sink);
  draw_plan(line, *start, sink);
  draw_events(line, at, sink);
  draw_counters(line, *start, at, sink);
  last_end_ = at;
}

void RankLanes::read_phases(const StepLine& line) {
  phases_.clear();
  double sum = 0;
  for (const StepValue& each : line.values) {
    if (each.section != StepSection::phases || is_absent(each.value)) continue;
    if (!is_time(each.value) || sum + each.value > kMostPhaseSeconds) {
      ++impossible_;
    } else if (const std::int64_t ns = nanoseconds(each.value); ns > 0) {
      phases_.push_back({each.name, ns});
      sum += each.value;
    }
  }
  std::ranges::stable_sort(phases_, {}, [](const Phase& phase) { return order_of(phase.name); });
}

// Returns the start of the step; nullopt for a step that is not drawn.
std::optional<std::int64_t> RankLanes::place(const StepLine& line, std::int64_t wall_ns) {
  constexpr double kMostSeconds = static_cast<double>(kMostTraceNs) / 1e9;
  std::int64_t start = last_end_;
  if (is_timestamp(line.timestamp)) {
    const double end = line.timestamp + clock_.offset_seconds - clock_.origin_seconds;
    start = nanoseconds(std::clamp(end, 0.0, kMostSeconds + kMostPhaseSeconds)) - wall_ns;
  }
  if (start < last_end_) {
    if (last_end_ - start > kToleratedNs) ++moved_;
    start = last_end_;
  }
  if (start + wall_ns <= kMostTraceNs) return start;
  ++beyond_;
  return std::nullopt;
}

// The record has only the length of saves since the rank's last step, not their start.
void RankLanes::draw_save(const StepLine& line, std::int64_t start, const TraceSink& sink) const {
  const double seconds = own(line, "save");
  if (!is_time(seconds)) return;
  const std::int64_t ns = std::min(nanoseconds(seconds), start - last_end_);
  if (ns > 0) sink({TraceKind::span, process_of(rank_), kSteps, "save", start - ns, ns});
}

void RankLanes::draw_communication(const StepLine& line, std::int64_t start, std::int64_t ns,
                                   const TraceSink& sink) const {
  const double waiting = own(line, "waiting");
  if (!is_time(waiting)) {
    sink({TraceKind::span, process_of(rank_), kCommunication, "communication", start, ns});
    return;
  }
  const std::int64_t wait = std::min(nanoseconds(waiting), ns);
  if (wait > 0) sink({TraceKind::span, process_of(rank_), kCommunication, "waiting", start, wait});
  if (ns > wait)
    sink({TraceKind::span, process_of(rank_), kCommunication, "own part", start + wait, ns - wait});
}

void RankLanes::draw_recompute(const StepLine& line, std::int64_t start, std::int64_t ns,
                               const TraceSink& sink) const {
  const double seconds = own(line, "recompute");
  if (!is_time(seconds) || seconds == 0) return;
  const double recomputed = positive(own(line, "recomputed_blocks"));
  const double offloaded = positive(own(line, "offloaded_blocks"));
  const std::string_view name = offloaded == 0    ? "recompute"
                                : recomputed == 0 ? "waiting for copies"
                                                  : "recompute and waiting for copies";
  const std::array<TraceArgument, 2> arguments = {
      {{"recomputed blocks", recomputed}, {"offloaded blocks", offloaded}}};
  sink({TraceKind::span, process_of(rank_), kRecompute, name, start,
        std::min(nanoseconds(seconds), ns), arguments});
}

// Buckets lie between the start of backward and the end of the communication behind it.
std::optional<RankLanes::BucketRoom> RankLanes::room_for_buckets(std::int64_t start) const {
  std::optional<BucketRoom> room;
  std::int64_t at = start;
  for (const Phase& phase : phases_) {
    if (phase.name == "backward") room = {at, at + phase.ns, at + phase.ns};
    at += phase.ns;
    if (phase.name == "comm" && room) room->most = at;
  }
  return room;
}

// Draws buckets relative to the end of backward, if that is in the picture.
void RankLanes::draw_buckets(const StepLine& line, std::int64_t start, const TraceSink& sink) {
  const auto room = room_for_buckets(start);
  if (!room) return;
  std::vector<BucketsUnderWay> buckets;
  std::int64_t number = 0;
  for (const StepBucketSpan& span : line.buckets) {
    auto bucket = placed(span, room->backward_end, number);
    if (!bucket) {
      ++impossible_;
      continue;
    }
    bucket->begin = std::clamp(bucket->begin, room->least, room->most);
    bucket->end = std::clamp(bucket->end, room->least, room->most);
    number += bucket->count;
    buckets.push_back(*bucket);
  }
  const std::vector<BucketsUnderWay> all = stretches_of(buckets, room->backward_end);
  if (!all.empty() && !std::exchange(has_buckets_, true))
    sink({TraceKind::lane, process_of(rank_), kBucketsLane, kBucketsName});
  put_stretches(all, room->backward_end, process_of(rank_), sink);
}

// Draws blocks from the start of each pass, with the measured times rather than this step's.
void RankLanes::draw_blocks(const StepLine& line, std::int64_t start, const TraceSink& sink) {
  if (blocks_.blocks.empty() || !(own(line, "round") >= blocks_.round)) return;
  std::int64_t at = start;
  const auto begin = [&](std::string_view pass) {
    std::int64_t of_pass = start;
    for (const Phase& phase : phases_) {
      if (phase.name == pass) at = std::max(at, of_pass);
      of_pass += phase.ns;
    }
  };
  const auto put = [&](const BlockTimes::Block& block, std::int64_t ns) {
    if (ns > 0) sink({TraceKind::span, process_of(rank_), kBlocks, block.name, at, ns});
    at += std::max<std::int64_t>(ns, 0);
  };
  begin("forward");
  for (const BlockTimes::Block& block : blocks_.blocks) put(block, block.forward_ns);
  begin("backward");
  for (std::size_t b = blocks_.blocks.size(); b-- > 0;)
    put(blocks_.blocks[b], blocks_.blocks[b].backward_ns);
  blocks_.blocks.clear();
}

void RankLanes::draw_plan(const StepLine& line, std::int64_t start, const TraceSink& sink) {
  const double plan = own(line, "plan");
  if (plan_ && plan_->number == plan) return;
  end_plan(start, sink);
  if (plan >= 0 && plan < 0x1p53) plan_ = {plan, start};
}

void RankLanes::end_plan(std::int64_t end, const TraceSink& sink) {
  if (!plan_) return;
  const std::string name = fmt::format("plan {}", static_cast<std::int64_t>(plan_->number));
  sink({TraceKind::span, process_of(rank_), kPlans, name, plan_->start, end - plan_->start});
  plan_.reset();
}

void RankLanes::finish(const TraceSink& sink) {
  end_plan(last_end_, sink);
}

void RankLanes::draw_events(const StepLine& line, std::int64_t end, const TraceSink& sink) const {
  const auto tell = [&](std::string_view name, std::string_view figure, double value) {
    const std::array<TraceArgument, 1> arguments = {{{figure, value}}};
    sink({TraceKind::moment, process_of(rank_), kEvents, name, end, 0,
          std::span(arguments).first(is_absent(value) ? 0 : 1)});
  };
  const double loss = value_in(line, StepSection::scalars, "loss");
  if (own(line, "skipped") == 1) tell("update skipped", "loss scale", own(line, "loss_scale"));
  if (own(line, "overflow") > 0)
    tell("gradients that are not finite", "values", own(line, "overflow"));
  if (!std::isfinite(loss) && !is_absent(loss)) tell("loss that is not finite", {}, absent());
}

// Counters change with their values; memory shows the step's peak at its start.
void RankLanes::draw_counters(const StepLine& line, std::int64_t start, std::int64_t end,
                              const TraceSink& sink) {
  const double alloc = value_in(line, StepSection::memory, "alloc");
  const double peak = value_in(line, StepSection::memory, "peak_alloc");
  if (std::isfinite(alloc) && std::isfinite(peak) && (alloc != alloc_ || peak != peak_)) {
    const std::array<TraceArgument, 2> series = {{{"allocated", alloc}, {"peak", peak}}};
    sink({TraceKind::counter, process_of(rank_), 0, "memory (bytes)", start, 0, series});
    alloc_ = alloc;
    peak_ = peak;
  }
  const double loss = value_in(line, StepSection::scalars, "loss");
  if (std::isfinite(loss) && loss != loss_) {
    const std::array<TraceArgument, 1> series = {{{"loss", loss}}};
    sink({TraceKind::counter, process_of(rank_), 0, "loss", end, 0, series});
    loss_ = loss;
  }
}

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

// Draws nothing if no value of the counter is known.
void HostLanes::put(std::string_view name, std::initializer_list<TraceArgument> series,
                    std::int64_t at, const TraceSink& sink) const {
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
  put("process: cores in use",
      {{"user", rate(before_->user_seconds, sample.user_seconds, seconds)},
       {"system", rate(before_->system_seconds, sample.system_seconds, seconds)}},
      at, sink);
  if (!sample.node || !before_->node) return;
  const auto of_node = [&](double NodeCounters::*sum) {
    return rate(*before_->node.*sum, *sample.node.*sum, seconds);
  };
  put("node: cores",
      {{"user", of_node(&NodeCounters::user_seconds)},
       {"system", of_node(&NodeCounters::system_seconds)},
       {"waiting for disks", of_node(&NodeCounters::iowait_seconds)},
       {"stolen", of_node(&NodeCounters::steal_seconds)}},
      at, sink);
  put("node: disks (bytes a second)",
      {{"read", of_node(&NodeCounters::disk_read_bytes)},
       {"written", of_node(&NodeCounters::disk_written_bytes)}},
      at, sink);
  put("node: network (bytes a second)",
      {{"received", of_node(&NodeCounters::network_received_bytes)},
       {"sent", of_node(&NodeCounters::network_sent_bytes)}},
      at, sink);
}

void HostLanes::draw_levels(const HostSample& sample, std::int64_t at,
                            const TraceSink& sink) const {
  put("process: memory (bytes)", {{"resident", sample.resident_bytes}}, at, sink);
  if (sample.node) {
    put("node: memory (bytes)",
        {{"used", sample.node->memory_used_bytes},
         {"available", sample.node->memory_available_bytes}},
        at, sink);
    put("node: swap (bytes)", {{"used", sample.node->swap_used_bytes}}, at, sink);
  }
  for (std::size_t g = 0; g < sample.gpus.size(); ++g) {
    put(fmt::format("GPU {}: busy", g), {{"ratio", sample.gpus[g].busy_ratio}}, at, sink);
    put(fmt::format("GPU {}: memory (bytes)", g), {{"used", sample.gpus[g].memory_bytes}}, at,
        sink);
  }
}

void HostLanes::draw_idle(std::span<const IdleSpan> spans, const TraceSink& sink) const {
  std::optional<std::int64_t> last;  // end of the span before
  for (const IdleSpan& span : spans) {
    const auto start = place(span.begin_seconds);
    const auto end = place(span.end_seconds);
    if (!start || !end || *end <= *start || *start < last.value_or(0)) continue;
    if (!last) sink({TraceKind::lane, process_of(rank_), kIdleLane, kIdleName});
    last = end;
    const bool is_one = span.cause == IdleCause::waiting_for_rank && span.waits_for >= 0;
    const std::string name = is_one ? fmt::format("waiting for rank {}", span.waits_for)
                                    : std::string(to_string(span.cause));
    sink({TraceKind::span, process_of(rank_), kIdleLane, name, *start, *end - *start});
  }
}

}  // namespace cox::diagnosis
