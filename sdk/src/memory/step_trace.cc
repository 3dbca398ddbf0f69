#include "sdk/src/memory/step_trace.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cox::detail {
namespace {

std::int64_t microseconds(Nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

Status no_chain(const std::string& found) {
  return failed_precondition("memory: expected blocks that run once a step, one after another, " +
                             found + "; activations are kept");
}

// Where a trace changes from one stage to another: indices into its events.
struct Edges {
  std::vector<std::size_t> forward_begin, forward_end, backward_begin, backward_end;
};

std::vector<std::size_t>& of(Edges& edges, BlockEdge edge) {
  switch (edge) {
    case BlockEdge::forward_begin:
      return edges.forward_begin;
    case BlockEdge::forward_end:
      return edges.forward_end;
    case BlockEdge::backward_begin:
      return edges.backward_begin;
    default:
      return edges.backward_end;
  }
}

Result<Edges> edges_of(const StepTrace& trace, std::size_t blocks) {
  const std::size_t none = trace.events.size();
  Edges edges;
  for (int e = 0; e < 4; ++e) of(edges, static_cast<BlockEdge>(e)).assign(blocks, none);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    std::size_t& place = of(edges, event.edge)[event.block.value()];
    if (place != none && event.edge != BlockEdge::backward_end) {
      return no_chain("found one that runs twice (block " + std::to_string(event.block.value()) +
                      ")");
    }
    place = i;
  }
  std::size_t last = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const bool in_order = edges.forward_begin[b] >= last &&
                          edges.forward_end[b] > edges.forward_begin[b] &&
                          edges.forward_end[b] < none;
    if (!in_order) return no_chain("found block " + std::to_string(b) + " missing or out of order");
    last = edges.forward_end[b];
  }
  for (std::size_t b = blocks; b-- > 0;) {
    if (edges.backward_begin[b] <= last || edges.backward_begin[b] == none) {
      return no_chain("found the backward pass of block " + std::to_string(b) +
                      " missing or out of order");
    }
    last = edges.backward_begin[b];
  }
  return edges;
}

// Reads a trace between two of its events, both given by index; one past the last is the end.
class Reader {
 public:
  explicit Reader(const StepTrace& trace) : trace_(trace) {}

  std::int64_t live(std::size_t event) const { return trace_.events[event].live_bytes; }
  std::int64_t moved(std::size_t event) const { return trace_.events[event].moved_bytes; }
  // Most after `from`, up to `to`.
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

StageReading read_block(const Reader& reader, const Edges& edges, std::size_t b) {
  const bool is_last = b + 1 == edges.forward_begin.size();
  const std::size_t begin = edges.forward_begin[b];
  const std::size_t next = is_last ? edges.forward_end[b] : edges.forward_begin[b + 1];
  const std::size_t back = edges.backward_begin[b];
  const std::size_t back_end = std::max(back, std::min(edges.backward_end[b], reader.end()));
  const std::size_t back_next = b > 0 ? edges.backward_begin[b - 1] : back_end;
  StageReading stage;
  stage.kept_bytes = std::max<std::int64_t>(0, reader.live(next) - reader.live(begin));
  stage.forward_high_bytes = reader.peak(begin, next) - reader.live(begin);
  stage.backward_high_bytes = std::max<std::int64_t>(
      0, std::max(reader.live(back), reader.peak(back, back_next)) - reader.live(begin));
  stage.copied_bytes = reader.moved(next) - reader.moved(begin);
  stage.forward_us = reader.us(begin, edges.forward_end[b]);
  stage.backward_us = reader.us(back, back_next);
  return stage;
}

// Up to the first block, and backward from there to the end.
StageReading read_before(const StepTrace& trace, const Reader& reader, const Edges& edges) {
  const std::size_t first = edges.forward_begin.front();
  const std::size_t back = std::max(edges.backward_begin.front(),
                                    std::min(edges.backward_end.front(), reader.end() - 1));
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

// From the end of the last block to the beginning of its backward pass.
StageReading read_after(const Reader& reader, const Edges& edges) {
  const std::size_t last = edges.forward_end.back();
  const std::size_t back = edges.backward_begin.back();
  StageReading stage;
  stage.forward_high_bytes = reader.peak(last, back) - reader.live(last);
  stage.forward_us = reader.us(last, back);
  return stage;
}

}  // namespace

void TraceRecorder::start(Nanoseconds now, std::function<std::int64_t()> moved) {
  const std::scoped_lock lock(mutex_);
  reset_counted_peak();
  trace_ = {};
  trace_.start = now;
  moved_ = std::move(moved);
  trace_.start_bytes = counted_memory().live_bytes;
  running_ = true;
}

void TraceRecorder::note(BlockId block, BlockEdge edge, Nanoseconds now) noexcept {
  const std::scoped_lock lock(mutex_);
  if (!running_) return;
  const MemoryCount count = counted_memory();
  const std::int64_t moved = moved_ ? moved_() : 0;
  trace_.events.push_back({block, edge, now, count.live_bytes, count.peak_bytes, moved});
  reset_counted_peak();
}

StepTrace TraceRecorder::finish(Nanoseconds now) {
  const std::scoped_lock lock(mutex_);
  running_ = false;
  trace_.end = now;
  trace_.end_peak_bytes = counted_memory().peak_bytes;
  return std::exchange(trace_, {});
}

Result<StepReading> read_stages(const StepTrace& trace, std::size_t blocks) {
  if (blocks == 0) return no_chain("found none");
  const auto edges = edges_of(trace, blocks);
  if (!edges.ok()) return edges.status();
  const Reader reader(trace);
  StepReading reading;
  reading.start_bytes = trace.start_bytes;
  reading.step_us = microseconds(trace.end - trace.start);
  reading.stages.push_back(read_before(trace, reader, *edges));
  for (std::size_t b = 0; b < blocks; ++b) reading.stages.push_back(read_block(reader, *edges, b));
  reading.stages.push_back(read_after(reader, *edges));
  return reading;
}

std::int64_t peak_bytes(const StepReading& reading) {
  std::int64_t level = reading.start_bytes;
  std::int64_t most = level;
  for (const StageReading& stage : reading.stages) {
    most = std::max({most, level + stage.forward_high_bytes, level + stage.backward_high_bytes});
    level += stage.kept_bytes;
  }
  return most;
}

}  // namespace cox::detail
