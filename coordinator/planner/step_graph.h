// StepGraph: all operators of one training step, forward and backward, and the tensors between
// them; and plans that keep its memory within a budget by running operators again.
//
//   file (io/operator_files.h) -> StepGraph -> plan_step() -> a plan for each budget
//
// Operators are pure: an operator that writes in place is one that makes a new tensor, and a view
// is its base. A plan is a schedule: which operator runs when, and which tensor is freed when. Its
// time is the sum of its runs; its memory is that of the tensors that are there, where an operator
// that runs needs room for all that it makes beside all that is there before. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::planner {

struct StepTensor {
  std::int64_t bytes = 0;
  bool is_result = false;  // must be there when the step ends: gradients of parameters, the loss
  friend bool operator==(const StepTensor&, const StepTensor&) = default;
};

struct StepOperator {
  std::string name;
  std::int64_t ns = 0;
  std::vector<std::int32_t> reads;  // tensors that other operators make
  std::vector<std::int32_t> makes;
  friend bool operator==(const StepOperator&, const StepOperator&) = default;
};

struct StepGraph {
  std::string name;
  std::int64_t base_bytes = 0;  // resident all through the step: parameters, the batch
  std::vector<StepTensor> tensors;
  std::vector<StepOperator> operators;  // in the order of the step
  friend bool operator==(const StepGraph&, const StepGraph&) = default;
};

inline constexpr std::size_t kMaxStepOperators = 1 << 16;
inline constexpr std::size_t kMaxStepTensors = 1 << 17;
inline constexpr std::int64_t kMaxStepNumber = std::int64_t{1} << 46;  // of bytes and nanoseconds

// Returns invalid_argument that names the operator or tensor that is out of range, is made twice or
// never, or is read before it is made.
Status validate(const StepGraph& graph);

// Returns the time of a step in which nothing runs twice.
std::int64_t step_ns(const StepGraph& graph);

struct StepAction {
  enum class Kind : std::uint8_t { run, free };
  Kind kind = Kind::run;
  std::int32_t index = 0;  // of the operator or tensor
  friend bool operator==(const StepAction&, const StepAction&) = default;
};

struct StepPlan {
  std::int64_t peak_bytes = 0;  // with base_bytes
  std::int64_t added_ns = 0;    // beyond step_ns()
  std::vector<StepAction> schedule;
};

// Limits count work, not seconds: the same graph gives the same plans everywhere.
struct StepLimits {
  std::size_t most_work = 10'000'000;  // operators looked at, for each budget
};

// Returns the plan that keeps every tensor until its last use: the fastest one.
StepPlan keep_all(const StepGraph& graph);

// Returns a plan for each budget in turn, the fastest that was found; one whose peak is above its
// budget is the one of least peak that was found. A larger budget never gets a slower plan.
// REQUIRES: a valid graph.
std::vector<StepPlan> plan_step(const StepGraph& graph, const std::vector<std::int64_t>& budgets,
                                const StepLimits& limits = {});

}  // namespace cox::planner
