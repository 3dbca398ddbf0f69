// Ranks must have the same weights and the same data while they train. Ranks that part would go on
// with averages of different models, and nothing would say so. The ballot compares a hash of the
// weights every reduction.verify_steps rounds; data, which cannot change later, are compared once,
// at the start. Training thread.
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

// Throws on all ranks where their models differ in names, shapes, types or order of parameters, or
// in what their modules print of themselves (the probability of a Dropout). Parameters of equal
// shapes in another order would be averaged with each other. Collective.
void check_equal_models(const Membership& job, const torch::nn::Module& model);

// Returns a hash of eight samples spread over the data set; 0 where they differ when they are read
// again (random augmentation), or where there are none. Throws what the data set throws.
std::uint64_t hash_of_samples(const Dataset& dataset);

// WeightCheck compares the weights as they are when a loop takes them: before the step's update, in
// an adopted loop after it. The hash reads them once (some 10 GB/s from memory). On a device it is
// taken there, and travels to the host while the next step is computed: it is compared a round
// later. Ranks hash alike only on the same kind of device. A save and the end of the job compare
// the weights that they leave, and those must be finite.
class WeightCheck final : public Actuator,
                          public Steering,
                          public Comparing,
                          public Reporting,
                          public Lasting {
 public:
  // `parameters` in an order that is equal on all ranks. `every_rounds`: 0 = never; otherwise
  // rounds 1, 2, 4, 8, ... are compared as well. `blocks` must outlive this. `likely_cause` is told
  // where weights differ, it may be empty.
  WeightCheck(std::vector<at::Tensor> parameters, std::uint32_t every_rounds, BlockWatch& blocks,
              std::string likely_cause = {});
  const char* name() const override { return "reduction"; }
  void apply(const Plan& plan, RoundId round) override;

  // Hashes the weights in a round that compares them. Before the ballot of the step. Waits for a
  // device only where it has not come to the last hash by now.
  void take();
  EqualBits equal_bits() const override { return bits_; }
  // Names the first parameter that differs, its block, and by how much.
  std::string explain_difference(transport::Communicator& ranks) override;
  void end_step(const StepEnd&, StepOutput&) override;
  EndState end_state() const override;
  // The last step is about to end, in a loop whose steps end no sooner than the next one begins:
  // what was written since the step before it counts as of steps when it is as much as usual.
  void settle();
  // "parameter 3 of 12 (Float[64, 64], block h.1)".
  std::string text_of(std::size_t parameter) const;

 private:
  std::uint64_t writes() const;

  std::vector<at::Tensor> parameters_;
  std::uint32_t every_;  // rounds; 0 = never
  BlockWatch& blocks_;
  const std::string likely_cause_;
  bool is_due_ = false;
  EqualBits bits_;
  std::optional<HostCopy> coming_;  // the hash of the last due round, from a device
  // Writes to the parameters until the last steps ended, the newest first.
  std::array<std::uint64_t, 3> written_{};
  std::uint64_t steps_ = 0;
  std::optional<EndState> settled_;
  bool is_told_ = false;  // a step has ended by an error that names what differs
};

}  // namespace cox::detail
