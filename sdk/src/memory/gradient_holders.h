// GradientHolders: who can say how a step of this job will treat its gradients. A reducer can, as
// long as it lives; where there are several the newest counts, and where there is none gradients
// stay in .grad. Asked by the trial before the first step. Training thread; owns none of them.
#pragma once

#include <functional>
#include <memory>
#include <ranges>
#include <vector>

#include "sdk/src/memory/sample_step.h"

namespace cox::detail {

class GradientHolders {
 public:
  using Word = std::function<GradientHolding(MicroBatches)>;

  void add(const std::shared_ptr<const Word>& holder) {
    std::erase_if(holders_, [](const auto& each) { return each.expired(); });
    holders_.push_back(holder);
  }

  GradientHolding held(MicroBatches micro_batches) const {
    for (const auto& each : std::views::reverse(holders_)) {
      if (const auto holder = each.lock()) return (*holder)(micro_batches);
    }
    return {};
  }

 private:
  std::vector<std::weak_ptr<const Word>> holders_;
};

}  // namespace cox::detail
