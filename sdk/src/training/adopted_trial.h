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
#include <memory>
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

class AdoptedTrial final : public OperatorListener {
 public:
  // Called with each tensor that an operator of a run is about to read; tells the VisitWatch of
  // `blocks` in which block the run is.
  using Follow = std::function<void(const at::Tensor& argument)>;
  // Returns a module with all adopted models.
  using Models = std::function<torch::nn::Module&()>;

  // `blocks` outlives the trial, and so does what the functions refer to. REQUIRES: a model is
  // adopted.
  AdoptedTrial(Models models, BlockWatch& blocks, Follow follow);

  // What the stream shows of the first step; wants no calls once its forward pass is over.
  bool wants_calls() const override { return is_recording_; }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  // The first operator on a parameter comes next.
  void forward_begins();
  // Ends the recordings, the first time. `before`: some parameter has a gradient already.
  enum class Gradients : bool { none, some };
  using OperatorListener::backward_begins;
  void backward_begins(const BackwardPass& pass, Gradients before);
  // Compares runs of the passes with the gradients that its backward() left, the first time.
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

  struct Recording {
    RecordedPass pass;
    Status status;  // ok while it can be run again
  };

  at::Tensor run();
  Status check_repeats(const std::vector<std::uint64_t>& expected);
  // Compares a run under these actions with the program's own gradients.
  Status compare(const Actions& actions, const std::vector<std::uint64_t>& expected);

  const Models models_;
  BlockWatch& blocks_;
  VisitWatch& visits_;
  Follower follower_;
  std::unique_ptr<Recording> all_;      // since adopt()
  std::unique_ptr<Recording> forward_;  // since the first operator on a parameter
  RecordedPass* pass_ = nullptr;        // the one to run, of those
  Status status_;
  bool is_recording_ = true;
  bool is_checked_ = false;
};

}  // namespace cox::detail
