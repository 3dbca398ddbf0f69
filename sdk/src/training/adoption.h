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

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/hash.h"
#include "coxswain/manual.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/visit_listener.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/script_mirror.h"
#include "sdk/src/training/adopted_trial.h"
#include "sdk/src/training/equal_ranks.h"

namespace cox::detail {

class BlockWatch;
class NumericsWatch;

class Adoption final : public OperatorListener {
 public:
  // The options are those of the first model. Throws cox::Error where ManualParallel does.
  // Collective.
  Adoption(Session& session, const AdoptOptions& options);
  ~Adoption() override;
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;

  // Takes a model in: rank 0's parameters and buffers on all ranks, blocks named. Collective.
  // Throws cox::Error for a model without parameters, one that is adopted already, and after the
  // first step.
  void add(torch::nn::Module& model, const AdoptOptions& options);
  void add(const torch::jit::Module& script, const AdoptOptions& options);
  bool has(const torch::nn::Module& model) const;
  bool has(const torch::jit::Module& script) const;
  // Closes the open step, if there is one with gradients. Collective.
  void finish();
  bool only_watches() const { return !ranks_; }
  // Returns the open step, or null.
  StepScope* open_step() { return step_ ? &*step_ : nullptr; }
  // The loop asks whether it is to stop, so it need not be ended.
  void loop_asks() { loop_asks_ = true; }

  void touch(const c10::OperatorHandle& handle, const at::Tensor& argument) override;
  bool has_formats() const override { return listener_->has_formats(); }
  std::optional<ProductFormat> product_format() const override;
  // Looks for the first write to a parameter after backward(), once for the first batch, and tells
  // whoever records the forward pass.
  bool wants_calls() const override;
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  void backward_begins(const BackwardPass& pass) override;
  void backward_ended(BackwardKind kind) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  enum class Stage : std::uint8_t { between, forward, backward, accumulated, updating };

  // What of a gradient tells that backward() added to it.
  struct Mark {
    const void* gradient = nullptr;
    std::int64_t version = 0;
  };
  struct Model {
    torch::nn::Module* module;
    std::shared_ptr<ScriptMirror> script;  // the module, where that is a script's; else null
    std::string name;
    BlockMap map;
    BlockId::rep first_block;
    std::vector<at::Tensor> parameters;
    std::vector<Mark> marks = {};
    bool is_kept_whole = false;  // a script that was called with TorchScript's optimiser on

    bool has(BlockId block) const {
      return block.value() >= first_block && block.value() < first_block + map.size();
    }
  };

  void add(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
           const AdoptOptions& options);
  void keep_whole_if_optimised(Model& model);
  bool is_use(const c10::OperatorHandle& handle) const;
  void follow(const at::Tensor& argument);
  void begin_forward();
  void note_touch(const c10::OperatorHandle& handle);
  void note_gradients();
  bool begin_unseen_step();
  // The first step is recorded, of several models one of each kind; what it costs under each memory
  // action is tried before the next one, when the optimizer has its state.
  void record_or_calibrate();
  void calibrate();
  torch::nn::Module& models_together();
  // Blocks are entered with more elements than when their memory was measured.
  void look_at_size(const OperatorCall& call);
  void note_measured_size();
  void make_room(double growth);
  // Losses in which backward() leaves the mean over ranks.
  void note_scalars(std::span<const c10::IValue> results);
  at::Tensor loss_of(const BackwardPass& pass) const;
  void average_loss();
  void begin_step();
  void watch_weights();
  void watch_numerics();
  void close_step();
  void change_stage(Stage stage, Time now);
  // Whether gradients are averaged over several ranks.
  bool exchanges() const { return ranks_ && session_.world_size() > 1; }
  bool is_parameter_here(const at::Tensor& tensor) const;
  void look_for_update(const OperatorCall& call);
  void look_at_first_batch(const OperatorCall& call);
  void compare_first_batches();
  static bool has_new_gradient(const Model& model);
  std::vector<bool> trained_models() const;
  [[noreturn]] void end_by_signal();

  const c10::OperatorHandle detach_ =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  Session session_;
  SessionState& state_;
  BlockWatch& blocks_;
  NumericsWatch& numerics_;
  std::optional<ManualParallel> ranks_;  // none where the loop is watched only
  std::vector<Model> models_;
  VisitListener* listener_ = nullptr;  // once there is a model, as
  VisitWatch* visits_ = nullptr;       // its visits
  std::optional<StepScope> step_;
  static constexpr int kBatchReads = 4;
  Fnv1a64 first_batch_;
  int batch_reads_ = 0;  // operators that read of it, until the first backward()
  bool are_batches_compared_ = false;
  bool has_gradients_ = false;  // backward() added some in the open step
  Stage stage_ = Stage::between;
  std::optional<Time> update_since_;  // once an operator ran with gradients off after backward()
  Time last_update_{};
  Time read_since_{};                    // later than that: parameters were read with gradients off
  std::optional<Time> unseen_backward_;  // when the pass began, if nothing was seen before it
  bool is_unseen_told_ = false;
  bool loop_asks_ = false;

  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  bool averages_losses_ = false;
  std::vector<WeakTensor> scalars_;  // that the step's forward passes made
  at::Tensor loss_;                  // of the backward pass that runs, where losses are averaged

  // Elements that the first operators of each block's visits read beside parameters, from a forward
  // pass to its backward(): while memory was measured, if it was, and in the open step.
  std::vector<std::int64_t> measured_elements_, entered_elements_;
  bool enters_block_ = false;  // and such an operator has not come yet
  double growth_ = 1;          // of these, the largest in the open step
  double told_growth_ = 1;

  std::optional<WeightCheck> weights_;  // once the first step begins
  std::optional<AddedActuator> added_weights_;
  std::unique_ptr<torch::nn::Module> together_;  // of models_together()
  std::unique_ptr<AdoptedTrial> trial_;          // until the calibration is over
  bool is_calibrating_ = false;
  bool records_call_ = false;  // the operator that runs is shown to trial_,
  bool follows_call_ = false;  // and to visits_
  // Last, so that nothing is shown to a half-built object.
  std::optional<SavedTensorScope> saving_;
  std::optional<StreamScope> stream_;
};

}  // namespace cox::detail
