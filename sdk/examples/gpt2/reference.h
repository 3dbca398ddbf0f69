// Trains the model of a reference folder as its task says (AdamW, lr 1e-3, betas 0.9 and 0.95,
// weight decay 0.1 on matrices only, no clipping, the same batch every step) and compares every
// number with the recorded one. `gpt2 --reference DIR` is this, on one rank or several.
//
// How a step is made is the caller's: ReferenceTrainer is the seam between the plain loop below and
// a distributed trainer. All ranks call check_reference with the same folder and their own rank; it
// communicates only through the trainer.
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

  // Drops old gradients, then forward and backward. Afterwards .grad of every parameter is the
  // gradient of the mean loss of the whole batch, equal on all ranks.
  virtual StepLoss backward() = 0;
  // One step of the optimizer.
  virtual void update() = 0;
  // The loss alone; leaves gradients and parameters as they are.
  virtual StepLoss evaluate() = 0;
};

// The rows of the batch that a rank trains on: contiguous parts in rank order, equal ones or in
// proportion to `shares` (one a rank).
struct RankRows {
  int rank = 0;
  int world = 1;
  std::vector<std::uint32_t> shares{};
  // REQUIRES: the rows are a multiple of `world` where there are no shares.
  at::Tensor of(const at::Tensor& batch) const;
};

// The optimizer's parameter groups as the task has them.
std::vector<cox::AdamWGroup> reference_groups(const Gpt2& model);

// What a trainer is made from; the tensors are this rank's rows.
struct ReferenceTask {
  Gpt2 model;
  at::Tensor inputs;
  at::Tensor targets;
};
using TrainerFactory = std::function<std::unique_ptr<ReferenceTrainer>(const ReferenceTask&)>;

// A loop without any distribution, for a world of one.
std::unique_ptr<ReferenceTrainer> plain_trainer(const ReferenceTask& task);

struct Check {
  std::string name;
  double worst = 0;  // largest deviation, relative unless the name says otherwise
  double limit = 0;
  std::string where;                          // what deviates most
  bool ok() const { return worst <= limit; }  // false for NaN
};

// All comparisons of this rank, in a fixed order. Two ranks are compared with "ddp_two_ranks" where
// the folder has it, any other number of ranks with "fp32" (the mean over ranks is the same
// mathematically). Numbers agree to the stated limits with one thread a rank
// (at::set_num_threads(1)).
cox::Result<std::vector<Check>> check_reference(const Reference& reference, RankRows rows,
                                                const TrainerFactory& make_trainer);

// {"check":"fp32.losses","worst":1.2e-07,"limit":1e-05,"ok":true,"where":"step 3"}, no line end.
// A deviation that is not finite is null.
std::string to_json(const Check& check);

// One line a check; whether all are ok.
bool print_checks(std::ostream& out, const std::vector<Check>& checks);

}  // namespace gpt2
