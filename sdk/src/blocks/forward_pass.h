// ForwardPass tells where a model's forward pass ends because another one begins, with no backward
// pass between the two: two views of a batch, the steps of a recurrent cell, an evaluation with
// gradients on. VisitWatch asks it at each visit of a block. Training thread only.
//
// A pass is over
// - when the operator that began the pass comes again, on the same parameter and from another
//   block; or
// - when the pass's first block comes again in another way, and the program has let go of what the
//   pass held. A head that uses the embedding's weights comes so, too, but still holds its pass.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "coordinator/core/units.h"

namespace cox::detail {

// VisitBegin is an operator that begins a visit of a block, by reading a parameter.
struct VisitBegin {
  BlockId block;
  const c10::StorageImpl* parameter;  // an address, never followed
  c10::OperatorHandle reader;
};

class ForwardPass {
 public:
  // Returns the bytes of all tensors now; 0 if tensors are not counted.
  using LiveBytes = std::function<std::int64_t()>;
  // Without a count only the operators tell passes apart.
  void count_with(LiveBytes live_bytes) { live_bytes_ = std::move(live_bytes); }

  // Returns whether the visit belongs to another pass than the visits before it.
  bool is_over_at(const VisitBegin& visit) const;
  void note(const VisitBegin& visit);
  void end();

 private:
  std::int64_t live_bytes() const { return live_bytes_ ? live_bytes_() : 0; }

  LiveBytes live_bytes_;
  std::optional<VisitBegin> first_;
  bool has_left_ = false;             // the pass visited another block than the first
  std::int64_t bytes_at_first_ = 0;   // at the first visit
  std::int64_t most_held_bytes_ = 0;  // beyond those, at the begin of a later visit
};

}  // namespace cox::detail
