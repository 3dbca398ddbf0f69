// tile() applies a function to parts of a tensor, one after the other. Intermediate results then
// exist for one part at a time. The loop is the same under every memory action. The action only
// selects whether a tile's saved tensors are kept or recomputed, so actions change no bit.
//
// Thread rule: the training thread. Does not communicate. Throws cox::Error for arguments that
// cannot work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace cox {

// Splits x into n parts along dim, applies f to each and joins the results along dim. Inside a
// block with action tile, each part's saved tensors are dropped and recomputed in the backward
// pass. Elsewhere saved tensors are kept. REQUIRES: n >= 1.
//
//   y = cox::tile([&](const at::Tensor& rows) { return at::gelu(rows.mm(weight)); }, x, 0, 8);
//
// The number n of tiles changes bits. A kernel may round a row differently in a batch of another
// size, and sums over rows (weight gradients, a mean loss) are added in another order. The
// difference to the untiled sums is at most (n + 8) * eps * (sum of the absolute terms); eps
// belongs to the type of the sum.
//
// Recomputing runs the tile's operators again. The function itself runs once and may capture
// anything. Plans tile the blocks of a Trainer's model and of a loop of your own. In the loop of an
// adopted model the parts of tile() are kept, or recomputed with their block.
[[nodiscard]] at::Tensor tile(const std::function<at::Tensor(const at::Tensor& part)>& f,
                              const at::Tensor& x, std::int64_t dim, std::int64_t n);

struct TiledCrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets of this value are not counted
  double label_smoothing = 0.0;      // in [0, 1]
  at::Tensor bias;                   // [classes], may be undefined
};

// Returns the mean cross-entropy of the logits hidden * weight^T over the targets that are not
// ignored, summed in float32 or wider. Returns NaN if all targets are ignored. The logits exist for
// one tile of rows at a time, [rows / tiles, classes], under every plan. Shapes: hidden [...,
// width], weight [classes, width], targets int64 of hidden's leading sizes. REQUIRES: tiles >= 1.
// Without a started session, the first call comes before the process's first backward pass.
[[nodiscard]] at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& targets, std::int64_t tiles,
                                             const TiledCrossEntropyOptions& options = {});

}  // namespace cox
