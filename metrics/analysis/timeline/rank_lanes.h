// RankLanes draws the steps of one rank in lanes and counters. docs/traces.md lists the lanes, and
// explains how sums of phases become spans.
//
//   StepLine (run_record.h)                    -> RankLanes -> TraceEvent (trace_event.h)
//   signals of a journal -> BlockProfiles -> BlockTimes ->
//   HostSample, IdleSpan (idle_time.h)         -> HostLanes ->
//
// A step ends at its timestamp and starts earlier by the sum of its phases. A save ends at the
// start of the step that records the save, and is no longer than the gap before. Steps that would
// overlap, because a clock was set back or times are wrong, are drawn one after another and
// counted. Holds some hundred bytes. Pure; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/host_sample.h"
#include "coordinator/core/signal.h"
#include "metrics/analysis/timeline/idle_time.h"
#include "metrics/records/run_record.h"
#include "metrics/records/trace_event.h"

namespace cox::diagnosis {

struct LaneClock {
  double origin_seconds = 0;  // Unix time at which the picture begins
  double offset_seconds = 0;  // added to the rank's timestamps
};

// Returns the Unix time at which the step began by the rank's clock; absent() without a plausible
// timestamp.
double begin_of(const StepLine& line);

// The times of a rank's blocks, from the newest profile of each (BlockProfile of core/signal.h).
struct BlockTimes {
  struct Block {
    std::string name;
    std::int64_t forward_ns = 0;
    std::int64_t backward_ns = 0;
  };
  double round = 0;           // round of the last measurement
  std::vector<Block> blocks;  // in execution order
};

// Keeps 16 bytes for each block and rank, up to kMostBlocks. Ranks that report later get no
// profile.
class BlockProfiles {
 public:
  static constexpr std::size_t kMostBlocks = std::size_t{1} << 20;

  // `names` are those of a job's blocks, in execution order.
  explicit BlockProfiles(std::vector<std::string> names = {}) : names_(std::move(names)) {}
  // Keeps the profile in the report, if there is one that fits the job.
  void note(const RankSignal& report);
  // Returns no blocks until all blocks of the rank have been measured.
  BlockTimes times(std::int32_t rank) const;

 private:
  struct Profile {
    std::int64_t forward_ns = -1;  // -1 = not known yet
    std::int64_t backward_ns = -1;
  };
  struct OfRank {
    double round = 0;  // round of the newest profile
    std::vector<Profile> blocks;
  };
  std::vector<std::string> names_;
  std::map<std::int32_t, OfRank> ranks_;
};

class RankLanes {
 public:
  // Draws `blocks` once, in the first step of their round or a later one.
  RankLanes(std::int32_t rank, const LaneClock& clock, BlockTimes blocks = {})
      : rank_(rank), clock_(clock), blocks_(std::move(blocks)) {}

  // Names the process and its lanes.
  void begin(const TraceSink& sink);
  // Draws the next step of the file.
  void draw(const StepLine& line, const TraceSink& sink);
  // Draws open spans.
  void finish(const TraceSink& sink);

  std::size_t moved() const { return moved_; }            // steps drawn later than recorded
  std::size_t impossible() const { return impossible_; }  // impossible times within steps
  std::size_t beyond() const { return beyond_; }          // steps beyond kMostTraceNs, left out

 private:
  struct Phase {
    std::string_view name;
    std::int64_t ns = 0;
  };
  void read_phases(const StepLine& line);
  std::optional<std::int64_t> place(const StepLine& line, std::int64_t wall_ns);
  void draw_save(const StepLine& line, std::int64_t start, const TraceSink& sink) const;
  void draw_communication(const StepLine& line, std::int64_t start, std::int64_t ns,
                          const TraceSink& sink) const;
  void draw_recompute(const StepLine& line, std::int64_t start, std::int64_t ns,
                      const TraceSink& sink) const;
  // Limits for buckets.
  struct BucketRoom {
    std::int64_t least = 0;
    std::int64_t backward_end = 0;
    std::int64_t most = 0;
  };
  std::optional<BucketRoom> room_for_buckets(std::int64_t start) const;
  void draw_buckets(const StepLine& line, std::int64_t start, const TraceSink& sink);
  void draw_blocks(const StepLine& line, std::int64_t start, const TraceSink& sink);
  void draw_plan(const StepLine& line, std::int64_t start, const TraceSink& sink);
  void end_plan(std::int64_t end, const TraceSink& sink);
  void draw_events(const StepLine& line, std::int64_t end, const TraceSink& sink) const;
  void draw_counters(const StepLine& line, std::int64_t start, std::int64_t end,
                     const TraceSink& sink);

  struct OpenPlan {
    double number = 0;
    std::int64_t start = 0;
  };

  std::int32_t rank_;
  LaneClock clock_;
  BlockTimes blocks_;          // empty after drawing
  std::vector<Phase> phases_;  // the open step's phases, in the order of a step
  std::int64_t last_end_ = 0;
  bool has_buckets_ = false;  // the lane of buckets has its name
  std::optional<OpenPlan> plan_;
  double loss_ = 0;
  double alloc_ = 0;
  double peak_ = 0;
  std::size_t moved_ = 0;
  std::size_t impossible_ = 0;
  std::size_t beyond_ = 0;
};

// Returns the largest number of events for one sample.
std::size_t events_of(const HostSample& sample);

// HostLanes draws the host timeline of one rank: counters of its process, of the machine and its
// GPUs if the rank reports them, and a lane of idle stretches. Holds one sample.
class HostLanes {
 public:
  // Draws moments from the picture's start to `last_seconds` (Unix time, by the rank's clock).
  // Draws every `stride`-th sample, with the changes since the sample drawn before. Skips a sample
  // whose clock was set back. REQUIRES: stride >= 1.
  HostLanes(std::int32_t rank, const LaneClock& clock, double last_seconds, std::size_t stride)
      : rank_(rank), clock_(clock), last_seconds_(last_seconds), stride_(stride) {}

  // Draws the next sample of the file.
  void draw(const HostSample& sample, const TraceSink& sink);
  void draw_idle(std::span<const IdleSpan> spans, const TraceSink& sink) const;

 private:
  std::optional<std::int64_t> place(double seconds) const;
  void put(std::string_view name, std::initializer_list<TraceArgument> series, std::int64_t at,
           const TraceSink& sink) const;
  void draw_rates(const HostSample& sample, std::int64_t at, const TraceSink& sink) const;
  void draw_levels(const HostSample& sample, std::int64_t at, const TraceSink& sink) const;

  std::int32_t rank_;
  LaneClock clock_;
  double last_seconds_;
  std::size_t stride_;
  std::size_t since_ = 0;      // samples since the last one drawn
  std::int64_t drawn_at_ = 0;  // moment of the last sample drawn
  std::optional<HostSample> before_;
};

}  // namespace cox::diagnosis
