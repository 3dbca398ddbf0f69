#include <chrono>
#include <thread>

#include "tests/sdk/shard/loop_parts.h"

namespace cox::test {
namespace {

namespace optim = torch::optim;
using at::Tensor;

void come_late() {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void read_all(LoopState at) {
  const at::NoGradGuard no_grad;
  for (const Tensor& p : at.model.parameters()) at.seen.push_back(p.abs().sum());
}

// Returns wide copies of a model's narrow parameters, for the optimizer's updates.
Tensors wide_copies(const LoopModel& model) {
  Tensors wide;
  for (const Tensor& p : model.parameters())
    wide.push_back(p.detach().to(at::kFloat).clone().requires_grad_(p.requires_grad()));
  return wide;
}

ShardedLoop with_wide_copies(const std::string& name, double scale) {
  ShardedLoop loop{name, "language, bf16"};
  const Kept copies = kept();
  loop.make_optimizer = [copies](LoopModel& model) {
    Tensors& wide = (*copies)[&model];
    wide = wide_copies(model);
    return std::make_shared<optim::AdamW>(wide, optim::AdamWOptions(0.01));
  };
  loop.loss = [scale](LoopModel& model, int step, int rank) {
    return model.loss(step, rank) * scale;
  };
  loop.update = [copies, scale](LoopState at) {
    const Tensors& wide = copies->at(&at.model);
    const Tensors narrow = at.model.parameters();
    for (std::size_t i = 0; i < wide.size(); ++i) {
      if (narrow[i].grad().defined())
        wide[i].mutable_grad() = narrow[i].grad().to(at::kFloat) / scale;
    }
    at.optimizer.step();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      Tensor(narrow[i]).copy_(wide[i]);
      at.seen.push_back(wide[i].detach().clone());
    }
  };
  return loop;
}

}  // namespace

std::vector<ShardedLoop> loops_with_late_ranks() {
  std::vector<ShardedLoop> loops;
  loops.push_back(before("a rank that reads before its update, late", [](LoopState at) {
    if (at.rank == 0) come_late();
    read_all(at);
  }));
  loops.push_back(before("a rank that is late to its update", [](LoopState at) {
    if (at.rank == 1) come_late();
  }));
  loops.back().after_update = read_all;
  loops.push_back(after("a rank that evaluates while others write", [](LoopState at) {
    const at::NoGradGuard no_grad;
    if (at.rank == 0) {
      come_late();
      at.seen.push_back(at.model.outputs(100 + at.step, 0));
    }
    for (Tensor& p : at.model.parameters()) p.mul_(0.999);
  }));
  loops.push_back(losing("a rank that is late to its backward pass", "language",
                         [](LoopModel& model, int step, int rank) {
                           const Tensor loss = model.loss(step, rank);
                           if (rank == 1) come_late();
                           return loss;
                         }));
  return loops;
}

std::vector<ShardedLoop> loops_with_wide_copies() {
  std::vector<ShardedLoop> loops;
  loops.push_back(with_wide_copies("bf16 with wide copies that an optimizer updates", 1));
  loops.push_back(with_wide_copies("bf16 with wide copies and a scaled loss", 1024));
  return loops;
}

}  // namespace cox::test
