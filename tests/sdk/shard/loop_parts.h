// Parts for the lists of loops.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/sdk/shard/sharded_loops.h"

namespace cox::test {

using Tensors = std::vector<at::Tensor>;

inline ShardedLoop with(ShardedLoop loop, std::function<void(ShardedLoop&)> change) {
  change(loop);
  return loop;
}
inline ShardedLoop before(const std::string& name, std::function<void(LoopState)> run) {
  return with({name}, [&](ShardedLoop& loop) { loop.before_update = std::move(run); });
}
inline ShardedLoop after(const std::string& name, std::function<void(LoopState)> run) {
  return with({name}, [&](ShardedLoop& loop) { loop.after_update = std::move(run); });
}
inline ShardedLoop losing(const std::string& name, const std::string& model,
                          std::function<at::Tensor(LoopModel&, int, int)> loss) {
  return with({name, model}, [&](ShardedLoop& loop) { loop.loss = std::move(loss); });
}

// Calls `use` with each parameter that has a gradient.
inline void for_each_gradient(LoopModel& model, const std::function<void(at::Tensor)>& use) {
  for (at::Tensor& p : model.parameters()) {
    if (p.grad().defined()) use(p);
  }
}

// Tensors that a loop keeps between steps, separate for each model.
using Kept = std::shared_ptr<std::map<const LoopModel*, Tensors>>;
inline Kept kept() {
  return std::make_shared<std::map<const LoopModel*, Tensors>>();
}
// Returns the loop's kept tensors; empty in its first step, because a model may have an earlier
// one's address.
inline Tensors& tensors_of(const Kept& kept, const LoopState& at) {
  Tensors& own = (*kept)[&at.model];
  if (at.step == 0) own.clear();
  return own;
}

}  // namespace cox::test
