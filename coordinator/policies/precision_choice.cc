#include "coordinator/policies/precision_choice.h"

namespace cox {
namespace {

constexpr PrecisionSet kEveryFormat = (1u << kPrecisions) - 1;

bool concerns(const StandingRequest& request, std::size_t block) {
  return request.what.block == PrecisionRequest::kEveryBlock || request.what.block == block;
}

Leeway held(Leeway leeway, Held by, Precision wanted) {
  leeway.held = by;
  leeway.wanted = wanted;
  leeway.allowed = only(nearest_safe(wanted, leeway.allowed));
  return leeway;
}

}  // namespace

Leeway leeway_of(const JobFacts& job, const PrecisionConfig& config,
                 std::span<const StandingRequest> requests, std::size_t block) {
  PrecisionConfig unforced;
  unforced.forbid = config.forbid;
  Leeway leeway;
  leeway.allowed = static_cast<PrecisionSet>(
      (allowed_formats(unforced, job.blocks[block]) & job.capabilities.precisions) |
      only(Precision::fp32));
  std::optional<std::size_t> forcing;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!concerns(requests[i], block)) continue;
    if (requests[i].what.what == PrecisionRequest::What::force) {
      forcing = i;
    } else if (requests[i].what.format != Precision::fp32) {
      leeway.allowed &= static_cast<PrecisionSet>(~only(requests[i].what.format));
    }
  }
  leeway.allowed &= kEveryFormat;
  if (forcing) {
    leeway.request = *forcing;
    return held(leeway, Held::by_request, requests[*forcing].what.format);
  }
  if (const PrecisionRule* rule = forcing_rule(config, job.blocks[block])) {
    return held(leeway, Held::by_rule, rule->format);
  }
  if (config.format) return held(leeway, Held::by_format, *config.format);
  return leeway;
}

Precision nearest_safe(Precision wanted, PrecisionSet allowed) {
  if (contains(allowed, wanted)) return wanted;
  return safer_than(wanted, allowed);
}

Precision safer_than(Precision now, PrecisionSet allowed) {
  if (now == Precision::fp32) return now;
  if (now != Precision::bf16 && contains(allowed, Precision::bf16)) return Precision::bf16;
  return Precision::fp32;
}

std::int64_t step_us(const JobFacts& job, std::size_t block, Precision format) {
  if (block >= job.precision.blocks.size()) return 0;
  return job.precision.blocks[block].step_us[static_cast<std::size_t>(format)];
}

FormatVeto veto_of(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                   std::size_t block, Precision format, Precision other) {
  if (!job.capabilities.can(format)) return FormatVeto::not_capable;
  if (!contains(allowed, format)) return FormatVeto::not_allowed;
  if (config.emulate) return FormatVeto::none;
  if (contains(job.precision.emulated, format)) return FormatVeto::imitated;
  const std::int64_t now = step_us(job, block, other);
  const std::int64_t then = step_us(job, block, format);
  if (now <= 0 || then <= 0) return FormatVeto::not_measured;
  const double most = static_cast<double>(now) * (1 - config.smallest_gain_ratio);
  return static_cast<double>(then) <= most && then < now ? FormatVeto::none
                                                         : FormatVeto::not_faster;
}

BaseFormat base_format(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                       std::size_t block) {
  BaseFormat base;
  base.bf16 = veto_of(job, config, allowed, block, Precision::bf16, Precision::fp32);
  base.fp16 = veto_of(job, config, allowed, block, Precision::fp16, Precision::fp32);
  if (base.bf16 == FormatVeto::none) {
    base.format = Precision::bf16;
  } else if (base.fp16 == FormatVeto::none) {
    base.format = Precision::fp16;
  }
  return base;
}

FormatVeto fp8_veto(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                    std::size_t block, Precision base) {
  if (!job.capabilities.can(Precision::fp8) || !job.capabilities.can(Precision::bf16)) {
    return FormatVeto::not_capable;
  }
  if (!contains(allowed, Precision::bf16)) return FormatVeto::not_allowed;
  return veto_of(job, config, allowed, block, Precision::fp8, base);
}

}  // namespace cox
