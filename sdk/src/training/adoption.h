// Adoption lets an unchanged loop take part in a job. The class finds the loop's steps and phases
// in the operator stream and averages gradients over ranks. Session::adopt() creates an Adoption,
// and the program's Sessions own it. Used and destroyed by the training thread, which is the thread
// that adopted.
//
//   first operator on a parameter that requires gradients -> forward | backward() begins ->
//   backward | backward() ends -> average, when it added to .grad | a write to a parameter ->
//   update | next forward -> step closes
//
// Opening and closing a step and averaging are collective and wait by polling. Errors are thrown as
// cox::Error through the program's operator or backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "coxswain/session.h"
#include "sdk/src/blocks/visit_listener.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/script_mirror.h"
#include "sdk/src/training/adopted_averaging.h"
#include "sdk/src/training/adopted_models.h"
#include "sdk/src/training/adopted_trial.h"
#include "sdk/src/training/batch_growth.h"
#include "sdk/src/training/loop_stages.h"
#include "sdk/src/training/loop_warnings.h"

namespace cox::detail {

// Adoption listens to the operators of the loop. The first forward pass after a change of a
// parameter closes a step, so several calls of backward() before an update are one step. Passes
// with gradients off (an evaluation) open no step. If the program only watches, nothing is
// averaged, sent or agreed upon, and only the start of the first step is collective.
class Adoption final : public OperatorListener {
 public:
  // Uses the options of the first model. Throws cox::Error in the same cases as ManualParallel.
  // Collective.
  Adoption(Session& session, const AdoptOptions& options);
  ~Adoption() override;
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  // Adds a model: copies rank 0's parameters and buffers to all ranks and names the blocks. A model
  // added after the first step is averaged, but has no blocks. Collective. Throws cox::Error for a
  // model without parameters, and for one that is adopted already.
  void add(torch::nn::Module& model, const AdoptOptions& options);
  void add(const torch::jit::Module& script, const AdoptOptions& options);
  const AdoptedModels& models() const { return models_; }
  const WaitingGradients& waiting_gradients() const { return waiting_; }
  AdoptedAveraging& averaging() { return averaging_; }
  // Returns the sharding of this node's ranks, or null if they hold full copies.
  Sharding* sharding() { return sharding_ ? &*sharding_ : nullptr; }
  // Returns the open step, or null.
  StepScope* open_step() { return step_ ? &*step_ : nullptr; }
  // Starts the session's control plane before the first step does. Collective the first time.
  void start();
  // Closes the open step, if there is one with gradients. Collective.
  void finish();
  // Closes the open step if the loop has updated a model since the last backward pass. Also closes
  // the step if remaining gradients belong to no later update (Gradients::are_used). Returns
  // whether no step is open. After the first call a request to stop waits for end_unless_asked().
  // Collective if a step is closed.
  enum class Gradients : std::uint8_t { add_up, are_used };
  bool close_updated_step(Gradients left);
  // Ends the job, unless the loop polls stop_requested(). REQUIRES: all ranks agreed to stop.
  void end_unless_asked();

 private:
  using Stage = LoopStages::Stage;
  // Shown shows the loop's operators, and the tensors that autograd saves, for its lifetime.
  struct Shown {
    Shown(SavedTensorFrame& frame, OperatorListener* listener, OperatorRewriter* rewriter)
        : saving(frame), stream({listener}, rewriter) {}
    SavedTensorScope saving;
    StreamScope stream;
  };

  void touch(const c10::OperatorHandle& handle, const at::Tensor& argument) override;
  bool has_formats() const override { return listener_->has_formats(); }
  std::optional<ProductFormat> product_format() const override;
  bool wants_calls() const override;
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  void backward_begins(const BackwardPass& pass) override;
  void backward_ended(BackwardKind kind) override;

  void add(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
           const AdoptOptions& options);
  void add_unseen(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                  const AdoptOptions& options);
  void add_late(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                const AdoptOptions& options);
  ReductionMaker maker(const AdoptOptions& options);
  std::vector<at::Tensor> own_parameters(const torch::nn::Module& model) const;
  void shard(torch::nn::Module& model, const AdoptOptions& options);
  void show_stream();
  void keep_whole_if_optimised(AdoptedModel& model);
  void follow(const c10::OperatorHandle& handle, const at::Tensor& argument);
  LoopWarnings::Trial waits_for_backward() const;
  void leave_forward();
  void close_if_updated();
  void begin_forward();
  bool begin_unseen_step();
  void begin_step();
  void watch_numerics();
  void close_step();
  void look_for_update(const OperatorCall& call);
  bool writes_parameter(const OperatorCall& call) const;
  [[noreturn]] void end_by_signal();

  SessionState& state() { return session_.state(); }

  Session session_;
  std::optional<Sharding> sharding_;  // if ranks divide state
  AdoptedAveraging averaging_;
  AdoptedModels models_;
  WaitingGradients waiting_;
  FirstSteps first_;
  BatchGrowth growth_;
  VisitListener* listener_ = nullptr;  // once there is a model
  VisitWatch* visits_ = nullptr;       // the listener's visits
  std::optional<StepScope> step_;
  LoopStages stages_;
  LoopWarnings warnings_;
  std::optional<LoopStages::Time> unseen_backward_;  // a backward pass without a seen forward
  bool follows_call_ = false;                        // the running operator is shown to listener_
  // Last member, so that nothing is shown to a half-built object.
  std::optional<Shown> shown_;
};

}  // namespace cox::detail
