#include <cmath>
#include <cstdint>
#include <string>

#include "coordinator/core/plan.h"

namespace cox {
namespace {

constexpr std::size_t kMaxClasses = 1024;  // what boards have room for (runtime/board_setup.cc)
constexpr std::uint32_t kMaxShare = 1 << 20;
constexpr std::uint64_t kMaxStepSamples = 1ull << 31;
constexpr std::uint32_t kMaxCadence = 1 << 20;

Status wrong_size(const std::string& what, std::size_t expected, std::size_t found) {
  return invalid_argument("plan: expected " + std::to_string(expected) + " entries in " + what +
                          ", found " + std::to_string(found));
}

template <class Knob>
Status check_blocks(const std::vector<Knob>& knobs, std::uint8_t capable, const JobFacts& job,
                    const std::string& what) {
  if (knobs.size() != job.blocks.size()) return wrong_size(what, job.blocks.size(), knobs.size());
  for (std::size_t b = 0; b < knobs.size(); ++b) {
    const auto value = static_cast<unsigned>(knobs[b]);
    if (value > 3) {
      return invalid_argument("plan: " + what + " of block " + std::to_string(b) +
                              ": expected 0 to 3, found " + std::to_string(value));
    }
    if (((capable >> value) & 1u) == 0) {
      return invalid_argument("plan: " + what + " of block " + std::to_string(b) + ": " +
                              std::string(to_string(knobs[b])) + " cannot be applied by this job");
    }
  }
  return ok_status();
}

Status check_classes(const Plan& plan, const JobFacts& job) {
  if (plan.classes.empty() || plan.classes.size() > kMaxClasses) {
    return invalid_argument("plan: expected 1 to " + std::to_string(kMaxClasses) +
                            " classes, found " + std::to_string(plan.classes.size()));
  }
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    const Status status = check_blocks(plan.classes[c], job.capabilities.actions, job,
                                       "actions of class " + std::to_string(c));
    if (!status.ok()) return status;
  }
  const auto world = static_cast<std::size_t>(job.world_size);
  if (plan.rank_class.empty()) return ok_status();
  if (plan.rank_class.size() != world) {
    return wrong_size("rank_class", world, plan.rank_class.size());
  }
  for (std::size_t r = 0; r < world; ++r) {
    if (plan.rank_class[r].value() >= plan.classes.size()) {
      return invalid_argument("plan: rank " + std::to_string(r) + " is in class " +
                              std::to_string(plan.rank_class[r].value()) + " of " +
                              std::to_string(plan.classes.size()));
    }
  }
  return ok_status();
}

Status check_shares(const Plan& plan, const JobFacts& job) {
  if (plan.shares.empty()) return ok_status();
  if (!job.capabilities.shares) {
    return invalid_argument("plan: shares cannot be applied by this job");
  }
  const auto world = static_cast<std::size_t>(job.world_size);
  if (plan.shares.size() != world) return wrong_size("shares", world, plan.shares.size());
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < world; ++r) {
    if (plan.shares[r] > kMaxShare) {
      return invalid_argument("plan: share of rank " + std::to_string(r) + ": expected at most " +
                              std::to_string(kMaxShare) + ", found " +
                              std::to_string(plan.shares[r]));
    }
    sum += plan.shares[r];
  }
  if (sum == 0) return invalid_argument("plan: shares: expected a rank with work, found none");
  return ok_status();
}

Status check_batch(const Plan& plan, const JobFacts& job) {
  if (plan.step_samples > kMaxStepSamples) {
    return invalid_argument("plan: step_samples: expected at most " +
                            std::to_string(kMaxStepSamples) + ", found " +
                            std::to_string(plan.step_samples));
  }
  if (plan.step_samples != 0 && !job.capabilities.accumulation) {
    return invalid_argument("plan: another number of samples a step cannot be applied by this job");
  }
  return ok_status();
}

Status check_cadence(const Plan& plan, const JobFacts& job) {
  if (plan.cadence_steps < 1 || plan.cadence_steps > kMaxCadence) {
    return invalid_argument("plan: cadence_steps: expected 1 to " + std::to_string(kMaxCadence) +
                            ", found " + std::to_string(plan.cadence_steps));
  }
  if (plan.cadence_steps != 1 && !job.capabilities.cadence) {
    return invalid_argument("plan: a cadence cannot be applied by this job");
  }
  return ok_status();
}

}  // namespace

Status validate(const Plan& plan, const JobFacts& job) {
  if (plan.id.incarnation != job.incarnation) {
    return invalid_argument("plan: expected incarnation " + std::to_string(job.incarnation) +
                            ", found " + std::to_string(plan.id.incarnation));
  }
  Status status = check_blocks(plan.precision, job.capabilities.precisions, job, "precision");
  if (status.ok()) status = check_classes(plan, job);
  if (status.ok()) status = check_shares(plan, job);
  if (status.ok()) status = check_batch(plan, job);
  if (status.ok()) status = check_cadence(plan, job);
  if (!status.ok()) return status;
  status = validate(plan.scaler);
  return status.ok() ? status : status.with_context("plan");
}

}  // namespace cox
