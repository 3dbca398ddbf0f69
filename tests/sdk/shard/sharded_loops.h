// Training loops in users' style, for comparing sharded with replicated training: models of three
// kinds, optimizers of LibTorch and of a program's own, and additional actions of loops.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sdk/training/loop_trace.h"

namespace cox::test {

// A model with its own loss. Batches depend on the step and the rank.
struct LoopModel : torch::nn::Module {
  virtual at::Tensor outputs(int step, int rank) = 0;
  virtual at::Tensor loss(int step, int rank) = 0;
};

struct LoopState {
  LoopModel& model;
  torch::optim::Optimizer& optimizer;
  int step;
  int rank;
  std::vector<at::Tensor>& seen;  // values that the program read, also compared
};

// One loop. Empty fields mean: as in an ordinary loop.
struct ShardedLoop {
  std::string name;
  std::string model = "language";
  std::string optimizer = "adam";
  int steps = 4;
  int passes = 1;                // backward() before an update
  bool drops_gradients = true;   // zero_grad(true)
  bool optimizer_first = false;  // made before adopt()
  std::function<std::shared_ptr<torch::optim::Optimizer>(LoopModel&)> make_optimizer = {};
  std::function<at::Tensor(LoopModel&, int step, int rank)> loss = {};
  std::function<void(LoopState)> before_update = {};
  std::function<void(LoopState)> update = {};
  std::function<void(LoopState)> after_update = {};
};

std::vector<ShardedLoop> optimizers_and_models();
std::vector<ShardedLoop> loops_that_evaluate();
std::vector<ShardedLoop> loops_that_read_parameters();
std::vector<ShardedLoop> loops_that_read_gradients();
std::vector<ShardedLoop> loops_that_keep_averages();
// Returns loops in which some ranks are late, so that a read or write without waiting finds other
// values.
std::vector<ShardedLoop> loops_with_late_ranks();
std::vector<ShardedLoop> loops_with_wide_copies();
std::vector<ShardedLoop> loops_that_clip();
std::vector<ShardedLoop> loops_that_write_to_parameters();
std::vector<ShardedLoop> loops_that_replace_parameters();
std::vector<ShardedLoop> loops_that_write_to_gradients();
std::vector<ShardedLoop> loops_with_own_optimizers();
std::vector<ShardedLoop> loops_with_optimizers_on_lists();
std::vector<ShardedLoop> loops_with_other_losses();
std::vector<ShardedLoop> loops_with_inner_backward();
std::vector<ShardedLoop> loops_with_odd_backward();

std::shared_ptr<LoopModel> make_loop_model(const std::string& name);

// Runs the loop. Returns the state after each step, and the values read.
std::vector<at::Tensor> trained(const ShardedLoop& loop, const Adopt& adopt, int rank);

}  // namespace cox::test
