#include <algorithm>
#include <string>

#include "coordinator/wire/mask.h"
#include "coordinator/wire/plan_payload.h"

namespace cox::wire {
namespace {

std::size_t max_continuations(const JobFacts& job) {
  const std::size_t bytes = max_payload_bytes(job);
  return std::min(kMaxContinuations, bytes / kContinuationPayloadBytes + 1);
}

Status damaged(const std::string& what) {
  return data_loss("mask: " + what + "; ask for the full plan");
}

}  // namespace

PlanAssembler::PlanAssembler(JobFacts job, Plan held)
    : job_(std::move(job)), held_(std::move(held)), max_continuations_(max_continuations(job_)) {}

Result<Assembly> PlanAssembler::feed(std::span<const std::byte> bytes) {
  const Result<FrameView> frame = open_frame(bytes);
  if (!frame.ok()) return frame.status();
  const FrameHeader& header = frame->header;
  if (header.kind == FrameKind::unchanged) return feed_unchanged(header);
  if (header.id.incarnation != held_.id.incarnation)
    return failed_precondition("mask: expected a plan of incarnation " +
                               std::to_string(held_.id.incarnation) + ", found one of " +
                               std::to_string(header.id.incarnation) +
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

// The frame has 16 bits of the number and a check of all of it, so the numbers around the held one
// are tried.
Result<Assembly> PlanAssembler::feed_unchanged(const FrameHeader& header) const {
  constexpr std::uint64_t kSpan = 1u << 16;
  const PlanId& held = held_.id;
  const std::uint64_t ahead = (header.id.number - held.number) % kSpan;
  PlanId candidate = held;
  candidate.number = held.number + ahead;
  if (unchanged_checksum(candidate) == header.checksum)
    return ahead == 0 ? Assembly::nothing_new : Assembly::base_unknown;
  if (candidate.number >= kSpan) {
    candidate.number -= kSpan;
    if (unchanged_checksum(candidate) == header.checksum) return Assembly::nothing_new;
  }
  return damaged("an unchanged round speaks of no plan near number " + std::to_string(held.number) +
                 " of this incarnation");
}

// Makes room for the plan that `header` belongs to, unless it is the one in work already. A full
// plan takes the place of changes with the same number, a newer plan that of an older one.
Status PlanAssembler::open_pending(const FrameHeader& header) {
  const bool same =
      pending_.number == header.id.number && pending_.base_distance == header.base_distance;
  if (same && pending_.continuations == header.continuations) return ok_status();
  const std::uint16_t expected = pending_.continuations;
  pending_ = {};
  if (same)
    return damaged("frames of one plan disagree: expected " + std::to_string(expected) +
                   " continuations, found " + std::to_string(header.continuations));
  if (header.continuations > max_continuations_)
    return damaged("expected at most " + std::to_string(max_continuations_) +
                   " continuations for this job, found " + std::to_string(header.continuations));
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
    return damaged("expected " + std::to_string(job_.blocks.size()) + " blocks, found " +
                   std::to_string(header.blocks));
  }
  auto& piece = pending_.pieces[is_head ? 0 : std::size_t{header.index} + 1];
  const bool seen = is_head ? pending_.has_head : !piece.empty();
  if (seen) return Assembly::nothing_new;
  if (!is_head && frame.payload.empty()) return damaged("a continuation carries nothing");
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
  Result<Plan> plan = done.base_distance == 0 ? read_full_payload(payload, job_)
                                              : read_delta_payload(payload, held_, job_);
  if (!plan.ok()) {
    const bool other_base = plan.status().code() == StatusCode::failed_precondition;
    if (other_base) return Assembly::base_unknown;
    return plan.status();
  }
  plan->id = {held_.id.incarnation, done.number};
  plan->earliest_round = done.head.earliest_round;
  if (Status status = validate(*plan, job_); !status.ok())
    return damaged("the plan does not fit this job: " + status.message());
  held_ = std::move(*plan);
  return Assembly::complete;
}

}  // namespace cox::wire
