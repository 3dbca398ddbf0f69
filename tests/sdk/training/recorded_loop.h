// The model, the data and the policy of loops whose steps are recorded, and the comparison of a
// record with its file. Training thread of a rank under mpiexec.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/decide/plan_change.h"
#include "coordinator/decide/policy.h"
#include "step_record.h"

namespace sdk_test {

inline constexpr int kSteps = 50;
inline constexpr std::uint64_t kHoldRound = 10;

// Returns a policy that changes the plan in given rounds, whatever the reports.
cox::PolicySet scripted(std::map<std::uint64_t, cox::PlanChange> changes);
// Returns a policy that holds the plan from kHoldRound on.
cox::PolicySet holding();

// Two blocks whose gradients are small whole numbers, and buffers that each step changes.
struct TwoBlocksImpl : torch::nn::Module {
  TwoBlocksImpl();
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear a{nullptr};
  torch::nn::Linear b{nullptr};
  at::Tensor calls;  // number of forward passes
  at::Tensor total;  // sum of all inputs
};
TORCH_MODULE(TwoBlocks);

// Returns a batch of whole numbers.
at::Tensor inputs(std::int64_t rows, std::int64_t first);
// Returns the mean over the batch.
at::Tensor mean_of(const at::Tensor& outputs);
at::Tensor loss_of(TwoBlocks& model, const at::Tensor& x);

bool is_last();  // whether this is the last rank

// Notes rounded values, so that another order of sums gives the same record.
void note_sums(Recording& recording, const char* of, const std::vector<at::Tensor>& tensors);
void note_weights(Recording& recording, const torch::nn::Module& model);

// Compares with the file of the kind and the world size. Writes the file instead if the environment
// has STEP_RECORDS=write.
void check_record(const Recording& recording, const std::string& kind);

}  // namespace sdk_test
