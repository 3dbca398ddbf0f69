// Checks that ranks have the same weights and the same data. Ranks that diverge would silently
// continue with averages of different models. The ballot compares a hash of the weights every
// reduction.verify_steps rounds. Data cannot change later and are compared once, at the start.
// Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/dataset.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/device/transfer.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

// Throws cox::Error on all ranks if models differ in names, shapes, types or order of parameters.
// Parameters of equal shapes in another order would be averaged with each other. Also throws if the
// text that modules print differs (the probability of a Dropout). Collective.
void check_equal_models(const Membership& job, const torch::nn::Module& model);

// Returns a hash of eight samples spread over the data set. Returns 0 if the samples differ at a
// second read (random augmentation), or if there are none. Throws what the data set throws.
std::uint64_t hash_of_samples(const Dataset& dataset);

// WeightCheck compares weights at one moment of a step: before the update, or after it in an
// adopted loop. Hashing reads all weights once (some 10 GB/s from memory). A device computes the
// hash itself and copies it to the host while the next step runs, so the comparison comes one round
// later. Hashes are comparable only between devices of the same kind. A save and the end of the job
// compare the final weights, which must be finite.
class WeightCheck final : public Actuator,
                          public Steering,
                          public Comparing,
                          public Reporting,
                          public Lasting {
 public:
  // `every_rounds`: 0 = never; otherwise rounds 1, 2, 4, 8, ... are compared as well.
  // `likely_cause` is added to the error if weights differ; may be empty. REQUIRES: `parameters`
  // are in the same order on all ranks; `blocks` outlives the WeightCheck.
  WeightCheck(std::vector<at::Tensor> parameters, std::uint32_t every_rounds, BlockWatch& blocks,
              std::string likely_cause = {});
  const char* name() const override { return "reduction"; }
  void apply(const Plan& plan, RoundId round) override;

  // Hashes the weights in a round that compares them. Call take() before the step's ballot. Waits
  // for a device only if the device has not finished the last hash.
  void take();
  EqualBits equal_bits() const override { return bits_; }
  // Names the first parameter that differs, its block, and by how much.
  std::string explain_difference(transport::Communicator& ranks) override;
  void end_step(const StepEnd&, StepOutput&) override;
  EndState end_state() const override;
  // Prepares the end state when the last step is about to end, in a loop whose steps end only when
  // the next one begins. Writes since the step before count as the step's if their number is as
  // usual.
  void settle();
  // Returns text such as "parameter 3 of 12 (Float[64, 64], block h.1)".
  std::string text_of(std::size_t parameter) const;

 private:
  std::uint64_t writes() const;

  std::vector<at::Tensor> parameters_;
  std::uint32_t every_;  // rounds; 0 = never
  BlockWatch& blocks_;
  const std::string likely_cause_;
  bool is_due_ = false;
  EqualBits bits_;
  std::optional<HostCopy> coming_;  // hash of the last due round, from a device
  // Number of writes to the parameters at the end of the last steps, the newest first.
  std::array<std::uint64_t, 3> written_{};
  std::uint64_t steps_ = 0;
  std::optional<EndState> settled_;
  bool is_told_ = false;  // a step has ended with an error that names the difference
};

}  // namespace cox::detail
