#include "metrics/records/pipeline_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/io/gzip.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

constexpr double kMostSeconds = 1e12;

Status expected(std::string_view what, double found) {
  return invalid_argument("expected ", what, ", found ", json_number(found));
}

bool is_whole(double value, std::size_t most) {
  return value >= 0 && value <= static_cast<double>(most) && value == std::trunc(value);
}

// Parses the intervals and the number of micro-batches of the root object. Stops if the document is
// a trace.
class ScheduleEvents final : public JsonEvents {
 public:
  Status begin(JsonKind kind) override {
    ++depth_;
    if (depth_ == 1 && kind == JsonKind::array) return found_trace();
    if (depth_ == 2 && name_ == "traceEvents") return found_trace();
    if (depth_ == 2) is_list_ = name_ == "intervals" && kind == JsonKind::array;
    has_list_ = has_list_ || (depth_ == 2 && is_list_);
    if (depth_ == 3 && is_list_) {
      if (kind != JsonKind::array) return no_interval();
      numbers_ = 0;
    }
    return ok_status();
  }
  Status name(std::string_view name) override {
    if (depth_ == 1) name_ = name.substr(0, 16);
    return ok_status();
  }
  Status value(const JsonScalar& scalar) override {
    if (depth_ == 1 && name_ == "microbatches") return take_microbatches(scalar);
    if (!is_list_ || depth_ < 2) return ok_status();
    if (depth_ != 3 || scalar.kind != JsonKind::number) return no_interval();
    if (numbers_ < interval_.size()) interval_[numbers_] = scalar.number;
    ++numbers_;
    return ok_status();
  }
  Status end() override {
    Status taken = ok_status();
    if (depth_ == 3 && is_list_) taken = take_interval();
    if (depth_ == 2) is_list_ = false;
    --depth_;
    return taken;
  }

  bool is_trace() const { return is_trace_; }
  bool has_list() const { return has_list_; }
  PipelineFile take() { return std::move(file_); }

 private:
  Status found_trace() {
    is_trace_ = true;
    return invalid_argument("a trace");
  }
  static Status no_interval() {
    return invalid_argument("expected intervals as [stage, start, end], found something else");
  }
  Status take_microbatches(const JsonScalar& scalar) {
    if (scalar.kind == JsonKind::null) return ok_status();
    if (scalar.kind != JsonKind::number || !is_whole(scalar.number, kMaxMicrobatches) ||
        scalar.number == 0)
      return expected("a number of micro-batches of at least 1", scalar.number);
    file_.microbatches = static_cast<std::size_t>(scalar.number);
    return ok_status();
  }
  Status take_interval() {
    const auto [stage, start, end] = interval_;
    if (numbers_ != interval_.size()) return no_interval();
    if (!is_whole(stage, kMaxStages - 1)) return expected("a stage from 0 to 1023", stage);
    if (!(std::fabs(start) <= kMostSeconds)) return expected("a start in seconds", start);
    if (!(end >= start && end <= kMostSeconds)) return expected("an end after the start", end);
    if (file_.intervals.size() == kMaxStageIntervals)
      return resource_exhausted("expected at most ", kMaxStageIntervals,
                                " intervals, found more; give fewer steps");
    file_.intervals.push_back({static_cast<std::int32_t>(stage), start, end});
    return ok_status();
  }

  PipelineFile file_;
  std::string name_;
  std::array<double, 3> interval_{};
  std::size_t numbers_ = 0;
  std::size_t depth_ = 0;
  bool is_list_ = false;  // inside the list of intervals
  bool has_list_ = false;
  bool is_trace_ = false;
};

// Builds stages from devices. Computing is busy; sending, receiving and waiting are not.
PipelineFile stages_of(diagnosis::Kernels kernels) {
  PipelineFile out;
  std::int32_t stage = 0;
  for (auto& [number, device] : kernels.devices) {
    diagnosis::unite(device.compute);
    for (const auto& each : device.compute)
      out.intervals.push_back({stage, each.start_seconds, each.end_seconds});
    ++stage;
  }
  return out;
}

// Returns whether two stages or more have intervals, and some time lies between the first and the
// last moment.
bool has_two_stages(const std::vector<diagnosis::StageInterval>& intervals) {
  if (intervals.empty()) return false;
  std::int32_t least = intervals.front().stage;
  std::int32_t most = least;
  double first = intervals.front().start_seconds;
  double last = intervals.front().end_seconds;
  for (const diagnosis::StageInterval& each : intervals) {
    least = std::min(least, each.stage);
    most = std::max(most, each.stage);
    first = std::min(first, each.start_seconds);
    last = std::max(last, each.end_seconds);
  }
  return most > least && last > first;
}

Result<PipelineFile> checked(PipelineFile file) {
  if (has_two_stages(file.intervals)) return file;
  return invalid_argument("expected at least two busy stages, found ",
                          file.intervals.empty() ? "no interval" : "one stage, or no time");
}

// Returns nullopt for a trace.
Result<std::optional<PipelineFile>> parse_schedule(const NextBytes& next) {
  ScheduleEvents events;
  const Status read = read_json(next, events);
  if (events.is_trace()) return std::optional<PipelineFile>();
  if (!read.ok()) return read;
  if (!events.has_list())
    return invalid_argument(
        "expected a schedule with the list 'intervals', or a trace with 'traceEvents', found "
        "neither");
  auto file = checked(events.take());
  if (!file.ok()) return file.status();
  return std::optional(*std::move(file));
}

Result<PipelineFile> of_trace(Result<diagnosis::Kernels> kernels) {
  if (!kernels.ok()) return kernels.status();
  return checked(stages_of(*std::move(kernels)));
}

}  // namespace

Result<PipelineFile> parse_pipeline(std::string_view json) {
  auto schedule = parse_schedule(one_piece(json));
  if (!schedule.ok()) return schedule.status();
  return *schedule ? **std::move(schedule) : of_trace(parse_kernel_trace(json));
}

Result<PipelineFile> read_pipeline(const std::filesystem::path& path) {
  std::optional<PipelineFile> schedule;
  const Status read = with_unpacked(path, kMaxKernelTraceBytes, [&](const NextBytes& next) {
    auto parsed = parse_schedule(next);
    if (parsed.ok()) schedule = *std::move(parsed);
    return parsed.status();
  });
  if (!read.ok()) return read;
  if (schedule) return *std::move(schedule);
  auto kernels = read_kernel_trace(path);
  if (!kernels.ok()) return kernels.status();
  auto stages = of_trace(std::move(kernels));
  if (!stages.ok()) return stages.status().with_context(path.string());
  return stages;
}

}  // namespace cox::io
