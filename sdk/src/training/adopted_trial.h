// AdoptedTrial makes the first steps of an adopted loop, and those after a change of its models,
// ones that can be tried: it records the forward pass, checks in that step that running it again
// gives the program's own gradients, bit for bit, with blocks kept and with blocks recomputed, and
// then is the sample of a calibration.
//
//   forward pass of a first step -> record | backward() ends -> check() | a later step begins,
//   is_complete() -> sample(): the calibration runs it under each action
//
// With one model the first step is all. Models that take steps in turn (the players of a GAN) have
// steps of several kinds, told apart by which models got gradients: one of each kind is recorded.
//
// A block whose recomputed gradients differ is pinned to keep, with the reason. Where the step
// cannot be run again at all, status() says why, and there is no sample. Owned by Adoption;
// training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/precision/trial_pass.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/recorded_pass.h"
#include "sdk/src/training/adopted_models.h"
#include "sdk/src/training/loop_stages.h"

namespace cox::detail {

// Takes the gradients and the hooks of leaves away while it exists, so that runs of a trial leave
// no trace in the first and call none of the second.
class LeavesAside {
 public:
  // `others`: leaves outside of the model that a run reads. Leaves may be named more than once.
  explicit LeavesAside(const std::vector<at::Tensor>& parameters,
                       const std::vector<at::Tensor>& others = {});
  ~LeavesAside();
  LeavesAside(const LeavesAside&) = delete;
  LeavesAside& operator=(const LeavesAside&) = delete;

  // Prints of the parameters' gradients.
  GradientPrints prints() const;
  bool has_hooks() const;

 private:
  struct Taken {
    at::Tensor leaf;
    at::Tensor gradient;
    std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> hooks = {};
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> hook_behind = {};
  };
  void take(const at::Tensor& leaf);

  std::vector<Taken> taken_;  // parameters first
  std::size_t parameters_;
};

// BatchGrowth compares what blocks read with what they read while their memory was measured:
// elements of the tensors, parameters aside, that the first operator of each visit reads. What a
// block saves grows with them, so a visit that begins with more gets room before it saves anything.
//
// A forward pass that the program lets go of (an evaluation with gradients on) frees what its
// blocks held; the pass after it then counts alone.
class BatchGrowth {
 public:
  // `probe` must outlive this.
  explicit BatchGrowth(MemoryProbe& probe) : probe_(probe) {}

  // Memory is measured with the batches that enter from here on.
  void begin_measuring(std::size_t blocks) { measured_.resize(blocks); }
  void forget_measured() { measured_.clear(); }
  // A forward pass or a step begins.
  void begin_forward() {
    entered_.assign(measured_.size(), 0);
    first_.reset();
  }
  void begin_step() { growth_ = 1; }
  // A visit of a block begins with the operator that runs.
  void enter_block() { enters_block_ = !measured_.empty(); }
  bool wants_calls() const { return enters_block_; }
  // Returns whether another pass begins with the visit of `block`, and the program has let go of
  // the one before it. REQUIRES: wants_calls().
  bool begins_anew(BlockId block);
  // Reads that operator; one on parameters alone, a cast say, tells nothing. Returns how many times
  // the measured size the block is entered with, where that is more than make_room() was told.
  std::optional<double> look(const OperatorCall& call, BlockId block, const AdoptedModels& models);
  // Makes room for that many times the measured size in the rest of the step.
  void make_room(Session& session, double growth);
  // Memory was measured with what entered in this pass; of several such passes the largest counts.
  void note_measured();

