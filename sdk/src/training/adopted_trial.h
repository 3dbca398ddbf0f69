// AdoptedTrial records the first steps of an adopted loop, and the first steps after a change of
// its models, as samples for a calibration. At the end of backward the recorded forward pass runs
// again, with blocks kept and with blocks recomputed. The resulting gradients must equal the
// program's own, bit for bit. Owned by Adoption; training thread only; does not communicate.
//
//   forward pass of a first step -> record | backward() ends -> check() | a later step begins,
//   is_complete() -> sample(): the calibration runs it under each action
//
// One model needs one step. Models that take steps in turn (the players of a GAN) have several
// kinds of steps. A kind is the set of models that got gradients, and one step of each kind is
// recorded. A step with several backward passes is also recorded as a whole, for its peak. A block
// whose recomputed gradients differ is pinned to keep, with the reason. If the step cannot run
// again at all, status() tells why, and there is no sample.
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
#include "sdk/src/training/batch_growth.h"
#include "sdk/src/training/loop_stages.h"

namespace cox::detail {

// LeavesAside removes the gradients and the hooks of leaves for its lifetime. Runs of a trial then
// change no gradient and call no hook.
class LeavesAside {
 public:
  // `others` are leaves outside of the model that a run reads. A leaf may be listed more than once.
  explicit LeavesAside(const std::vector<at::Tensor>& parameters,
                       const std::vector<at::Tensor>& others = {});
  ~LeavesAside();
  LeavesAside(const LeavesAside&) = delete;
  LeavesAside& operator=(const LeavesAside&) = delete;

  // Returns prints of the parameters' removed gradients.
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

class AdoptedTrial final : public OperatorListener {
 public:
  // Called with each operator of a run and each tensor that the operator is about to read. Tells
  // the VisitWatch of `blocks` the present block of the run.
  using Follow = std::function<void(const c10::OperatorHandle& handle, const at::Tensor& argument)>;
  // A loop's first step may read tensors that the program made between adopt() and its forward
  // pass.
  enum class Since { adopt, forward };
  // REQUIRES: all arguments outlive the trial; a model is adopted.
  AdoptedTrial(AdoptedModels& models, BlockWatch& blocks, Follow follow, Since since);

  // Receives the stream of the first step, up to its update.
  bool wants_calls() const override { return record_ == Record::open || wholes_.wants_calls(); }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  // Begins a forward pass, before its first operator on a parameter. `steps_ended` counts steps of
  // the trial.
  void forward_begins(std::uint64_t steps_ended);
  // Ends the recordings of the first forward pass, the first time in a step.
  void backward_begins(const BackwardPass& pass) override;
  void backward_ended(BackwardKind) override { wholes_.backward_ended(); }
  // Runs the recorded passes and compares the results with the gradients of the step's first
  // backward(). Later calls in a step do nothing. `trained` tells for each model whether it got
  // gradients. REQUIRES: backward_begins() was called, and no parameter or gradient has changed
  // since.
  void check(const std::vector<bool>& trained);
  // Ends the recording of a whole step.
  void update_begins() { wholes_.end_step(); }
  // Returns whether steps of all kinds were recorded: as many steps as models have ended, and each
  // model got gradients in one. Also returns true after kMostSteps steps. Equal on all ranks.
  bool is_complete(std::uint64_t steps_ended, std::size_t models) const;
  // Returns ok while the steps can run again.
  const Status& status() const { return status_; }
  // Returns ok unless a step with several backward passes cannot run again as a whole.
  const Status& whole_steps() const { return wholes_.dropped(); }

  // Returns the leaves that runs add gradients to, of all recorded steps.
  std::vector<at::Tensor> leaves() const;

  // Returns the sample to try. The sample's loss is the step that trains most models; steps of
  // other kinds are its other losses. Without `can_run` the sample has no loss.
  SampleStep sample(bool can_run);

 private:
  class Follower final : public OperatorListener {
   public:
    Follower(Follow follow, VisitWatch& visits) : follow_(std::move(follow)), visits_(visits) {}
    void touch(const c10::OperatorHandle& handle, const at::Tensor& argument) override {
      follow_(handle, argument);
    }

    // Wants calls in a run of a whole step, whose backward passes are operators.
    bool wants_calls() const override { return sees_backward; }
    void begin(const OperatorCall& call) override;
    void end(std::span<const c10::IValue> results) override;
    void failed() noexcept override { is_backward_ = false; }

    bool sees_backward = false;

   private:
    const Follow follow_;
    VisitWatch& visits_;
    bool is_backward_ = false;  // the running operator is a backward pass
  };

  struct Recording {
    RecordedPass pass;
    Status status;  // ok while the pass can run again
  };
  struct Kind {
    std::vector<bool> trained;
    std::unique_ptr<Recording> recording;  // null if this rank's steps cannot run again
  };
  static constexpr std::uint64_t kMostSteps = 16;  // limit of the wait for gradients of all models

  at::Tensor run(RecordedPass& pass);
  void drop_broken_wholes();
  std::vector<RecordedPass*> passes() const;  // all that can run again
  void release();
  Status check_recordings();
  Status check_recording(const GradientPrints& expected);
  Status check_repeats(const GradientPrints& expected);
  // Runs the pass under `actions`. Returns prints of its gradients; none if the run failed.
  GradientPrints run_under(const Actions& actions);
  // Compares a run under `actions` with the program's own gradients.
  Status compare(const Actions& actions, const GradientPrints& expected);
  // Runs the pass a few times, to find gradients that differ between equal runs. Returns whether
  // there are any. In that case the inputs of backward are compared instead, and blocks whose
  // inputs differ are pinned.
  bool learn_spread();

