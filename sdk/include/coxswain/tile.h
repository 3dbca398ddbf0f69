// tile() applies a function to parts of a tensor, one after the other, so that what the function
// needs in between exists for one part at a time. The loop is the same under every memory action;
// an action chooses only whether a tile's saved tensors are kept, or dropped and computed again, so
// actions change no bit. The number n of tiles does change bits: kernels round rows differently in
// other company, and sums over rows (weight gradients, a mean loss) are added in another order.
// Those are within (n + 8) * eps * (sum of the absolute terms) of the untiled ones, where eps is
// that of the type they are added in.
//
// Called by the thread that trains; nothing here communicates. cox::Error for arguments that cannot
// work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coxswain/detail/rerun.h"
#include "coxswain/detail/run_contract.h"
#include "coxswain/owned.h"

namespace cox {
namespace detail {

// TileRule says where a tile's saved tensors are dropped and recomputed in backward.
enum class TileRule {
  in_tile_blocks,         // in a block whose action is tile
  and_outside_of_blocks,  // there, and where no block runs
};

// TileCall is one tile's call. Its owner calls input() for each input where runs_again() says so,
// begin(), the function, end().
class TileCall {
 public:
  TileCall(std::string_view name, TileRule rule);
  ~TileCall();
  TileCall(const TileCall&) = delete;
  TileCall& operator=(const TileCall&) = delete;

  bool runs_again() const { return work_ != nullptr; }
  void input(const at::Tensor& tensor);
  void begin(std::unique_ptr<Rerun> again);
  void end();

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

// Returns n parts of near-equal length along dim, the longer ones first; fewer where the dimension
// is shorter than n.
std::vector<at::Tensor> tiles_of(const at::Tensor& x, std::int64_t dim, std::int64_t n);
at::Tensor join_tiles(const std::vector<at::Tensor>& tiles, std::int64_t dim);

template <class F, class... Inputs>
at::Tensor call_tile(std::string_view name, TileRule rule, const F& function,
                     const Inputs&... inputs) {
  TileCall call(name, rule);
  if (call.runs_again()) {
    const auto on_input = [&](const at::Tensor& tensor) { call.input(tensor); };
    (for_each_tensor(inputs, on_input), ...);
    using Function = std::decay_t<F>;
    const auto again = [kept = Function(function)](const KeptType<Inputs>&... parts) {
      return std::invoke(kept, parts...);
    };
    constexpr bool kMayStop = !std::is_nothrow_invocable_v<const F&, const Inputs&...>;
    call.begin(std::make_unique<KeptCall<std::decay_t<decltype(again)>, KeptType<Inputs>...>>(
        again, kMayStop, inputs...));
  }
  at::Tensor out = std::invoke(function, inputs...);
  call.end();
  return out;
}

}  // namespace detail

// Splits x into n parts along dim, applies f(part, more...) to each and joins the results along
// dim. f and the arguments in `more` follow the contract of cox::run (run.h): f has no captures or
// is cox::owned(f), and returns a tensor. Inside a block whose action is tile each part is computed
// again in the backward pass, elsewhere it is saved. REQUIRES: n >= 1.
//
//   y = cox::tile([](const at::Tensor& rows, const at::Tensor& w) { return at::gelu(rows.mm(w)); },
//                 x, 0, 8, weight);
template <class F, class... Inputs>
[[nodiscard]] at::Tensor tile(const F& f, const at::Tensor& x, std::int64_t dim, std::int64_t n,
                              const Inputs&... more) {
  detail::check_function<F>();
  (detail::check_input<Inputs>(), ...);
  const auto& function = detail::unwrap_owned(f);
  static_assert(
      std::is_invocable_r_v<at::Tensor, decltype(function), const at::Tensor&, const Inputs&...>,
      "cox::tile: f must be callable as f(part, more...) and return at::Tensor");
  std::vector<at::Tensor> results;
  for (const at::Tensor& part : detail::tiles_of(x, dim, n)) {
    results.push_back(
        detail::call_tile("tile", detail::TileRule::in_tile_blocks, function, part, more...));
  }
  return detail::join_tiles(results, dim);
}

struct TiledCrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets of this value count for nothing
  double label_smoothing = 0.0;      // in [0, 1]
  at::Tensor bias;                   // [classes], may be undefined
};

// Returns the mean cross-entropy of the logits hidden * weight^T over the targets that are not
// ignored, added up in float32 at least; NaN when all are ignored. The logits exist for one tile of
// rows at a time, [rows / tiles, classes], unless the running block keeps what it saves. hidden
// [..., width], weight [classes, width], targets int64 of hidden's leading sizes. tiles >= 1.
// Outside of blocks this works from the first call on, but the process's first backward pass must
// not have been started yet where no session was attached.
[[nodiscard]] at::Tensor tiled_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                             const at::Tensor& targets, std::int64_t tiles,
                                             const TiledCrossEntropyOptions& options = {});

}  // namespace cox
