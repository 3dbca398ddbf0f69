// What policy `loss_scale` remembers between rounds. Read from and written to a PolicyState; a
// state of another number of blocks starts anew. Value.
#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/core/policy.h"

namespace cox {

struct LossScaleNotes {
  // Starts anew from a state that it cannot read.
  LossScaleNotes(const NumbersState& state, std::size_t blocks);
  PolicyState state() const;

  // In the order of the state.
  struct Numbers {
    double outside_quiet = 0;   // rounds until an overflow outside of blocks is told again
    double quiet_steps = 0;     // since the last overflow, largest 1e9
    double incidents = 0;       // overflows after some quiet, forgotten one by one
    double since_incident = 0;  // steps since the last one was counted or forgotten
    double high_rounds = 0;     // with evidence, in a row: too much underflow and room above
    double low_rounds = 0;      // ... little underflow, or no room
    double hurry = 0;           // 1 = the growth interval is short
    double distrust = 0;        // times that hurrying ended in an overflow
    double floor_rounds = 0;    // in a row with overflows at the smallest scale
    double largest = 0;         // gradient seen, with slow forgetting
    friend bool operator==(const Numbers&, const Numbers&) = default;
  };
  Numbers now;
  std::vector<double> quiet;  // per block: rounds until its overflow is told again
};

}  // namespace cox
