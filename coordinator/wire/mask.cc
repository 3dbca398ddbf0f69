#include "coordinator/wire/mask.h"

#include <algorithm>
#include <string>

#include "coordinator/wire/plan_payload.h"

namespace cox::wire {
namespace {

constexpr std::uint64_t kMaxBaseDistance = 255;

bool delta_is_possible(const Plan& plan, const Plan& base) {
  return base.id.incarnation == plan.id.incarnation && base.id.number < plan.id.number &&
         plan.id.number - base.id.number <= kMaxBaseDistance &&
         base.precision.size() == plan.precision.size() && check_shape(base).ok();
}

std::size_t continuations_for(std::size_t payload_bytes) {
  if (payload_bytes <= kHeadPayloadBytes) return 0;
  const std::size_t rest = payload_bytes - kHeadPayloadBytes;
  return (rest + kContinuationPayloadBytes - 1) / kContinuationPayloadBytes;
}

std::vector<Frame> cut(const FrameHeader& head, std::span<const std::byte> payload) {
  std::vector<Frame> frames;
  const std::size_t first = std::min(payload.size(), kHeadPayloadBytes);
  frames.push_back(seal_frame(head, payload.first(first)));
  payload = payload.subspan(first);
  FrameHeader next = head;
  next.kind = FrameKind::continuation;
  while (!payload.empty()) {
    const std::size_t size = std::min(payload.size(), kContinuationPayloadBytes);
    frames.push_back(seal_frame(next, payload.first(size)));
    payload = payload.subspan(size);
    ++next.index;
  }
  return frames;
}

}  // namespace

Result<std::vector<Frame>> encode_plan(const Plan& plan, const Plan* base) {
  if (Status status = check_shape(plan); !status.ok()) return status;
  std::vector<std::byte> payload = full_payload(plan);
  FrameHeader head;
  head.kind = FrameKind::full;
  head.id = plan.id;
  head.earliest_round = plan.earliest_round;
  head.blocks = static_cast<std::uint16_t>(plan.precision.size());
  if (base != nullptr && delta_is_possible(plan, *base)) {
    std::vector<std::byte> changes = delta_payload(plan, *base);
    if (changes.size() < payload.size()) {
      payload = std::move(changes);
      head.kind = FrameKind::delta;
      head.base_distance = static_cast<std::uint8_t>(plan.id.number - base->id.number);
    }
  }
  const std::size_t continuations = continuations_for(payload.size());
  if (continuations > kMaxContinuations)
    return resource_exhausted("mask: expected at most " + std::to_string(kMaxContinuations) +
                              " continuation frames, the plan needs " +
                              std::to_string(continuations) + "; use fewer classes");
  head.continuations = static_cast<std::uint16_t>(continuations);
  return cut(head, payload);
}

Frame encode_unchanged(const PlanId& id) {
  return unchanged_frame(id);
}

}  // namespace cox::wire
