// AdoptedTrial makes the first step of an adopted loop one that can be tried: it records the
// forward pass, checks in that step that running it again gives the program's own gradients, bit
// for bit, with blocks kept and with blocks recomputed, and then is the sample of a calibration.
//
//   forward pass of the first step -> record | backward() ends -> check() | second step begins ->
//   sample(): the calibration runs it under each action
//
// A block whose recomputed gradients differ is pinned to keep, with the reason. Where the step
// cannot be run again at all, status() says why, and there is no sample. Owned by Adoption;
// training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_trial.h"
#include "sdk/src/precision/trial_step.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/recorded_pass.h"

namespace cox::detail {

// Takes the gradients of parameters away while it exists.
class GradientsAside {
 public:
  explicit GradientsAside(const std::vector<at::Tensor>& parameters);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // Returns the fingerprint of each, 0 where there is none.
  std::vector<std::uint64_t> fingerprints() const;

 private:
  struct Taken {
    at::Tensor parameter;
    at::Tensor gradient;
  };
  std::vector<Taken> taken_;
};

class AdoptedTrial {
 public:
  // Called with each tensor that an operator of a run is about to read; tells the VisitWatch of
  // `blocks` in which block the run is.
  using Follow = std::function<void(const at::Tensor& argument)>;

  // `model` has all adopted models. Everything outlives the trial. REQUIRES: a model is adopted.
  AdoptedTrial(torch::nn::Module& model, BlockWatch& blocks, Follow follow);

  // The listener of the pass that is recorded; wants no calls once that is over.
  RecordedPass& pass() { return pass_; }
  // Ends the recording, the first time. `has_gradients`: some parameter has one already.
  enum class Gradients : bool { none, some };
  void backward_begins(const BackwardPass& pass, Gradients before);
  // Compares runs of the pass with the gradients that its backward() left, the first time.
  // REQUIRES: backward_begins() was called; nothing has changed a parameter or a gradient since.
  void check();
  // Ok while the step can be run again.
  const Status& status() const { return status_; }

  // Returns the step to try; one without a loss unless `can_run`.
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

  at::Tensor run();
  Status check_repeats();
  // Compares a run under these actions with the program's own gradients.
  Status compare(const Actions& actions, const std::vector<std::uint64_t>& expected);

  torch::nn::Module& model_;
  BlockWatch& blocks_;
  VisitWatch& visits_;
  Follower follower_;
  RecordedPass pass_;
  Status status_;
  bool is_checked_ = false;
};

}  // namespace cox::detail
