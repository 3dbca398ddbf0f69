#include "sdk/src/memory/step_trace.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <string>
#include <utility>

namespace cox::detail {
namespace {

std::int64_t microseconds(Nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

// Visit is one run through a block in a trace: the indices of its edges, or the number of events.
struct Visit {
  std::size_t block = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t back = 0;
  std::size_t back_end = 0;
};

std::string block_text(std::size_t block) {
  return "block " + std::to_string(block);
}

// Adds an event to the visit that it belongs to. Backward runs through a block's visits from the
// last to the first, and the last end of a backward pass counts. Returns false if there is none.
bool add_event(std::vector<Visit>& visits, const TraceEvent& event, std::size_t i,
               std::size_t none) {
  const std::size_t block = event.block.value();
  if (event.edge == BlockEdge::forward_begin) {
    visits.push_back({block, i, none, none, none});
    return true;
  }
  Visit* found = nullptr;
  for (Visit& visit : visits) {
    if (visit.block != block) continue;
    const bool is_run_back = visit.back != none;
    if (event.edge == BlockEdge::backward_end && is_run_back && found == nullptr) found = &visit;
    if (event.edge == BlockEdge::backward_begin && !is_run_back) found = &visit;
    if (event.edge == BlockEdge::forward_end) found = &visit;
  }
  if (found == nullptr) return false;
  if (event.edge == BlockEdge::forward_end) found->end = i;
  if (event.edge == BlockEdge::backward_begin) found->back = i;
  if (event.edge == BlockEdge::backward_end) found->back_end = i;
  return true;
}

// Returns the visits in the order of the forward pass. A visit unused by backward (it saves
// nothing, or its results are detached) belongs to the stage before it.
Result<std::vector<Visit>> visits_of(const StepTrace& trace) {
  const std::size_t none = trace.events.size();
  std::vector<Visit> visits;
  for (std::size_t i = 0; i < none; ++i) {
    const TraceEvent& event = trace.events[i];
    if (!add_event(visits, event, i, none))
      return no_chain("found a backward pass that returns to " + block_text(event.block.value()));
  }
  std::erase_if(visits, [none](const Visit& visit) { return visit.back == none; });
  return visits;
}

// Returns ok if visits follow one another, and backward goes the other way.
Status check_chain(const std::vector<Visit>& visits, std::size_t none) {
  std::size_t last = 0;
  for (const Visit& visit : visits) {
    if (visit.begin < last || visit.end <= visit.begin || visit.end >= none)
      return no_chain("found " + block_text(visit.block) + " missing or out of order");
    last = visit.end;
  }
  for (const Visit& visit : visits | std::views::reverse) {
    if (visit.back <= last)
      return no_chain("found the backward pass of " + block_text(visit.block) + " out of order");
    last = visit.back;
  }
  return ok_status();
}

// Reads a trace between two events, given by index; one past the last is the end.
class Reader {
 public:
  explicit Reader(const StepTrace& trace) : trace_(trace) {}

  std::int64_t live(std::size_t event) const { return trace_.events[event].live_bytes; }
  std::int64_t moved(std::size_t event) const { return trace_.events[event].moved_bytes; }
  // Returns the peak after `from`, up to `to`.
  std::int64_t peak(std::size_t from, std::size_t to) const {
    std::int64_t most = from < trace_.events.size() ? live(from) : trace_.start_bytes;
    for (std::size_t i = from + 1; i <= to && i < trace_.events.size(); ++i) {
      most = std::max(most, trace_.events[i].peak_bytes);
    }
    return to < trace_.events.size() ? most : std::max(most, trace_.end_peak_bytes);
  }
  std::int64_t us(std::size_t from, std::size_t to) const {
    return microseconds(time(to) - time(from));
  }
  std::size_t end() const { return trace_.events.size(); }

 private:
  Nanoseconds time(std::size_t event) const {
    return event < trace_.events.size() ? trace_.events[event].time : trace_.end;
  }
  const StepTrace& trace_;
};

// Reads the visit at place `v` of the forward pass.
StageReading read_visit(const Reader& reader, const std::vector<Visit>& visits, std::size_t v) {
  const Visit& visit = visits[v];
  const std::size_t next = v + 1 == visits.size() ? visit.end : visits[v + 1].begin;
  const std::size_t back_end = std::max(visit.back, std::min(visit.back_end, reader.end()));
  const std::size_t back_next = v > 0 ? visits[v - 1].back : back_end;
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(next) - reader.live(visit.begin));
  stage.forward_high_bytes = reader.peak(visit.begin, next) - reader.live(visit.begin);
  stage.backward_high_bytes = std::max<std::int64_t>(
      0, std::max(reader.live(visit.back), reader.peak(visit.back, back_next)) -
             reader.live(visit.begin));
  stage.copied_bytes = reader.moved(next) - reader.moved(visit.begin);
  stage.forward_us = reader.us(visit.begin, visit.end);
  stage.backward_us = reader.us(visit.back, back_next);
  return stage;
}

// Adds a later visit of the same block. The visits before it hold their bytes meanwhile.
void add_visit(StageReading& stage, const StageReading& later) {
  stage.forward_high_bytes =
      std::max(stage.forward_high_bytes, stage.kept_bytes + later.forward_high_bytes);
  stage.backward_high_bytes =
      std::max(stage.backward_high_bytes, stage.kept_bytes + later.backward_high_bytes);
  stage.kept_bytes += later.kept_bytes;
  stage.copied_bytes += later.copied_bytes;
  stage.forward_us += later.forward_us;
  stage.backward_us += later.backward_us;
}

// Reads the stage before the first block, and its backward pass, which lasts to the end.
StageReading read_before(const StepTrace& trace, const Reader& reader,
                         const std::vector<Visit>& visits) {
  const std::size_t first = visits.front().begin;
  const std::size_t back =
      std::max(visits.front().back, std::min(visits.front().back_end, reader.end() - 1));
  std::int64_t most = trace.start_bytes;
  for (std::size_t i = 0; i <= first; ++i) most = std::max(most, trace.events[i].peak_bytes);
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(first) - trace.start_bytes);
  stage.forward_high_bytes = most - trace.start_bytes;
  stage.backward_high_bytes =
      std::max<std::int64_t>(0, reader.peak(back, reader.end()) - trace.start_bytes);
  stage.forward_us = microseconds(trace.events[first].time - trace.start);
  stage.backward_us = reader.us(back, reader.end());
  return stage;
}

// Reads the stage from the end of the last block to the beginning of its backward pass.
StageReading read_after(const Reader& reader, const std::vector<Visit>& visits) {
  const std::size_t last = visits.back().end;
  const std::size_t back = visits.back().back;
  StageReading stage;
  stage.forward_high_bytes = reader.peak(last, back) - reader.live(last);
  stage.forward_us = reader.us(last, back);
  return stage;
}

}  // namespace

