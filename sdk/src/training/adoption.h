// Adoption lets a loop that knows nothing of Coxswain take part in a job: it finds the loop's steps
// and phases in the operator stream and averages gradients over ranks. Session::adopt() makes it.
//
//   first operator on a parameter that requires gradients -> forward | backward() begins ->
//   backward | backward() ends -> average, when it added to .grad | a write to a parameter ->
//   update | next forward -> step closes
//
// A step is closed by the first forward pass after a parameter was changed, so that several calls
// of backward() before an update are one step. Passes with gradients off (an evaluation) open no
// step. Where the program asks to be watched only, nothing is averaged, sent or agreed upon, and
// nothing but the start of the first step is collective. Owned by the Sessions of the program; the
// training thread, which is the one that adopted, uses it. It must end on that thread. Opening and
// closing a step and averaging are collective, wait by polling, and throw cox::Error through the
// operator or backward() that they are called from.
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
#include "sdk/src/training/loop_stages.h"
#include "sdk/src/training/loop_warnings.h"

namespace cox::detail {

class Adoption final : public OperatorListener {
 public:
  // The options are those of the first model. Throws cox::Error where ManualParallel does.
  // Collective.
  Adoption(Session& session, const AdoptOptions& options);
  ~Adoption() override;
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  // Takes a model in: rank 0's parameters and buffers on all ranks, blocks named. A model that
  // comes after the first step is averaged, and has no blocks. Collective. Throws cox::Error for a
  // model without parameters, and one that is adopted already.
  void add(torch::nn::Module& model, const AdoptOptions& options);
  void add(const torch::jit::Module& script, const AdoptOptions& options);
  const AdoptedModels& models() const { return models_; }
  AdoptedAveraging& averaging() { return averaging_; }
  // Returns what ranks of the node hold once or divide, or null.
  Sharding* sharding() { return sharding_ ? &*sharding_ : nullptr; }
  // Returns the open step, or null.
  StepScope* open_step() { return step_ ? &*step_ : nullptr; }
  // Starts the session's control plane before the first step does. Collective the first time.
  void start();
  // Closes the open step, if there is one with gradients. Collective.
  void finish();
  // Closes the open step, if the loop has updated a model since its last backward pass, or if
  // gradients that are left belong to no later update. Returns whether no step is open. From the
  // first call on a request to stop waits for end_unless_asked(). Collective where it closes one.
  enum class Gradients : std::uint8_t { add_up, are_used };
  bool close_updated_step(Gradients left);
  // Ends the job, unless the loop asks stop_requested(). REQUIRES: all ranks agreed to stop.
  void end_unless_asked();

 private:
  using Stage = LoopStages::Stage;
  // Shown shows the operators of the loop, and the tensors that autograd saves, while it exists.
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
  void follow(const at::Tensor& argument);
  void close_if_updated();
  void begin_forward();
  bool begin_unseen_step();
  void begin_step();
  void watch_numerics();
  void close_step();
  void look_for_update(const OperatorCall& call);
  [[noreturn]] void end_by_signal();

  SessionState& state() { return session_.state(); }

  Session session_;
  std::optional<Sharding> sharding_;  // where ranks divide what they hold
  AdoptedAveraging averaging_;
  AdoptedModels models_;
  FirstSteps first_;
  BatchGrowth growth_;
  VisitListener* listener_ = nullptr;  // once there is a model, as
  VisitWatch* visits_ = nullptr;       // its visits
  std::optional<StepScope> step_;
  bool has_gradients_ = false;  // backward() added some in the open step
  LoopStages stages_;
  LoopWarnings warnings_;
  std::optional<LoopStages::Time> unseen_backward_;  // when one began with nothing seen before it
  bool follows_call_ = false;                        // the operator that runs is shown to listener_
  // Last, so that nothing is shown to a half-built object.
  std::optional<Shown> shown_;
};

}  // namespace cox::detail
