#include "coordinator/policies/accumulation_words.h"

#include <cmath>

#include "coordinator/core/text.h"
#include "coordinator/policies/accumulation_batch.h"

namespace cox {

std::string why_unable(const JobFacts& job) {
  if (job.micro_batch == 0) {
    return "accumulation needs steps of whole micro-batches, and this job gives no size of them; "
           "the batch stays as it is";
  }
  if (!job.capabilities.accumulation) {
    return "accumulation needs a loop that takes the samples of a step from the plan, as "
           "step.accumulate() of the Trainer does; the batch stays as it is";
  }
  return {};
}

std::string overhead_words(const SyncCost& cost) {
  const double step = cost.sync_seconds + cost.work_seconds;
  return sentence("synchronising takes %.1f %% of a step (%.3g of %.3g ms)",
                  step > 0 ? 100 * cost.sync_seconds / step : 0, 1e3 * cost.sync_seconds,
                  1e3 * step);
}

std::string batch_words(std::uint64_t micro_batches, const JobFacts& job) {
  const auto samples = static_cast<double>(micro_batches * job.micro_batch);
  if (job.global_batch == 0) return sentence("a step has %.0f samples", samples);
  if (micro_batches == job_micro_batches(job)) {
    return sentence("a step has the job's own batch of %.0f samples",
                    static_cast<double>(job.global_batch));
  }
  const double factor = samples / static_cast<double>(job.global_batch);
  return sentence(
      "a step has %.0f samples, %.4g times the job's batch; for its learning rate the linear rule "
      "gives x%.4g, the square root rule x%.4g",
      samples, factor, factor, std::sqrt(factor));
}

}  // namespace cox
