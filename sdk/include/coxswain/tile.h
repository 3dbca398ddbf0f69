// tile() applies a function to parts of a tensor, one after the other, so that what the function
// needs in between exists for one part at a time. The loop is the same under every memory action;
// an action chooses only whether a tile's saved tensors are kept, or dropped and computed again, so
// actions change no bit. The number n of tiles does change bits: kernels round rows differently in
// other company, and sums over rows (weight gradients, a mean loss) are added in another order.
// Those are within (n + 8) * eps * (sum of the absolute terms) of the untiled ones, where eps is
// that of the type they are added in.
//
// What is computed again are the operators of the tile, not the function, which runs once and may
// capture what it likes. Plans tile the blocks of a Trainer's model or of a loop of ours; in the
// loop of an adopted model the parts of tile() are kept, or recomputed with their block.
//
// Called by the thread that trains; nothing here communicates. cox::Error for arguments that cannot
// work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace cox {

// Splits x into n parts along dim, applies f to each and joins the results along dim. Inside a
// block whose action is tile each part's saved tensors are dropped and made again in the backward
// pass, elsewhere they are kept. REQUIRES: n >= 1.
//
//   y = cox::tile([&](const at::Tensor& rows) { return at::gelu(rows.mm(weight)); }, x, 0, 8);
[[nodiscard]] at::Tensor tile(const std::function<at::Tensor(const at::Tensor& part)>& f,
                              const at::Tensor& x, std::int64_t dim, std::int64_t n);

struct TiledCrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets of this value count for nothing
  double label_smoothing = 0.0;      // in [0, 1]
  at::Tensor bias;                   // [classes], may be undefined
};

// Returns the mean cross-entropy of the logits hidden * weight^T over the targets that are not
// ignored, added up in float32 at least; NaN when all are ignored. The logits exist for one tile of
// rows at a time, [rows / tiles, classes], whatever the plan says of the block. hidden [...,
// width], weight [classes, width], targets int64 of hidden's leading sizes. tiles >= 1. Where no
// session has been started, the process's first backward pass must not have been started yet.
[[nodiscard]] at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& targets, std::int64_t tiles,
                                             const TiledCrossEntropyOptions& options = {});

}  // namespace cox
