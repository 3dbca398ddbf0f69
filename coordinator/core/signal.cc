#include "coordinator/core/signal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "coordinator/core/hash.h"

namespace cox {
namespace {

std::uint32_t checksum_of(const RankSignal& signal) {
  const auto bytes = std::as_bytes(std::span(&signal, 1));
  return crc32(bytes.first(offsetof(RankSignal, checksum)));
}

constexpr std::uint16_t bit(SignalFlag flag) {
  return static_cast<std::uint16_t>(flag);
}

// These flags record events of any covered round. The other flags describe the present state of the
// rank.
constexpr std::uint16_t kEventFlags =
    bit(SignalFlag::nonfinite_loss) | bit(SignalFlag::nonfinite_gradient) |
    bit(SignalFlag::step_skipped) | bit(SignalFlag::rolled_back) | bit(SignalFlag::step_repeated) |
    bit(SignalFlag::out_of_memory);

struct WeighedLoss {
  double loss = 0;
  double weight = 0;
};

// Averages finite losses only. The flag nonfinite_loss shows that there were others.
WeighedLoss merge_losses(const RankSignal& a, const RankSignal& b) {
  const double weight = a.weight + b.weight;
  if (!std::isfinite(a.loss) && !std::isfinite(b.loss)) return {b.loss, weight};
  if (!std::isfinite(a.loss)) return {b.loss, b.weight};
  if (!std::isfinite(b.loss)) return {a.loss, a.weight};
  if (!(weight > 0)) return {b.loss, weight};
  return {(a.loss * a.weight + b.loss * b.weight) / weight, weight};
}

// Returns the rank of a kind in the order of FragmentKind's comment. Orders unknown kinds of a
// newer build by their number.
int urgency(FragmentKind kind) {
  constexpr int kEvidence = 1;  // more urgent than none, less than a profile
  if (kind == FragmentKind::host_evidence || kind == FragmentKind::allocator_evidence)
    return kEvidence;
  return 2 * static_cast<int>(kind);
}

template <class Content>
Result<Content> content_of(const Fragment& fragment, std::string_view what) {
  if (fragment.kind != Content::kKind || fragment.size != sizeof(Content)) {
    return data_loss("fragment: expected ", what, " of ", sizeof(Content), " bytes, found kind ",
                     static_cast<int>(fragment.kind), " of ", fragment.size, " bytes");
  }
  Content content;
  std::memcpy(&content, fragment.payload.data(), sizeof content);
  return content;
}

}  // namespace

void seal(RankSignal& signal) {
  signal.checksum = checksum_of(signal);
}

Status check(const RankSignal& signal) {
  if (signal.magic != RankSignal::kMagic) {
    return data_loss("signal: expected the magic number of a rank's signal, found ", signal.magic);
  }
  if (signal.version != RankSignal::kVersion) {
    return data_loss("signal: expected version ", RankSignal::kVersion, ", found ", signal.version,
                     "; start all ranks with the same build");
  }
  if (signal.checksum != checksum_of(signal)) {
    return data_loss("signal: expected checksum ", checksum_of(signal), ", found ", signal.checksum,
                     "; the report was damaged on its way and is ignored");
  }
  if (signal.rank.value() < 0 || signal.rank.value() >= kMaxRanks) {
    return data_loss("signal: expected a rank from 0 to ", kMaxRanks - 1, ", found ",
                     signal.rank.value());
  }
  if (signal.fragment.size > signal.fragment.payload.size()) {
    return data_loss("signal: expected a fragment of at most ", signal.fragment.payload.size(),
                     " bytes, found ", signal.fragment.size);
  }
  return ok_status();
}

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
  merged.waiting_seconds += earlier.waiting_seconds;
  merged.recompute_seconds += earlier.recompute_seconds;
  merged.save_seconds += earlier.save_seconds;
  merged.rounds = add_saturating(earlier.rounds, later.rounds);
  merged.samples = add_saturating(earlier.samples, later.samples);
  merged.nonfinite_values = add_saturating(earlier.nonfinite_values, later.nonfinite_values);
  merged.tokens += earlier.tokens;
  merged.flops += earlier.flops;
  merged.memory_peak_bytes = std::max(earlier.memory_peak_bytes, later.memory_peak_bytes);
  if (urgency(later.fragment.kind) < urgency(earlier.fragment.kind))
    merged.fragment = earlier.fragment;
  merged.checksum = 0;
  return merged;
}

