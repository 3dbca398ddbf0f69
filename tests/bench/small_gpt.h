// What the benchmarks of C2 train: a small GPT-2 on random bytes, two of them from the same seed,
// one for Coxswain and one for a loop without it.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/dataset.h"
#include "sdk/examples/gpt2/model.h"
#include "tests/bench/averaging.h"

namespace cox::bench {

inline constexpr std::int64_t kSequences = 4;  // a rank and step
inline constexpr std::int64_t kLength = 128;   // bytes a sequence

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

// The same training without Coxswain: no session, no control plane, no blocks; over more than one
// rank the same flat buckets, all-reduces and norm. One per rank; step() is collective.
class PlainLoop {
 public:
  PlainLoop(Trained& trained, const Dataset& dataset, std::unique_ptr<Averaging> averaging);
  void step();

 private:
  Trained& trained_;
  const Dataset& dataset_;
  std::unique_ptr<Averaging> averaging_;  // null with one rank
  std::vector<std::int64_t> order_;       // shuffled, as any training reads its data
  std::size_t next_ = 0;
};

}  // namespace cox::bench
