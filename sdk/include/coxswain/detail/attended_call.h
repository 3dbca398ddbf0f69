// AttendedCall is one call of a block that is measured, steered or watched. cox::run and wrapped
// elements make one per call and call its methods in this order: input() for each input, begin(),
// the block's function, end(), output() for each result, finish(). Its four parts, declared here
// and implemented in the folders that they belong to, go through the same steps: MemoryCall,
// Observation, PrecisionCall and HealthCall. AttendedCall alone knows their order. A call that is
// destroyed before finish(), because the function threw, leaves no trace. Used by the thread that
// trains; nothing here communicates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "coxswain/block.h"
#include "coxswain/detail/rerun.h"
#include "coxswain/detail/run_context.h"
#include "coxswain/precision.h"

namespace cox::detail {

class BlockCall;
class BlockState;
class Fp8Scope;
class HealthLedger;

// MemoryCall carries out the memory action of one call: it keeps, offloads or recomputes what
// autograd saves between begin() and end(). It also is the scope in which the block counts as the
// running one of this thread, and in which autocast caches no casts.
class MemoryCall {
 public:
  explicit MemoryCall(const std::shared_ptr<BlockGate>& gate);
  ~MemoryCall();
  MemoryCall(const MemoryCall&) = delete;
  MemoryCall& operator=(const MemoryCall&) = delete;

  // Returns whether begin() wants the means to run the function again.
  bool runs_again() const { return runs_again_; }
  void input(const at::Tensor& tensor);
  // REQUIRES: `again` is null exactly if runs_again() is false.
  void begin(std::unique_ptr<Rerun> again);
  void end();

 private:
  class Work;

  BlockState& state_;
  std::unique_ptr<Work> work_;  // null for a call whose saved tensors are simply kept
  bool runs_again_ = false;
  RunContext context_;
  std::optional<ContextScope> scope_;
  NoCastCache no_cast_cache_;
};

// Observation measures one call. It changes no tensor's value and never throws: an error of its own
// costs the measurement, never the call.
class Observation {
 public:
  explicit Observation(const std::shared_ptr<BlockGate>& gate) noexcept;
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  void input(const at::Tensor& tensor) noexcept;
  void arrive() noexcept;  // before the memory action takes copies for the block
  void begin() noexcept;
  void end() noexcept;
  void output(const at::Tensor& tensor) noexcept;
  void finish() noexcept;

 private:
  std::shared_ptr<BlockCall> call_;  // null once something went wrong
};

// PrecisionCall puts the block's number format in force from begin() to end(); ExecutionState puts
// it in force again whenever the function runs again. A block whose format is steered returns
// results as wide as its inputs (as its parameters, where no input is a floating tensor), whatever
// it computed in, so that code behind it sees the types of an fp32 run.
class PrecisionCall {
 public:
  explicit PrecisionCall(const std::shared_ptr<BlockGate>& gate);
  ~PrecisionCall();
  PrecisionCall(const PrecisionCall&) = delete;
  PrecisionCall& operator=(const PrecisionCall&) = delete;

  void input(const at::Tensor& tensor);
  void begin();
  void end();
  // Returns the tensor that the caller gets in place of `tensor`.
  at::Tensor output(const at::Tensor& tensor) const;

 private:
  void take_from_parameters();

  BlockState& state_;
  std::optional<Precision> format_;
  at::DeviceType device_ = at::kCPU;
  std::optional<at::ScalarType> width_;  // the widest floating type of the inputs
  std::optional<PrecisionScope> scope_;
  std::unique_ptr<Fp8Scope> fp8_;
};

// HealthCall lets the session's HealthLedger see the tensors at the block's boundaries: forward
// values at once, gradients when they come, through hooks that hold figures only. It changes no bit
// and keeps no tensor. It does nothing while the ledger is closed, without gradients, and in a
// second run. It never throws: an error costs the look, not the call.
class HealthCall {
 public:
  explicit HealthCall(const std::shared_ptr<BlockGate>& gate) noexcept;
  ~HealthCall();
  HealthCall(const HealthCall&) = delete;
  HealthCall& operator=(const HealthCall&) = delete;

  void input(const at::Tensor& tensor) noexcept;
  void begin() noexcept;  // REQUIRES: the function's number format is in force
  void output(const at::Tensor& tensor) noexcept;
  void finish() noexcept;

 private:
  void drop() noexcept;

  std::shared_ptr<HealthLedger> ledger_;  // null: does nothing
  std::size_t call_ = 0;
  bool is_on_cpu_ = true;
  HealthCall* outer_ = nullptr;
  bool is_innermost_ = false;
};

// Throws cox::Error with failed_precondition.
[[noreturn]] void throw_empty_block();

// Returns whether the block computes in fp32 and `tensor` is narrower than its parameters. Its
// operations would refuse such a tensor, which code under autocast makes.
bool is_too_narrow(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor);

// Returns `tensor` in the type of the parameters where it is too narrow, else as it is.
at::Tensor widened_for(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor);

class AttendedCall {
 public:
  explicit AttendedCall(const std::shared_ptr<BlockGate>& gate)
      : memory_(gate), observation_(gate), precision_(gate), health_(gate) {}

  void input(const at::Tensor& tensor) {
    observation_.input(tensor);
    memory_.input(tensor);
    precision_.input(tensor);
    health_.input(tensor);
  }

  // Returns whether begin() wants the means to run the function again.
  bool runs_again() const { return memory_.runs_again(); }

  // REQUIRES: `again` is null exactly if runs_again() is false.
  void begin(std::unique_ptr<Rerun> again) {
    observation_.arrive();
    precision_.begin();
    memory_.begin(std::move(again));
    health_.begin();
    observation_.begin();
  }

  void end() {
    observation_.end();
    precision_.end();
  }

  // Returns the tensor that the caller gets in place of `tensor`.
  at::Tensor output(const at::Tensor& tensor) {
    at::Tensor result = precision_.output(tensor);
    observation_.output(result);
    health_.output(result);
    return result;
  }

  void finish() {
    memory_.end();
    observation_.finish();
    health_.finish();
  }
  // Ends a call whose results are no tensors, instead of finish(): it is carried out and not
  // reported.
  void finish_unseen() { memory_.end(); }

 private:
  MemoryCall memory_;
  Observation observation_;
  PrecisionCall precision_;
  HealthCall health_;
};

}  // namespace cox::detail
