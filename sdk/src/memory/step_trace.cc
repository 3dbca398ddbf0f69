#include "sdk/src/memory/step_trace.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

namespace cox::detail {
namespace {

std::int64_t microseconds(Nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

// Edges are the borders between stages in a trace: indices into its events, by edge and by the
// block's place in the forward pass.
struct Edges {
  std::vector<std::size_t> order;  // blocks' indices in the forward pass
  std::array<std::vector<std::size_t>, 4> at;
  const std::vector<std::size_t>& operator[](std::size_t edge) const { return at[edge]; }
};

constexpr auto kForwardBegin = static_cast<std::size_t>(BlockEdge::forward_begin);
constexpr auto kForwardEnd = static_cast<std::size_t>(BlockEdge::forward_end);
constexpr auto kBackwardBegin = static_cast<std::size_t>(BlockEdge::backward_begin);
constexpr auto kBackwardEnd = static_cast<std::size_t>(BlockEdge::backward_end);

std::string block_text(std::size_t block) {
  return "block " + std::to_string(block);
}

// Finds each block's edges. The last end of a backward pass counts. A block unused by backward (it
// saves nothing, or its results are detached) belongs to the stage before it, and has no place in
// the order.
Result<Edges> edges_of(const StepTrace& trace, std::size_t blocks) {
  const std::size_t none = trace.events.size();
  std::array<std::vector<std::size_t>, 4> seen;  // by edge and block
  seen.fill(std::vector<std::size_t>(blocks, none));
  Edges edges;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    std::size_t& place = seen[static_cast<std::size_t>(event.edge)][event.block.value()];
    if (place != none && event.edge != BlockEdge::backward_end)
      return no_chain("found a block that runs twice (" + block_text(event.block.value()) + ")");
    place = i;
    if (event.edge == BlockEdge::forward_begin) edges.order.push_back(event.block.value());
  }
  const auto& backward = seen[kBackwardBegin];
  std::erase_if(edges.order, [&](std::size_t block) { return backward[block] == none; });
  for (std::size_t edge = 0; edge < seen.size(); ++edge) {
    for (const std::size_t block : edges.order) edges.at[edge].push_back(seen[edge][block]);
  }
  return edges;
}

// Returns ok if blocks run one after another, and backward goes the other way.
Status check_chain(const Edges& edges, std::size_t none) {
  std::size_t last = 0;
  for (std::size_t s = 0; s < edges.order.size(); ++s) {
    const bool in_order = edges[kForwardBegin][s] >= last &&
                          edges[kForwardEnd][s] > edges[kForwardBegin][s] &&
                          edges[kForwardEnd][s] < none;
    if (!in_order)
      return no_chain("found " + block_text(edges.order[s]) + " missing or out of order");
    last = edges[kForwardEnd][s];
  }
  for (std::size_t s = edges.order.size(); s-- > 0;) {
    if (edges[kBackwardBegin][s] <= last) {
      return no_chain("found the backward pass of " + block_text(edges.order[s]) + " out of order");
    }
    last = edges[kBackwardBegin][s];
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

// Reads the block at place `b` of the forward pass.
StageReading read_block(const Reader& reader, const Edges& edges, std::size_t b) {
  const bool is_last = b + 1 == edges[kForwardBegin].size();
  const std::size_t begin = edges[kForwardBegin][b];
  const std::size_t next = is_last ? edges[kForwardEnd][b] : edges[kForwardBegin][b + 1];
  const std::size_t back = edges[kBackwardBegin][b];
  const std::size_t back_end = std::max(back, std::min(edges[kBackwardEnd][b], reader.end()));
  const std::size_t back_next = b > 0 ? edges[kBackwardBegin][b - 1] : back_end;
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(next) - reader.live(begin));
  stage.forward_high_bytes = reader.peak(begin, next) - reader.live(begin);
  stage.backward_high_bytes = std::max<std::int64_t>(
      0, std::max(reader.live(back), reader.peak(back, back_next)) - reader.live(begin));
  stage.copied_bytes = reader.moved(next) - reader.moved(begin);
  stage.forward_us = reader.us(begin, edges[kForwardEnd][b]);
  stage.backward_us = reader.us(back, back_next);
  return stage;
}

// Reads the stage before the first block, and its backward pass, which lasts to the end.
StageReading read_before(const StepTrace& trace, const Reader& reader, const Edges& edges) {
  const std::size_t first = edges[kForwardBegin].front();
  const std::size_t back = std::max(edges[kBackwardBegin].front(),
                                    std::min(edges[kBackwardEnd].front(), reader.end() - 1));
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
StageReading read_after(const Reader& reader, const Edges& edges) {
  const std::size_t last = edges[kForwardEnd].back();
  const std::size_t back = edges[kBackwardBegin].back();
  StageReading stage;
  stage.forward_high_bytes = reader.peak(last, back) - reader.live(last);
  stage.forward_us = reader.us(last, back);
  return stage;
}

}  // namespace

Status no_chain(const std::string& found) {
  return failed_precondition("memory: expected blocks that run once a step, one after another, " +
                             found + "; activations are kept");
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
  const auto edges = edges_of(trace, blocks);
  if (!edges.ok()) return edges.status();
  if (edges->order.empty()) return no_chain("found no block that ran forward and backward");
  if (Status chain = check_chain(*edges, trace.events.size()); !chain.ok()) return chain;
  const Reader reader(trace);
  StepReading reading;
  reading.start_bytes = trace.start_bytes;
  reading.peak_bytes = std::max(trace.start_bytes, trace.end_peak_bytes);
  for (const TraceEvent& event : trace.events)
    reading.peak_bytes = std::max(reading.peak_bytes, event.peak_bytes);
  reading.stages.push_back(read_before(trace, reader, *edges));
  for (std::size_t s = 0; s < edges->order.size(); ++s)
    reading.stages.push_back(read_block(reader, *edges, s));
  reading.stages.push_back(read_after(reader, *edges));
  reading.order = edges->order;
  return reading;
}

}  // namespace cox::detail
