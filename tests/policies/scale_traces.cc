#include "tests/policies/scale_traces.h"

#include <algorithm>
#include <limits>

namespace cox::test {
namespace {

constexpr std::uint64_t kTail = 4500;  // steps after the trouble
constexpr float kLargest = 14;         // bits; finite in fp16 without a scale
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::array<std::string_view, kTraceKinds> kNames = {"calm",
                                                              "bursts",
                                                              "periodic",
                                                              "one bad rank",
                                                              "infinite for a while",
                                                              "infinite for ever",
                                                              "underflow drift",
                                                              "overflow drift",
                                                              "heavy tails"};

}  // namespace

std::string_view to_string(TraceKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

ScaleTrace::ScaleTrace(TraceKind kind, std::uint64_t seed) : kind_(kind), random_(seed) {
  base_ = static_cast<float>(-18 + 22 * random_.uniform());
  noise_ = static_cast<float>(0.1 + 0.5 * random_.uniform());
  trouble_ends_ = 1000 + random_.below(3000);
  steps_ = trouble_ends_ + kTail;
  rank_ = random_.below(kTraceRanks);
  period_ = 20 + random_.below(880);
  height_ = static_cast<float>(1 + 15 * random_.uniform());
  if (kind == TraceKind::infinite_forever) {
    from_ = trouble_ends_;
    until_ = trouble_ends_ = kNever;
  }
  const float bits = static_cast<float>(4 + 10 * random_.uniform());
  if (kind == TraceKind::underflow_drift) drift_ = -bits / static_cast<float>(trouble_ends_);
  if (kind == TraceKind::overflow_drift) drift_ = bits / static_cast<float>(trouble_ends_);
}

// Each burst begins after the last one.
void ScaleTrace::plan_trouble() {
  if (kind_ == TraceKind::infinite_forever || step_ < until_ || step_ < from_) return;
  const bool seldom = kind_ == TraceKind::infinite_while;
  from_ = step_ + 1 + random_.below(seldom ? 1500 : 700);
  const std::uint64_t longest = random_.chance(0.5) ? 3 : 200;
  until_ = from_ + 1 + random_.below(longest);
  height_ = static_cast<float>(1 + 15 * random_.uniform());
  burst_is_infinite_ = seldom || (kind_ == TraceKind::bad_rank && random_.chance(0.2));
}

// Returns roughly normal noise, cheaply.
float ScaleTrace::wiggle() {
  const std::uint64_t bits = random_.bits();
  const auto part = [bits](int shift) { return static_cast<float>((bits >> shift) & 0xFFFF); };
  const float sum = part(0) + part(16) + part(32) + part(48);
  return noise_ * (sum / 65536.0f - 2.0f) * 1.7320508f;
}

TraceStep ScaleTrace::next() {
  const bool is_troubled = step_ < trouble_ends_;
  const bool has_bursts = kind_ == TraceKind::bursts || kind_ == TraceKind::bad_rank ||
                          kind_ == TraceKind::infinite_while ||
                          kind_ == TraceKind::infinite_forever;
  if (is_troubled && has_bursts) plan_trouble();
  const bool in_burst = is_troubled && has_bursts && step_ >= from_ && step_ < until_;
  const bool spikes = is_troubled && kind_ == TraceKind::periodic && step_ % period_ == period_ - 1;
  const float drifted = drift_ * static_cast<float>(std::min(step_, trouble_ends_));
  TraceStep step;
  for (std::size_t r = 0; r < kTraceRanks; ++r) {
    TraceGradient& gradient = step[r];
    gradient.largest = base_ + drifted + wiggle();
    gradient.spread = 18 + 2 * noise_;
    const bool mine = kind_ != TraceKind::bad_rank || r == rank_;
    if ((in_burst && mine) || spikes) gradient.largest += height_;
    if (kind_ == TraceKind::heavy_tails && is_troubled && random_.chance(0.002)) {
      gradient.largest += static_cast<float>(-2.5 * std::log2(random_.uniform()));
    }
    gradient.largest = std::min(gradient.largest, kLargest);
    gradient.infinite =
        in_burst && mine && (burst_is_infinite_ || kind_ == TraceKind::infinite_forever);
  }
  ++step_;
  return step;
}

}  // namespace cox::test
