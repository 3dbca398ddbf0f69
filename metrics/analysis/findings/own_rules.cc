#include "metrics/analysis/findings/own_rules.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "metrics/analysis/findings/rule_input.h"

namespace cox::diagnosis {
namespace {

constexpr std::array<std::string_view, 28> kCodes = {"DIST.STRAGGLER",
                                                     "DIST.LOAD_IMBALANCE",
                                                     "DIST.COMM_BOUND",
                                                     "DIST.EXPOSED_COMM",
                                                     "DIST.PIPELINE_BUBBLE",
                                                     "TIMING.DATALOADER_BOUND",
                                                     "TIMING.BACKWARD_HEAVY",
                                                     "TIMING.OPTIMIZER_HEAVY",
                                                     "TIMING.JITTER",
                                                     "EFFICIENCY.LOW_MFU",
                                                     "CONVERGENCE.DIVERGED",
                                                     "CONVERGENCE.NO_PROGRESS",
                                                     "CROSS.CORRELATED_INSTABILITY",
                                                     "MEMORY.GROWTH",
                                                     "MEMORY.FRAGMENTATION",
                                                     "BUDGET.TOO_TIGHT",
                                                     "BUDGET.TOO_LOOSE",
                                                     "OFFLOAD.TIER_SLOW",
                                                     "SHARES.PINNED",
                                                     "SAVE.STALLS",
                                                     "PLAN.FLAPPING",
                                                     "PRECISION.WITHHELD",
                                                     "PRECISION.SKIPPED_STEPS",
                                                     "PRECISION.SCALE_AT_FLOOR",
                                                     "PRECISION.SCALE_LOW",
                                                     "RECORD.DROPPED",
                                                     "RECORD.IMPOSSIBLE",
                                                     "RULE.FAILED"};

}  // namespace

std::span<const std::string_view> own_codes() {
  return kCodes;
}

Findings findings_of(const RuleInput& input) {
  Findings out;
  if (input.view.size() < kLeastSteps) {
    // A record without steps may still have a trace or a schedule beside it.
    if (input.view.run->lowest().size() == 0) {
      for (const NamedRule& rule : file_rules()) apply(rule, input, out);
    }
    apply(resource_rules().back(), input, out);  // faults of the record
    return out;
  }
  Findings of_memory;  // first, because no other rule may count their time
  for (const NamedRule& rule : memory_rules()) apply(rule, input, of_memory);
  for (const auto rules : {time_rules(), learning_rules()}) {
    for (const NamedRule& rule : rules) apply(rule, input, out);
  }
  std::ranges::move(of_memory, std::back_inserter(out));
  for (const auto rules : {resource_rules(), rest_rules()}) {
    for (const NamedRule& rule : rules) apply(rule, input, out);
  }
  return out;
}

std::vector<Finding> own_findings(const OwnInput& input) {
  Findings out = findings_of({*input.view, *input.budget, input.trace, input.pipeline});
  const auto rank_of = [](const Finding& f) { return f.ends_run ? 2.0 : weight_of(f); };
  std::ranges::stable_sort(out, [&rank_of](const Finding& a, const Finding& b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) > rank_of(b) : a.severity < b.severity;
  });
  return out;
}

}  // namespace cox::diagnosis
