#include "coordinator/wire/mask.h"

#include <algorithm>
#include <string>

#include "coordinator/wire/plan_codec.h"

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

std::size_t max_continuations(const JobFacts& job) {
  const std::size_t bytes = max_payload_bytes(job);
  return std::min(kMaxContinuations, bytes / kContinuationPayloadBytes + 1);
}

Status damaged_mask(const auto&... what) {
  return data_loss("mask: ", what..., "; ask for the full plan");
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
  head.bits = block_bits(plan);
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
    return resource_exhausted("mask: expected at most ", kMaxContinuations,
                              " continuation frames, the plan needs ", continuations,
                              "; use fewer profiles");
  head.continuations = static_cast<std::uint16_t>(continuations);
  return cut(head, payload);
}

PlanAssembler::PlanAssembler(JobFacts job, Plan held)
    : job_(std::move(job)), held_(std::move(held)), max_continuations_(max_continuations(job_)) {}

Result<Assembly> PlanAssembler::feed(std::span<const std::byte> bytes) {
  const Result<FrameView> frame = open_frame(bytes);
  if (!frame.ok()) return frame.status();
  const FrameHeader& header = frame->header;
  if (header.id.incarnation != held_.id.incarnation)
    return failed_precondition("mask: expected a plan of incarnation ", held_.id.incarnation,
                               ", found one of ", header.id.incarnation,
                               "; a frame of an earlier start of the job is dropped");
  if (header.id.number <= held_.id.number) return Assembly::nothing_new;
  if (header.id.number < pending_.number) return Assembly::nothing_new;
  if (header.base_distance != 0) {
    const bool full_is_coming = pending_.number == header.id.number && pending_.base_distance == 0;
    if (full_is_coming) return Assembly::incomplete;
    if (header.id.number - header.base_distance != held_.id.number) return Assembly::base_unknown;
  }
  if (Status status = open_pending(header); !status.ok()) return status;
  return feed_piece(*frame);
}

// Makes room for the plan of `header`, unless that plan is pending already. A full plan replaces a
// delta of the same number, and a newer plan replaces an older one.
Status PlanAssembler::open_pending(const FrameHeader& header) {
  const bool same =
      pending_.number == header.id.number && pending_.base_distance == header.base_distance;
  if (same && pending_.continuations == header.continuations) return ok_status();
  const std::uint16_t expected = pending_.continuations;
  pending_ = {};
  if (same)
    return damaged_mask("frames of one plan disagree: expected ", expected,
                        " continuations, found ", header.continuations);
  if (header.continuations > max_continuations_)
    return damaged_mask("expected at most ", max_continuations_,
                        " continuations for this job, found ", header.continuations);
  pending_.number = header.id.number;
  pending_.base_distance = header.base_distance;
  pending_.continuations = header.continuations;
  pending_.missing = std::size_t{header.continuations} + 1;
  pending_.pieces.resize(pending_.missing);
  return ok_status();
}

Result<Assembly> PlanAssembler::feed_piece(const FrameView& frame) {
  const FrameHeader& header = frame.header;
  const bool is_head = header.kind != FrameKind::continuation;
  if (is_head && header.blocks != job_.blocks.size()) {
    pending_ = {};
    return damaged_mask("expected ", job_.blocks.size(), " blocks, found ", header.blocks);
  }
  auto& piece = pending_.pieces[is_head ? 0 : std::size_t{header.index} + 1];
  const bool seen = is_head ? pending_.has_head : !piece.empty();
  if (seen) return Assembly::nothing_new;
  if (!is_head && frame.payload.empty()) return damaged_mask("a continuation carries nothing");
  piece.assign(frame.payload.begin(), frame.payload.end());
  if (is_head) {
    pending_.head = header;
    pending_.has_head = true;
  }
  if (--pending_.missing > 0) return Assembly::incomplete;
  return finish();
}

Result<Assembly> PlanAssembler::finish() {
  const Pending done = std::move(pending_);
  pending_ = {};
  std::vector<std::byte> payload;
  for (const auto& piece : done.pieces) payload.insert(payload.end(), piece.begin(), piece.end());
  const BlockBits bits = done.head.bits;
  Result<Plan> plan = done.base_distance == 0
                          ? read_full_payload(payload, size_of(job_), bits)
                          : read_delta_payload(payload, held_, size_of(job_), bits);
  if (!plan.ok()) {
    const bool other_base = plan.status().code() == StatusCode::failed_precondition;
    if (other_base) return Assembly::base_unknown;
    return damaged_mask(plan.status().message());
  }
  plan->id = {held_.id.incarnation, done.number};
  plan->earliest_round = done.head.earliest_round;
  if (Status status = validate(*plan, job_); !status.ok())
    return damaged_mask("the plan does not fit this job: ", status.message());
  held_ = std::move(*plan);
  return Assembly::complete;
}

}  // namespace cox::wire
