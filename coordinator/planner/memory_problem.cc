#include "coordinator/planner/memory_problem.h"

#include <algorithm>
#include <string>

#include "coordinator/core/text.h"

namespace cox::planner {
namespace {

struct Offload {
  std::int64_t out_end = 0;
  std::int64_t in_end = 0;
};

class Clockwork {
 public:
  Clockwork(const MemoryProblem& problem, std::span<const MemoryAction> actions)
      : problem_(problem), actions_(actions), copies_(actions.size()) {}

  ScheduledStep run() {
    for (std::size_t i = 0; i < actions_.size(); ++i) forward(i);
    for (std::size_t i = actions_.size(); i-- > 0;) backward(i);
    result_.total_us = now_;
    for (const Stage& s : problem_.stages) result_.added_us -= s.forward_us + s.backward_us;
    result_.added_us += now_;
    return result_;
  }

  // REQUIRES: run() was called.
  PeakParts parts() {
    PeakParts parts{problem_.base_bytes, std::vector<std::int64_t>(actions_.size()), peak_.stage,
                    peak_.is_backward};
    const StageOption& at_work = option(peak_.stage);
    parts.stage_bytes[peak_.stage] =
        peak_.is_backward ? at_work.backward_high_bytes : at_work.forward_high_bytes;
    now_ = peak_.now;
    for (std::size_t j = 0; j < peak_.stage; ++j) {
      parts.stage_bytes[j] = option(j).kept_bytes;
      if (is_resident(j, peak_.stage, peak_.is_backward))
        parts.stage_bytes[j] += option(j).copied_bytes;
    }
    return parts;
  }

 private:
  struct Moment {
    std::size_t stage = 0;
    std::int64_t now = 0;
    bool is_backward = false;
  };

  const StageOption& option(std::size_t i) const { return problem_.stages[i].option(actions_[i]); }
  bool is_offloaded(std::size_t i) const { return option(i).is_copied(); }
  void reach(std::int64_t bytes, const Moment& moment) {
    if (bytes <= result_.peak_bytes) return;
    result_.peak_bytes = bytes;
    peak_ = moment;
  }

  // Returns whether the offloaded bytes of stage `j` are on the device while stage `i` runs.
  bool is_resident(std::size_t j, std::size_t i, bool is_backward) const {
    const bool is_fetched = is_backward && j + 1 == i;
    return is_offloaded(j) && (copies_[j].out_end > now_ || is_fetched);
  }

  // Returns the offloaded bytes of stages before `i` that are still, or again, on the device.
  std::int64_t transient_before(std::size_t i, bool is_backward) const {
    std::int64_t bytes = 0;
    if (result_.copied_bytes == 0) return bytes;
    for (std::size_t j = 0; j < i; ++j) {
      if (is_resident(j, i, is_backward)) bytes += option(j).copied_bytes;
    }
    return bytes;
  }

  void forward(std::size_t i) {
    reach(problem_.base_bytes + kept_ + transient_before(i, false) + option(i).forward_high_bytes,
          {i, now_, false});
    now_ += problem_.stages[i].forward_us;
    kept_ += option(i).kept_bytes;
    result_.recomputed += is_recompute(actions_[i]);
    result_.copied_bytes += option(i).copied_bytes + option(i).stored_bytes;
    if (!is_offloaded(i)) return;
    copies_[i].out_end = std::max(now_, out_free_) + duration(i);
    out_free_ = copies_[i].out_end;
    if (i + 1 == actions_.size()) fetch(i);
  }

  void backward(std::size_t i) {
    kept_ -= option(i).kept_bytes;
    if (i > 0 && is_offloaded(i - 1)) fetch(i - 1);
    reach(problem_.base_bytes + kept_ + transient_before(i, true) + option(i).backward_high_bytes,
          {i, now_, true});
    if (is_offloaded(i)) now_ = std::max(now_, copies_[i].in_end);
    now_ += option(i).added_us + problem_.stages[i].backward_us;
  }

  void fetch(std::size_t i) {
    in_free_ = std::max({now_, copies_[i].out_end, in_free_}) + duration(i);
    copies_[i].in_end = in_free_;
  }

  std::int64_t duration(std::size_t i) const {
    return copy_us(option(i).copied_bytes, problem_.copy_bytes_per_ms);
  }