 private:
  MemoryProbe& probe_;
  std::vector<std::int64_t> measured_;  // by block; none where memory is not measured
  std::vector<std::int64_t> entered_;   // in this forward pass
  bool enters_block_ = false;           // and its first operator has not come yet
  std::optional<BlockId> first_;        // that this pass visited
  std::int64_t live_bytes_ = 0;         // of all tensors, when it did
  std::int64_t held_bytes_ = 0;         // most beyond these at the start of a later visit
  double growth_ = 1;                   // in the open step
  double told_ = 1;                     // of those that the log says
};

class AdoptedTrial final : public OperatorListener {
 public:
  // Called with each tensor that an operator of a run is about to read; tells the VisitWatch of
  // `blocks` in which block the run is.
  using Follow = std::function<void(const at::Tensor& argument)>;
  // A loop's first step may read what the program made between adopt() and its forward pass.
  enum class Since { adopt, forward };
  // All of it outlives the trial. REQUIRES: a model is adopted.
  AdoptedTrial(AdoptedModels& models, BlockWatch& blocks, Follow follow, Since since);

  // What the stream shows of the first step; wants no calls once its forward pass is over.
  bool wants_calls() const override { return is_recording_; }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  // The first operator on a parameter comes next, after that many steps of the trial.
  void forward_begins(std::uint64_t steps_ended);
  // Ends the recordings, the first time in a step.
  void backward_begins(const BackwardPass& pass) override;
  // Compares runs of the passes with the gradients that its backward() left, the first time in a
  // step. `trained`: for each model whether it got gradients. REQUIRES: backward_begins() was
  // called; nothing has changed a parameter or a gradient since.
  void check(const std::vector<bool>& trained);
  // Whether steps of all kinds were recorded: as many steps as there are models have ended, and
  // each model got gradients in one; or more than can be waited for. Equal on all ranks.
  bool is_complete(std::uint64_t steps_ended, std::size_t models) const;
  // Ok while the steps can be run again.
  const Status& status() const { return status_; }

  // Returns the leaves that runs add to: those of all recorded steps.
  std::vector<at::Tensor> leaves() const;

  // Returns the step to try, of several kinds the one that trains most models; one without a loss
  // unless `can_run`.
  SampleStep sample(bool can_run);

 private:
  class Follower final : public OperatorListener {
   public:
    explicit Follower(Follow follow) : follow_(std::move(follow)) {}
    void touch(const c10::OperatorHandle&, const at::Tensor& argument) override {
      follow_(argument);
    }

   private:
    const Follow follow_;
  };

  struct Recording {
    RecordedPass pass;
    Status status;  // ok while it can be run again
  };
  struct Kind {
    std::vector<bool> trained;
    std::unique_ptr<Recording> recording;
  };
  static constexpr std::uint64_t kMostSteps = 16;  // until all models have got gradients

  at::Tensor run(RecordedPass& pass);
  void release();
  Status check_recording(const GradientPrints& expected);
  Status check_repeats(const GradientPrints& expected);
  // Runs the pass under these actions. Returns what is kept of its gradients, none where it failed.
  GradientPrints run_under(const Actions& actions);
  // Compares such a run with the program's own gradients.
  Status compare(const Actions& actions, const GradientPrints& expected);
  // Runs the pass a few times, to learn which gradients differ by themselves. Returns whether there
  // are some; what backward gets is then compared instead, and blocks where it differs are pinned.
  bool learn_spread();

  AdoptedModels& models_;
  BlockWatch& blocks_;
  VisitWatch& visits_;
  Follower follower_;
  std::vector<Kind> kinds_;             // that were recorded and checked
  std::unique_ptr<Recording> all_;      // since adopt(), in a loop's first step
  std::unique_ptr<Recording> forward_;  // since the first operator on a parameter
  std::vector<at::Tensor> before_;      // gradients that the recorded backward pass began with
  RecordedPass* pass_ = nullptr;        // the one to compare, of those
  GradientSpread spread_;
  Status ran_;  // of the last run
  Status status_;
  std::uint64_t step_ = 0;  // that is recorded
  bool is_recording_ = true;
  bool is_checked_ = false;
};

// UpdateProfile finds the most bytes that an optimizer's later updates take, from its first one,
// which makes the optimizer's state on the way: what parameters behind the peak add is there from
// the start in a later one.
class UpdateProfile {
 public:
  explicit UpdateProfile(MemoryProbe& probe) : probe_(probe) {}
  // A backward pass ended: the update may begin.
  void begin();
  bool is_open() const { return is_open_; }
  // An operator runs on this parameter. REQUIRES: is_open().
  void note(const at::Tensor& parameter, LoopStages::Access access);
  // The next forward pass begins. Returns the most bytes until then; 0 where tensors are not
  // counted.
  std::int64_t end();

