// BatchGrowth compares the input of blocks with their input while memory was measured. The measure
// is the number of elements, without parameters, that the first operator of each visit reads. A
// block's saved bytes grow with its input, so a visit with larger input gets room before it saves
// anything. Owned by Adoption; training thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/core/units.h"
#include "coxswain/session.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/training/adopted_models.h"

namespace cox::detail {

class BatchGrowth {
 public:
  // Begins to measure: memory is measured with the batches that enter from now on.
  void begin_measuring(std::size_t blocks) { measured_.resize(blocks); }
  void forget_measured() { measured_.clear(); }
  void begin_step() { growth_ = 1; }
  // Begins a forward pass, which counts alone.
  void begin_forward() { entered_.assign(measured_.size(), 0); }
  // Records that the running operator begins a visit of a block.
  void enter_block() { enters_block_ = !measured_.empty(); }
  bool wants_calls() const { return enters_block_; }
  // Reads the operator that begins a visit. An operator on parameters alone (a cast, say) is
  // skipped. Returns input / measured input if the ratio is above the growth of the last
  // make_room().
  std::optional<double> look(const OperatorCall& call, BlockId block, const AdoptedModels& models);
  // Makes room for `growth` times the measured size in the rest of the step.
  void make_room(Session& session, double growth);
  // Records that memory was measured with this pass's inputs. The largest of several such passes
  // counts.
  void note_measured();

 private:
  std::vector<std::int64_t> measured_;  // by block; empty if memory is not measured
  std::vector<std::int64_t> entered_;   // in this forward pass
  bool enters_block_ = false;           // until the first operator of a visit has been read
  double growth_ = 1;                   // in the open step
  double told_ = 1;                     // largest growth that was logged
};

}  // namespace cox::detail