  const MemoryProblem& problem_;
  std::span<const MemoryAction> actions_;
  std::vector<Offload> copies_;
  ScheduledStep result_;
  Moment peak_;
  std::int64_t now_ = 0;
  std::int64_t kept_ = 0;  // by the stages before the running one
  std::int64_t out_free_ = 0;
  std::int64_t in_free_ = 0;
};

Status out_of_range(const std::string& what, std::int64_t value) {
  return invalid_argument("memory problem: ", what, ": expected 0 .. ", kMaxStageValue, ", found ",
                          value);
}

Status check_stage(const Stage& stage, const std::string& name, std::int64_t copy_bytes_per_ms) {
  const auto bad = [](std::int64_t v) { return v < 0 || v > kMaxStageValue; };
  if (bad(stage.forward_us)) return out_of_range(concat(name, ": forward_us"), stage.forward_us);
  if (bad(stage.backward_us)) return out_of_range(concat(name, ": backward_us"), stage.backward_us);
  bool is_any_allowed = false;
  for (std::size_t a = 0; a < stage.options.size(); ++a) {
    const StageOption& o = stage.options[a];
    if (!o.allowed) continue;
    is_any_allowed = true;
    const std::string where = concat(name, ": ", kMemoryActionNames[a]);
    for (const std::int64_t v : {o.kept_bytes, o.forward_high_bytes, o.backward_high_bytes,
                                 o.added_us, o.copied_bytes, o.stored_bytes}) {
      if (bad(v)) return out_of_range(where, v);
    }
    const bool is_offload = a == static_cast<std::size_t>(MemoryAction::offload);
    if (is_offload && o.is_copied() && copy_bytes_per_ms == 0)
      return invalid_argument("memory problem: ", where,
                              " is allowed, but copy_bytes_per_ms is 0: expected a tier");
    if (!is_offload && (o.copied_bytes != 0 || o.stored_bytes != 0))
      return invalid_argument("memory problem: ", where,
                              ": expected copied_bytes and stored_bytes 0, found ",
                              o.copied_bytes + o.stored_bytes);
    if (o.is_copied() && bad(copy_us(o.copied_bytes, copy_bytes_per_ms)))
      return out_of_range(concat(where, ": microseconds of its copy"),
                          copy_us(o.copied_bytes, copy_bytes_per_ms));
  }
  if (is_any_allowed) return ok_status();
  return invalid_argument("memory problem: ", name, ": expected an allowed action, found none");
}

}  // namespace

std::int64_t copy_us(std::int64_t bytes, std::int64_t bytes_per_ms) {
  // In two parts, because 1000 * bytes could overflow.
  const std::int64_t whole = bytes / bytes_per_ms;
  const std::int64_t rest = bytes % bytes_per_ms;
  return 1000 * whole + (1000 * rest + bytes_per_ms - 1) / bytes_per_ms;
}

ScheduledStep schedule(const MemoryProblem& problem, std::span<const MemoryAction> actions) {
  return Clockwork(problem, actions).run();
}

PeakParts parts_of_peak(const MemoryProblem& problem, std::span<const MemoryAction> actions) {
  Clockwork clockwork(problem, actions);
  static_cast<void>(clockwork.run());
  return clockwork.parts();
}

bool is_permitted(const MemoryProblem& problem, std::span<const MemoryAction> actions) {
  std::int64_t copied = 0;
  std::int32_t recomputed = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const StageOption& option = problem.stages[i].option(actions[i]);
    if (!option.allowed) return false;
    copied += option.copied_bytes + option.stored_bytes;
    recomputed += is_recompute(actions[i]);
  }
  return copied <= problem.tier_bytes.value_or(copied) &&
         recomputed <= problem.most_recomputed.value_or(recomputed);
}

Status validate(const MemoryProblem& problem) {
  if (problem.stages.empty() || problem.stages.size() > kMaxStages)
    return invalid_argument("memory problem: expected 1 .. ", kMaxStages, " stages, found ",
                            problem.stages.size());
  if (problem.base_bytes < 0 || problem.base_bytes > kMaxStageValue)
    return out_of_range("base_bytes", problem.base_bytes);
  if (problem.copy_bytes_per_ms < 0 || problem.copy_bytes_per_ms > kMaxStageValue)
    return out_of_range("copy_bytes_per_ms", problem.copy_bytes_per_ms);
  for (std::size_t i = 0; i < problem.stages.size(); ++i) {
    const Status status =
        check_stage(problem.stages[i], concat("stage ", i), problem.copy_bytes_per_ms);
    if (!status.ok()) return status;
  }
  return ok_status();
}

}  // namespace cox::planner