  AdoptedModels& models_;
  BlockWatch& blocks_;
  VisitWatch& visits_;
  Follower follower_;
  std::vector<Kind> kinds_;             // recorded and checked; the same kinds on all ranks
  WholeSteps wholes_;                   // steps with several backward passes
  std::unique_ptr<Recording> all_;      // since adopt(), in a loop's first step
  std::unique_ptr<Recording> forward_;  // since the first operator on a parameter
  std::vector<at::Tensor> before_;      // gradients before the recorded backward pass
  RecordedPass* pass_ = nullptr;        // the pass to compare: in all_ or forward_
  GradientSpread spread_;
  Status ran_;  // outcome of the last run
  Status status_;
  std::uint64_t step_ = 0;  // the recorded step
  enum class Record : std::uint8_t { open, closed, checked };
  Record record_ = Record::open;  // of the step's first pass
};

// UpdateProfile predicts the peak bytes of an optimizer's later updates from its first update. The
// first update also makes the optimizer's state. State that the first update makes after its peak
// is present from the start in later updates.
class UpdateProfile {
 public:
  explicit UpdateProfile(MemoryProbe& probe) : probe_(probe) {}
  // Begins a profile after a backward pass, when the update may begin.
  void begin();
  bool is_open() const { return is_open_; }
  // Records an operator on `parameter`. REQUIRES: is_open().
  void note(const at::Tensor& parameter, LoopStages::Access access);
  // Ends the profile at the next forward pass. Returns the peak bytes until then; 0 if tensors are
  // not counted.
  std::int64_t end();

 private:
  struct Part {  // from the first operator on a parameter to the first on the next one
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
  std::size_t parts_of_update_ = 0;  // number of parts up to the last parameter that is written
};

// FirstSteps runs an adopted loop's first steps if settings leave a choice open. One step of each
// kind is recorded (AdoptedTrial). Before the next step the optimizer has its state. Then the
// recorded steps are tried under each memory action and in each format. The measurement is repeated
// if the models get other parameters to train, or parameters of other shapes. Owned by Adoption;
// training thread only.
class FirstSteps {
 public:
  // REQUIRES: both arguments outlive the FirstSteps.
  FirstSteps(Session& session, AdoptedModels& models);

  // Records that a model was adopted. `follow` is passed to AdoptedTrial.
  void model_added(AdoptedTrial::Follow follow);
  // Returns whether nothing is left to record or try.
  bool are_over() const { return trial_ == nullptr; }
  // Returns whether the stream shows runs of a trial at the moment.
  bool are_tried() const { return is_calibrating_; }

  // Begins a step. Records the step anew if the models have changed since the measurement.
  void step_begins(BatchGrowth& growth);
  // Begins a forward pass, before its first operator on a parameter. Records the step, or tries the
  // recorded steps. A trial is collective and throws cox::Error.
  void forward_begins(BatchGrowth& growth);
  // Records an operator on a parameter that belongs to no forward pass.
  void parameter_used(const at::Tensor& parameter, LoopStages::Access access);
  // Ends the update: the step is about to end, and the next forward pass to begin.
  void update_ended();
  // Receives the operators of a forward pass while wants_calls().
  bool wants_calls() const { return trial_ != nullptr && trial_->wants_calls(); }
  void begin(const OperatorCall& call);
  void end(std::span<const c10::IValue> results) {
    if (records_call_) trial_->end(results);
  }
  void failed() noexcept {
    if (records_call_) trial_->failed();
  }
  void backward_begins(const BackwardPass& pass, BatchGrowth& growth);
  void backward_ended() {
    if (trial_ != nullptr) trial_->backward_ended(BackwardKind::accumulating);
  }
  // Compares runs of the step with the gradients of its backward pass.
  void check();

 private:
  void begin_trial();
  void begin_anew(BatchGrowth& growth);
  bool have_models_changed();  // collective
  void calibrate();
  bool looks_at_release(std::uint64_t steps_ended);  // collective
  std::int64_t gradient_bytes() const;

  Session& session_;
  AdoptedModels& models_;
  AdoptedTrial::Follow follow_;
  std::unique_ptr<AdoptedTrial> trial_;  // until the calibration is over
  bool is_calibrating_ = false;
  bool records_call_ = false;  // the running operator is shown to trial_
  // The step that shows what is freed, the bytes of gradients at its start, and the bytes of them
  // freed before backward().
  std::optional<std::uint64_t> looked_at_;
  std::int64_t bytes_at_forward_ = 0;
  std::optional<std::int64_t> released_bytes_;
  UpdateProfile update_;
  std::int64_t update_peak_bytes_ = 0;
  std::uint64_t measurements_ = 0;
  int trials_ = 0;                   // since the last measurement, because the models changed
  std::uint64_t trial_began_ = 0;    // number of steps before the trial
  std::uint64_t changed_steps_ = 0;  // consecutive steps whose models differ from the measured ones
};

}  // namespace cox::detail
