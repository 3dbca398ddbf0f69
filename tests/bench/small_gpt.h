// The model of the C2 benchmarks: a small GPT-2 on random bytes, trained with Coxswain and in plain
// loops. All loops share the same weights and optimizer state, so that the place in memory favours
// none.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/dataset.h"
#include "sdk/examples/gpt2/model.h"
#include "tests/bench/averaging.h"

namespace cox::bench {

inline constexpr std::int64_t kSequences = 4;  // a rank and step
inline constexpr std::int64_t kLength = 128;   // bytes a sequence

// The work of a step beside backward and update.
struct StepWork {
  std::int64_t sequences = kSequences;  // a rank and step
  double clip_norm = 0;                 // 0 = gradients are not clipped
  // Shuffles the samples. Each loop has its own order, because another loop's samples are in the
  // caches.
  std::uint64_t order_seed = 7;
};

class RandomBytes final : public Dataset {
 public:
  explicit RandomBytes(std::int64_t samples);
  std::int64_t size() const override { return tokens_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  at::Tensor tokens_;  // int64 [samples, kLength + 1]
};

struct Trained {
  gpt2::Gpt2 model;
  AdamW optimizer;
};
Trained make_trained();

// Returns a model whose own parameters share the memory of those of `model`.
gpt2::Gpt2 twin_of(const gpt2::Gpt2& model);

// The same training without Coxswain: no session, no control plane, no blocks. Several ranks use
// the same buckets, sums and norm. Trains the weights of `trained` through a twin, which no session
// knows. One object for each rank; step() is collective.
class PlainLoop {
 public:
  // `averaging` averages the twin's parameters.
  PlainLoop(Trained& trained, gpt2::Gpt2 twin, const Dataset& dataset, const StepWork& work,
            std::unique_ptr<Averaging> averaging);
  void step();

 private:
  void hand_over_gradients();
  void clip(std::optional<double> known_norm);

  Trained& trained_;
  gpt2::Gpt2 twin_;
  const Dataset& dataset_;
  const StepWork work_;
  std::unique_ptr<Averaging> averaging_;  // null with one rank
  std::vector<at::Tensor> from_;          // parameters of the twin
  std::vector<at::Tensor> to_;            // the trained ones
  std::vector<std::int64_t> order_;       // shuffled, as any training reads its data
  std::size_t next_ = 0;
};

}  // namespace cox::bench
