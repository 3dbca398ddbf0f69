// S4, first half: the cost of recording a section of a step as PhaseScope does: two readings of a
// clock (TickClock), the bookkeeping, and the rank's mark in shared memory.
//
//   bench_section [--quick]
#include <chrono>
#include <cstddef>
#include <vector>

#include "coordinator/transport/shared/mark_board.h"
#include "coordinator/transport/shared/segment.h"
#include "sdk/src/session/step_recorder.h"
#include "sdk/src/session/tick_clock.h"
#include "tests/bench/allocation_count.h"
#include "tests/bench/line.h"

namespace {

using namespace cox;
using namespace cox::detail;

constexpr int kSections = 1000;  // in a step
constexpr std::size_t kSteps = 200;

struct Cost {
  std::vector<double> ns;  // a section's time, one entry a step
  long allocations = 0;
};

Cost sections(StepRecorder& recorder, TickClock& clock, std::size_t steps) {
  Cost cost;
  cost.ns.reserve(steps);
  const bench::AllocationCount allocated;
  for (std::size_t i = 0; i < steps; ++i) {
    recorder.begin(StepId(i), Clock::now());
    const Clock::time_point began = Clock::now();
    for (int n = 0; n < kSections; ++n) {
      recorder.enter(Phase::forward, clock.now());
      recorder.leave(clock.now());
    }
    const std::chrono::duration<double, std::nano> passed = Clock::now() - began;
    cost.ns.push_back(passed.count() / kSections);
    recorder.end(Clock::now());
  }
  cost.allocations = allocated.so_far();
  return cost;
}

template <class Read>
double reading_ns(const Read& read) {
  constexpr int kReadings = 100'000;
  const Clock::time_point began = Clock::now();
  Clock::time_point last = began;
  for (int i = 0; i < kReadings; ++i) last = read();
  return std::chrono::duration<double, std::nano>(last - began).count() / kReadings;
}

bench::Line figure(double value, const char* unit, const char* what) {
  bench::Line line("S4", value, unit);
  line.with("what", what);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const std::size_t steps = is_quick ? kSteps : 10 * kSteps;
  const transport::SharedSegment memory =
      transport::heap_segment(transport::MarkBoard::bytes_needed(1));
  const auto board = *transport::MarkBoard::format(memory.bytes(), 1);
  transport::MarkWriter mark = board.writer(0);
  StepRecorder recorder;
  recorder.activity().move_mark(&mark);
  TickClock clock(has_steady_ticks());
  // The clock learns its rate within 10 ms.
  const Clock::time_point began = Clock::now();
  while (Clock::now() - began < std::chrono::milliseconds(50)) sections(recorder, clock, 1);
  const Cost cost = sections(recorder, clock, steps);
  figure(bench::quantile(cost.ns, 0.5), "ns", "recording a section, p50 of steps")
      .limit(50)
      .print();
  figure(static_cast<double>(cost.allocations), "allocations", "in all sections").limit(0).print();
  figure(2 * reading_ns([&clock] { return clock.now(); }), "ns", "of it: two readings")
      .with("by", clock.uses_ticks() ? "ticks" : "steady clock")
      .print();
  figure(2 * reading_ns([] { return Clock::now(); }), "ns", "two readings of the steady clock")
      .print();
  auto queue = RunQueue::of_this_thread();
  if (!queue) return 0;
  recorder.waiting().leave_out_queueing([&queue] { return queue->queued(); });
  const Cost crowded = sections(recorder, clock, steps);
  figure(bench::quantile(crowded.ns, 0.5), "ns", "a section where ranks outnumber cores").print();
  return 0;
}
