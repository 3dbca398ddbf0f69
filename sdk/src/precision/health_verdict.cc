#include "sdk/src/precision/health_verdict.h"

#include <algorithm>
#include <tuple>

namespace cox::detail {
namespace {

using Where = HealthVerdict::Where;

std::int64_t bad_values(const BoundaryList& boundaries) {
  std::int64_t bad = 0;
  for (const Boundary* boundary : boundaries) bad += boundary->forward.scan.nonfinite;
  return bad;
}

std::int64_t bad_gradients(const BoundaryList& boundaries) {
  std::int64_t bad = 0;
  for (const Boundary* boundary : boundaries) bad += gradient_of(*boundary).nonfinite;
  return bad;
}

// When the backward pass of a call began: all its incoming gradients were there. 0: it never did.
Moment backward_at(const BlockCallRecord& call) {
  Moment last = 0;
  for (const Boundary* boundary : call.outputs) last = std::max(last, boundary->gradient_at);
  return last;
}

// When the first bad gradient left the call. 0: none did.
Moment went_bad_at(const BlockCallRecord& call) {
  Moment first = 0;
  for (const Boundary* boundary : call.inputs) {
    if (gradient_of(*boundary).nonfinite == 0) continue;
    if (first == 0 || boundary->gradient_at < first) first = boundary->gradient_at;
  }
  return first;
}

enum class Evidence { passed_on, own_parameters };  // the better one first

struct Candidate {
  std::size_t call = 0;
  Moment at = 0;
  std::int64_t values = 0;
  Evidence evidence = Evidence::passed_on;
  std::int64_t in_parameters = 0;
};

// Two calls that share an input share its gradient: the one whose parameters went bad as well.
bool is_before(const Candidate& a, const Candidate& b) {
  return std::tuple(a.evidence, a.at, a.in_parameters == 0) <
         std::tuple(b.evidence, b.at, b.in_parameters == 0);
}

// The earliest; of nested calls the innermost.
class Earliest {
 public:
  explicit Earliest(std::span<const BlockCallRecord> calls) : calls_(calls) {}

  void offer(const Candidate& candidate) {
    if (candidate.at == 0) return;
    all_.push_back(candidate);
  }

  std::optional<Candidate> innermost() const {
    const Candidate* best = earliest_inside(std::nullopt);
    while (best != nullptr) {
      const Candidate* inner = earliest_inside(best->call);
      if (inner == nullptr) return *best;
      best = inner;
    }
    return std::nullopt;
  }

 private:
  bool is_inside(std::size_t call, std::size_t of) const {
    for (auto outer = calls_[call].outer; outer; outer = calls_[*outer].outer) {
      if (*outer == of) return true;
    }
    return false;
  }

  const Candidate* earliest_inside(std::optional<std::size_t> of) const {
    const Candidate* best = nullptr;
    for (const Candidate& each : all_) {
      if (of && !is_inside(each.call, *of)) continue;
      if (best == nullptr || is_before(each, *best)) best = &each;
    }
    return best;
  }

  std::span<const BlockCallRecord> calls_;
  std::vector<Candidate> all_;
};

// Whether a gradient or the loss was not finite.
bool came_of_it(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  if (trouble.has_bad_loss || trouble.outside > 0) return true;
  if (std::any_of(trouble.in_parameters.begin(), trouble.in_parameters.end(),
                  [](std::int64_t bad) { return bad > 0; })) {
    return true;
  }
  return std::any_of(calls.begin(), calls.end(), [](const BlockCallRecord& call) {
    return bad_gradients(call.outputs) > 0 || bad_gradients(call.inputs) > 0;
  });
}

class Judge {
 public:
  Judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble)
      : calls_(calls),
        trouble_(trouble),
        has_clean_incoming_(trouble.in_parameters.size(), true),
        bad_inside_(calls.size()) {
    for (const BlockCallRecord& call : calls_) {
      const std::int64_t bad = bad_gradients(call.outputs);
      if (bad == 0) continue;
      has_clean_incoming_[call.block.value()] = false;
      for (auto outer = call.outer; outer; outer = calls_[*outer].outer) bad_inside_[*outer] += bad;
    }
  }

  HealthVerdict verdict() const {
    const auto forward = forward_fault();
    const auto backward = backward_fault();
    if (forward && (!backward || forward->at < backward->at)) return of(*forward, Where::forward);
    if (backward) return of(*backward, Where::backward);
    return {Where::outside, nearest(), 0};
  }

 private:
  HealthVerdict of(const Candidate& fault, Where where) const {
    return {where, calls_[fault.call].block, fault.values};
  }

  std::optional<Candidate> forward_fault() const {
    Earliest earliest(calls_);
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      if (bad_values(calls_[c].inputs) > 0) continue;
      const std::int64_t bad = bad_values(calls_[c].outputs);
      if (bad > 0) earliest.offer({c, calls_[c].end_at, bad});
    }
    return earliest.innermost();
  }

  std::optional<Candidate> backward_fault() const {
    Earliest earliest(calls_);
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      const std::size_t block = calls_[c].block.value();
      if (calls_[c].end_at == 0 || bad_gradients(calls_[c].outputs) > 0) continue;
      const std::int64_t own = has_clean_incoming_[block] ? trouble_.in_parameters[block] : 0;
      const Moment passed_on = went_bad_at(calls_[c]);
      if (passed_on != 0) {
        const std::int64_t bad = bad_gradients(calls_[c].inputs) + own;
        earliest.offer({c, passed_on, bad, Evidence::passed_on, own});
      } else if (own + bad_inside_[c] > 0) {
        const std::int64_t bad = own > 0 ? own : bad_inside_[c];
        earliest.offer({c, backward_at(calls_[c]), bad, Evidence::own_parameters, own});
      }
    }
    return earliest.innermost();
  }

  // Where trouble from elsewhere first met a block.
  std::optional<BlockId> nearest() const {
    const BlockCallRecord* met = nullptr;
    for (const BlockCallRecord& call : calls_) {
      if (met == nullptr && bad_values(call.inputs) > 0) met = &call;
    }
    if (met != nullptr) return met->block;
    for (const BlockCallRecord& call : calls_) {
      if (bad_gradients(call.outputs) == 0) continue;
      if (met == nullptr || backward_at(call) < backward_at(*met)) met = &call;
    }
    if (met == nullptr && trouble_.has_bad_loss && !calls_.empty()) met = &calls_.back();
    if (met == nullptr) return std::nullopt;
    return met->block;
  }

  std::span<const BlockCallRecord> calls_;
  const StepTrouble& trouble_;
  std::vector<bool> has_clean_incoming_;  // of a block, in all its calls
  std::vector<std::int64_t> bad_inside_;  // gradients that come to calls inside of a call
};

}  // namespace

TensorScan gradient_of(const Boundary& boundary) {
  TensorScan all;
  for (const PendingScan& each : boundary.gradients) all += each.scan;
  return all;
}

HealthVerdict judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  // Without it there is nothing to look for: the ordinary step.
  if (!came_of_it(calls, trouble)) return {};
  return Judge(calls, trouble).verdict();
}

}  // namespace cox::detail
