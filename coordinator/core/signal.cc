#include "coordinator/core/signal.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "coordinator/core/hash.h"

namespace cox {
namespace {

std::uint32_t checksum_of(const RankSignal& signal) {
  const auto bytes = std::as_bytes(std::span(&signal, 1));
  return crc32(bytes.first(offsetof(RankSignal, checksum)));
}

std::uint32_t add_saturating(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t sum = a + b;
  return sum < a ? std::numeric_limits<std::uint32_t>::max() : sum;
}

constexpr std::uint16_t bit(SignalFlag flag) {
  return static_cast<std::uint16_t>(flag);
}

// What happened in any of the covered rounds stays true; the other flags say how the rank is now.
constexpr std::uint16_t kEventFlags =
    bit(SignalFlag::nonfinite_loss) | bit(SignalFlag::nonfinite_gradient) |
    bit(SignalFlag::step_skipped) | bit(SignalFlag::rolled_back) | bit(SignalFlag::step_repeated);

struct WeighedLoss {
  double loss = 0;
  double weight = 0;
};

// Only finite losses are averaged; the flags say that there were others.
WeighedLoss merge_losses(const RankSignal& a, const RankSignal& b) {
  const double weight = a.weight + b.weight;
  if (!std::isfinite(a.loss) && !std::isfinite(b.loss)) return {b.loss, weight};
  if (!std::isfinite(a.loss)) return {b.loss, b.weight};
  if (!std::isfinite(b.loss)) return {a.loss, a.weight};
  if (!(weight > 0)) return {b.loss, weight};
  return {(a.loss * a.weight + b.loss * b.weight) / weight, weight};
}

}  // namespace

void seal(RankSignal& signal) {
  signal.checksum = checksum_of(signal);
}

Status check(const RankSignal& signal) {
  if (signal.magic != RankSignal::kMagic) {
    return data_loss("signal: expected the magic number of a rank's signal, found " +
                     std::to_string(signal.magic));
  }
  if (signal.version != RankSignal::kVersion) {
    return data_loss("signal: expected version " + std::to_string(RankSignal::kVersion) +
                     ", found " + std::to_string(signal.version) +
                     "; start all ranks with the same build");
  }
  if (signal.checksum != checksum_of(signal)) {
    return data_loss("signal: the checksum does not fit its bytes; the report was damaged");
  }
  if (signal.rank.value() < 0 || signal.rank.value() >= kMaxRanks) {
    return data_loss("signal: expected a rank from 0 to " + std::to_string(kMaxRanks - 1) +
                     ", found " + std::to_string(signal.rank.value()));
  }
  if (signal.fragment.size > signal.fragment.payload.size()) {
    return data_loss("signal: expected a fragment of at most " +
                     std::to_string(signal.fragment.payload.size()) + " bytes, found " +
                     std::to_string(signal.fragment.size));
  }
  return ok_status();
}

namespace {

// What must not be lost when only one of two fragments can travel on. A failure is said again with
// every report, a request is said once.
int urgency(const Fragment& fragment) {
  switch (fragment.kind) {
    case FragmentKind::none:
      return 0;
    case FragmentKind::block_profile:
      return 1;
    case FragmentKind::block_failed:
      return 2;
    case FragmentKind::precision_request:
      return 3;
  }
  return 0;
}

}  // namespace

RankSignal merge_reports(const RankSignal& earlier, const RankSignal& later) {
  RankSignal merged = later;
  merged.flags |= earlier.flags & kEventFlags;
  const WeighedLoss loss = merge_losses(earlier, later);
  merged.loss = loss.loss;
  merged.weight = loss.weight;
  if (!std::isfinite(later.gradient_norm)) merged.gradient_norm = earlier.gradient_norm;
  merged.wall_seconds += earlier.wall_seconds;
  for (std::size_t p = 0; p < kPhases; ++p) merged.phase_seconds[p] += earlier.phase_seconds[p];
  merged.reduction_seconds += earlier.reduction_seconds;
  merged.reduction_exposed_seconds += earlier.reduction_exposed_seconds;
  merged.rounds = add_saturating(earlier.rounds, later.rounds);
  merged.samples = add_saturating(earlier.samples, later.samples);
  merged.nonfinite_values = add_saturating(earlier.nonfinite_values, later.nonfinite_values);
  merged.tokens += earlier.tokens;
  merged.memory_peak_bytes = std::max(earlier.memory_peak_bytes, later.memory_peak_bytes);
  if (urgency(later.fragment) < urgency(earlier.fragment)) merged.fragment = earlier.fragment;
  merged.checksum = 0;
  return merged;
}

Fragment make_fragment(const BlockProfile& profile) {
  Fragment fragment;
  fragment.kind = FragmentKind::block_profile;
  fragment.size = sizeof(BlockProfile);
  std::memcpy(fragment.payload.data(), &profile, sizeof profile);
  return fragment;
}

Result<BlockProfile> read_block_profile(const Fragment& fragment) {
  if (fragment.kind != FragmentKind::block_profile || fragment.size != sizeof(BlockProfile)) {
    return data_loss("fragment: expected a block profile of " +
                     std::to_string(sizeof(BlockProfile)) + " bytes, found kind " +
                     std::to_string(static_cast<int>(fragment.kind)) + " of " +
                     std::to_string(fragment.size) + " bytes");
  }
  BlockProfile profile;
  std::memcpy(&profile, fragment.payload.data(), sizeof profile);
  if (profile.blocks > kMaxBlocks || profile.block.value() >= profile.blocks) {
    return data_loss("fragment: expected a block below " + std::to_string(profile.blocks) + " of " +
                     std::to_string(kMaxBlocks) + " at most, found " +
                     std::to_string(profile.block.value()));
  }
  for (const float value :
       {profile.forward_seconds, profile.backward_seconds, profile.boundary_kib}) {
    if (!std::isfinite(value) || value < 0) {
      return data_loss("fragment: a time or size of block " +
                       std::to_string(profile.block.value()) + " is negative or not finite");
    }
  }
  return profile;
}

Fragment make_fragment(const BlockFailure& failure) {
  Fragment fragment;
  fragment.kind = FragmentKind::block_failed;
  fragment.size = sizeof(BlockFailure);
  std::memcpy(fragment.payload.data(), &failure, sizeof failure);
  return fragment;
}

Result<BlockFailure> read_block_failure(const Fragment& fragment) {
  if (fragment.kind != FragmentKind::block_failed || fragment.size != sizeof(BlockFailure)) {
    return data_loss("fragment: expected a failure of a block of " +
                     std::to_string(sizeof(BlockFailure)) + " bytes, found kind " +
                     std::to_string(static_cast<int>(fragment.kind)) + " of " +
                     std::to_string(fragment.size) + " bytes");
  }
  BlockFailure failure;
  std::memcpy(&failure, fragment.payload.data(), sizeof failure);
  const auto action = static_cast<unsigned>(failure.action);
  if (failure.blocks > kMaxBlocks || failure.block.value() >= failure.blocks || action == 0 ||
      action > 3) {
    return data_loss("fragment: expected an action from 1 to 3 of a block below " +
                     std::to_string(failure.blocks) + ", found action " + std::to_string(action) +
                     " of block " + std::to_string(failure.block.value()));
  }
  failure.what.back() = '\0';
  return failure;
}

Fragment make_fragment(const PrecisionRequest& request) {
  Fragment fragment;
  fragment.kind = FragmentKind::precision_request;
  fragment.size = sizeof(PrecisionRequest);
  std::memcpy(fragment.payload.data(), &request, sizeof request);
  return fragment;
}

Result<PrecisionRequest> read_precision_request(const Fragment& fragment) {
  if (fragment.kind != FragmentKind::precision_request ||
      fragment.size != sizeof(PrecisionRequest)) {
    return data_loss("fragment: expected a precision request of " +
                     std::to_string(sizeof(PrecisionRequest)) + " bytes, found kind " +
                     std::to_string(static_cast<int>(fragment.kind)) + " of " +
                     std::to_string(fragment.size) + " bytes");
  }
  PrecisionRequest request;
  std::memcpy(&request, fragment.payload.data(), sizeof request);
  const bool knows_block =
      request.block < kMaxBlocks || request.block == PrecisionRequest::kEveryBlock;
  if (!knows_block || static_cast<unsigned>(request.what) > 2 ||
      static_cast<unsigned>(request.format) >= kPrecisions) {
    return data_loss("fragment: a precision request names an unknown block, wish or format");
  }
  return request;
}

}  // namespace cox