Status no_chain(const std::string& found) {
  return failed_precondition(
      "memory: expected blocks that run one after another, and backward in reverse, " + found +
      "; activations are kept");
}

void TraceRecorder::start(Nanoseconds now, std::function<std::int64_t()> moved) {
  const std::scoped_lock lock(mutex_);
  memory_.reset_peak();
  trace_ = {};
  trace_.start = now;
  moved_ = std::move(moved);
  trace_.start_bytes = memory_.count().live_bytes;
  running_ = true;
}

void TraceRecorder::note(BlockId block, BlockEdge edge, Nanoseconds now) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!running_) return;
  const MemoryCount count = memory_.count();
  const std::int64_t moved = moved_ ? moved_() : 0;
  trace_.events.push_back({block, edge, now, count.live_bytes, count.peak_bytes, moved});
  memory_.reset_peak();
}

StepTrace TraceRecorder::finish(Nanoseconds now) {
  const std::scoped_lock lock(mutex_);
  running_ = false;
  trace_.end = now;
  trace_.end_peak_bytes = memory_.count().peak_bytes;
  return std::exchange(trace_, {});
}

Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks) {
  if (blocks == 0) return no_chain("found no blocks");
  const auto visits = visits_of(trace);
  if (!visits.ok()) return visits.status();
  if (visits->empty()) return no_chain("found no block that ran forward and backward");
  if (Status chain = check_chain(*visits, trace.events.size()); !chain.ok()) return chain;
  const Reader reader(trace);
  StepReading reading;
  reading.start_bytes = trace.start_bytes;
  reading.peak_bytes = std::max(trace.start_bytes, trace.end_peak_bytes);
  for (const TraceEvent& event : trace.events)
    reading.peak_bytes = std::max(reading.peak_bytes, event.peak_bytes);
  reading.stages.push_back(read_before(trace, reader, *visits));
  for (std::size_t v = 0; v < visits->size(); ++v) {
    const StageReading stage = read_visit(reader, *visits, v);
    const auto known = std::ranges::find(reading.order, (*visits)[v].block);
    if (known == reading.order.end()) {
      reading.order.push_back((*visits)[v].block);
      reading.stages.push_back(stage);
    } else {
      reading.has_repeats = true;
      add_visit(reading.stages[static_cast<std::size_t>(known - reading.order.begin()) + 1], stage);
    }
  }
  reading.stages.push_back(read_after(reader, *visits));
  return reading;
}

}  // namespace cox::detail
