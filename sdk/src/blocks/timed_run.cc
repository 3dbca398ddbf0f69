#include "sdk/src/blocks/timed_run.h"

#include <exception>
#include <utility>

#include "sdk/src/device/choice.h"

namespace cox::detail {
namespace {

// Ignores a device error: the timed step's operators meet it too, and readings must not throw.
Nanoseconds settled_time(c10::Device device) noexcept {
  try {
    wait_for_current_stream(device);
  } catch (const std::exception&) {
  }
  return steady_now();
}

class RunSink final : public BlockSink {
 public:
  RunSink(const VisitParts& visits, const SeeEdge& see_edge)
      : now_(visits.now), see_edge_(see_edge), spent_us_(visits.steering.size()) {}

  void block_edge(BlockId block, BlockEdge edge) noexcept override {
    if (see_edge_) see_edge_(block, edge, now_());
  }
  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override {
    const Seconds spent = measurement.forward + measurement.backward;
    spent_us_[block.value()] += static_cast<std::int64_t>(1e6 * spent.count());
  }
  std::vector<std::int64_t> take() { return std::move(spent_us_); }

 private:
  const VisitClock::Now& now_;
  const SeeEdge& see_edge_;
  std::vector<std::int64_t> spent_us_;
};

}  // namespace

Result<std::vector<std::int64_t>> run_timed(VisitWatch& visits, const std::function<Status()>& step,
                                            const SeeEdge& see_edge) {
  VisitParts& parts = visits.parts();
  RunSink sink(parts, see_edge);
  VisitClock::Now now_before =
      std::exchange(parts.now, [device = parts.device] { return settled_time(device); });
  const MeasureMode mode_before = parts.clock.mode();
  BlockSink* const sink_before = parts.clock.report_to(&sink);
  parts.clock.measure(MeasureMode::times);
  const Status ran = step();
  visits.end_step();
  visits.forget_step();
  parts.clock.measure(mode_before);
  parts.clock.report_to(sink_before);
  parts.now = std::move(now_before);
  if (!ran.ok()) return ran;
  return sink.take();
}

}  // namespace cox::detail