Result<BlockProfile> read_block_profile(const Fragment& fragment) {
  auto profile = content_of<BlockProfile>(fragment, "a block profile");
  if (!profile.ok()) return profile;
  if (profile->blocks > kMaxBlocks || profile->block.value() >= profile->blocks) {
    return data_loss("fragment: expected a block below ", profile->blocks, " of ", kMaxBlocks,
                     " at most, found ", profile->block);
  }
  for (const float value : {profile->forward_seconds, profile->backward_seconds,
                            profile->boundary_kib, profile->flops}) {
    if (!std::isfinite(value) || value < 0) {
      return data_loss("fragment: expected times and sizes of block ", profile->block,
                       " that are finite and not negative, found ", value);
    }
  }
  return profile;
}

Result<BlockFailure> read_block_failure(const Fragment& fragment) {
  auto failure = content_of<BlockFailure>(fragment, "a failure of a block");
  if (!failure.ok()) return failure;
  const auto action = static_cast<unsigned>(failure->action);
  if (failure->blocks > kMaxBlocks || failure->block.value() >= failure->blocks || action == 0 ||
      failure->action > kLastAction) {
    return data_loss("fragment: expected an action from 1 to ", static_cast<unsigned>(kLastAction),
                     " of a block below ", failure->blocks, ", found action ", action, " of block ",
                     failure->block);
  }
  failure->what.back() = '\0';
  return failure;
}

Result<PrecisionRequest> read_precision_request(const Fragment& fragment) {
  auto request = content_of<PrecisionRequest>(fragment, "a precision request");
  if (!request.ok()) return request;
  const bool knows_block =
      request->block < kMaxBlocks || request->block == PrecisionRequest::kEveryBlock;
  if (!knows_block || static_cast<unsigned>(request->what) > 2 ||
      static_cast<unsigned>(request->format) >= kPrecisions) {
    return data_loss("fragment: a precision request names an unknown block, request or format");
  }
  return request;
}

std::string_view host_name(const HostEvidence& evidence) {
  const auto end = std::ranges::find(evidence.host, '\0');
  return {evidence.host.data(), static_cast<std::size_t>(end - evidence.host.begin())};
}

Result<HostEvidence> read_host_evidence(const Fragment& fragment) {
  auto evidence = content_of<HostEvidence>(fragment, "evidence of a host");
  if (!evidence.ok()) return evidence;
  for (const float value :
       {evidence->steal_ratio, evidence->load_per_core, evidence->clock_ratio,
        evidence->throttled_ratio, evidence->cpu_pressure, evidence->memory_pressure,
        evidence->io_pressure, evidence->clock_error_seconds}) {
    if (value == HostEvidence::kNotKnown || (std::isfinite(value) && value >= 0)) continue;
    return data_loss(
        "fragment: expected figures of a host that are finite and not negative, found ", value);
  }
  evidence->host.back() = '\0';
  return evidence;
}

bool differs_noticeably(const AllocatorEvidence& a, const AllocatorEvidence& b) {
  const auto distance = [](std::uint64_t x, std::uint64_t y) { return x < y ? y - x : x - y; };
  const std::uint64_t moved = std::max(distance(a.active_bytes, b.active_bytes),
                                       distance(a.inactive_split_bytes, b.inactive_split_bytes));
  return a.reserved_bytes != b.reserved_bytes || moved > b.reserved_bytes / 16;
}

Result<AllocatorEvidence> read_allocator_evidence(const Fragment& fragment) {
  auto evidence = content_of<AllocatorEvidence>(fragment, "evidence of an allocator");
  if (!evidence.ok()) return evidence;
  const std::uint64_t reserved = evidence->reserved_bytes;
  const std::uint64_t active = evidence->active_bytes;
  if (reserved == 0 || active > reserved || evidence->inactive_split_bytes > reserved - active) {
    return data_loss("fragment: expected ", active, " active bytes and ",
                     evidence->inactive_split_bytes,
                     " in unused pieces within what is held, found ", reserved, " held");
  }
  return evidence;
}

}  // namespace cox