 private:
  struct Part {  // from the first operator on a parameter to that on the next one
    std::int64_t parameter_bytes = 0;
    std::int64_t peak_bytes = 0;
    std::int64_t grown_bytes = 0;
  };
  void close_part();

  MemoryProbe& probe_;
  bool is_open_ = false;
  const c10::StorageImpl* parameter_ = nullptr;
  std::int64_t parameter_bytes_ = 0;
  std::int64_t live_bytes_ = 0;  // when the part began
  std::vector<Part> parts_;
  std::size_t parts_of_update_ = 0;  // up to the last that a parameter is written in
};

// FirstSteps is what an adopted loop's first steps are for, where settings leave something to
// choose: one step of each kind is recorded (AdoptedTrial), and what it costs under each memory
// action and in each format is tried before the next one, when the optimizer has its state. The
// same happens again once the models have other parameters to train, or parameters of other shapes.
// Owned by Adoption; training thread only.
class FirstSteps {
 public:
  // Both must outlive this.
  FirstSteps(Session& session, AdoptedModels& models);

  // A model was adopted. `follow`: as AdoptedTrial's.
  void model_added(AdoptedTrial::Follow follow);
  // Returns whether nothing is recorded or tried any more.
  bool are_over() const { return trial_ == nullptr; }
  // Returns whether what the stream shows now are runs of a trial.
  bool are_tried() const { return is_calibrating_; }

  // A step begins. Records it anew where the models are no longer those that were measured.
  void step_begins(BatchGrowth& growth);
  // The first operator on a parameter comes next: records the step, or tries what was recorded.
  // Collective, and throws cox::Error, where it tries.
  void forward_begins(BatchGrowth& growth);
  // Between a backward pass and the next forward pass: an operator on a parameter runs.
  void parameter_used(const at::Tensor& parameter, LoopStages::Access access);
  // A forward pass is about to begin, and the step before it to end.
  void update_ended();
  // The operators of a forward pass, while it wants them.
  bool wants_calls() const { return trial_ != nullptr && trial_->wants_calls(); }
  void begin(const OperatorCall& call);
  void end(std::span<const c10::IValue> results) {
    if (records_call_) trial_->end(results);
  }
  void failed() noexcept {
    if (records_call_) trial_->failed();
  }
  void backward_begins(const BackwardPass& pass, BatchGrowth& growth);
  // Compares runs of the step with what its backward pass left in gradients.
  void check();

 private:
  void begin_trial();
  void calibrate();
  bool looks_at_release();
  std::int64_t gradient_bytes() const;

  Session& session_;
  AdoptedModels& models_;
  AdoptedTrial::Follow follow_;
  std::unique_ptr<AdoptedTrial> trial_;  // until the calibration is over
  bool is_calibrating_ = false;
  bool records_call_ = false;  // the operator that runs is shown to trial_
  // Gradients that a step began with, and how many bytes of them it let go before backward().
  std::int64_t bytes_at_forward_ = 0;
  std::optional<std::int64_t> released_bytes_;
  UpdateProfile update_;
  std::int64_t update_peak_bytes_ = 0;
  std::uint64_t measurements_ = 0;
  std::uint64_t trial_began_ = 0;    // after so many steps
  std::uint64_t changed_steps_ = 0;  // in a row, of models that are not as they were measured
};

}  // namespace cox::detail
