// Trains the model of a reference folder by a fixed recipe and compares every number with the
// recorded one, on one rank or several: `gpt2 --reference DIR`. The recipe: AdamW, lr 1e-3, betas
// 0.9 and 0.95, weight decay 0.1 on matrices only, no clipping, the same batch every step.
//
// The caller supplies the steps: ReferenceTrainer is the seam between the plain loop below and a
// distributed trainer. All ranks call check_reference() with the same folder and their own rank,
// and communicate only through the trainer.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/examples/gpt2/reference_data.h"

namespace gpt2 {

struct StepLoss {
  double mean = 0;   // over the whole batch, equal on all ranks
  double local = 0;  // over this rank's rows
};

class ReferenceTrainer {
 public:
  virtual ~ReferenceTrainer() = default;

  // Drops old gradients, then runs forward and backward. Afterwards .grad of every parameter is the
  // gradient of the mean loss of the whole batch, equal on all ranks.
  virtual StepLoss backward() = 0;
  // Runs one step of the optimizer.
  virtual void update() = 0;
  // Computes only the loss. Gradients and parameters do not change.
  virtual StepLoss evaluate() = 0;
};

// RankRows selects the rows of the batch that a rank trains on. Ranks get contiguous parts in rank
// order, of equal size or in proportion to `shares` (one a rank).
struct RankRows {
  int rank = 0;
  int world = 1;
  std::vector<std::uint32_t> shares{};
  // REQUIRES: without shares, the rows are a multiple of `world`.
  at::Tensor of(const at::Tensor& batch) const;
};

// Returns the recipe's parameter groups for the optimizer.
std::vector<cox::AdamWGroup> reference_groups(const Gpt2& model);

// ReferenceTask is the input of a trainer; the tensors are this rank's rows.
struct ReferenceTask {
  Gpt2 model;
  at::Tensor inputs;
  at::Tensor targets;
};
using TrainerFactory = std::function<std::unique_ptr<ReferenceTrainer>(const ReferenceTask&)>;

// Returns a loop without any distribution, for a world of one.
std::unique_ptr<ReferenceTrainer> plain_trainer(const ReferenceTask& task);

struct Check {
  std::string name;
  double worst = 0;  // largest deviation, relative unless the name says otherwise
  double limit = 0;
  std::string where;                          // element with the largest deviation
  bool ok() const { return worst <= limit; }  // false for NaN
};

// Returns all comparisons of this rank, in a fixed order. Two ranks are compared with
// "ddp_two_ranks" if the folder has it. Any other number of ranks is compared with "fp32", because
// the mean over ranks is the same mathematically. Numbers agree to the stated limits with one
// thread a rank (at::set_num_threads(1)).
cox::Result<std::vector<Check>> check_reference(const Reference& reference, RankRows rows,
                                                const TrainerFactory& make_trainer);

// Returns {"check":"fp32.losses","worst":1.2e-07,"limit":1e-05,"ok":true,"where":"step 3"} without
// a line end. A deviation that is not finite is null.
std::string to_json(const Check& check);

// Prints one line for each check. Returns whether all are ok.
bool print_checks(std::ostream& out, const std::vector<Check>& checks);

}  // namespace gpt2
