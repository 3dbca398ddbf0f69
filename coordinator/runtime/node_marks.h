// NodeMarks: a MarkBoard with the marks of a node's ranks, in memory that the ranks share, and the
// rank of each slot. The board is small and shared whatever path reports and plans take. A rank
// that can share no memory has a board of its own and is alone there. Made at the start of a job;
// owned by the rank's ControlPlane.
#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "coordinator/runtime/node_group.h"
#include "coordinator/transport/shared/mark_board.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::runtime {

struct NodeMarks {
  transport::SharedSegment memory;
  transport::MarkBoard board;
  std::vector<RankId> ranks;  // by slot, ascending
  std::size_t slot = 0;       // of this rank

  transport::MarkWriter writer() const { return board.writer(slot); }
  // Returns the marks of the ranks on the board.
  std::vector<RankMark> read(transport::MarkClock::time_point now,
                             transport::MarkBoard::Look look) const;
  // Returns the marks on the board with the state of each process, and the marks of ranks on other
  // nodes that delay others, as the coordinator reports. Ascending ranks.
  std::vector<RankMark> read_all_known(transport::MarkClock::time_point now) const;
};

// Makes the board of a node. Collective over the ranks of the node; blocks by polling.
Result<NodeMarks> set_up_marks(NodeGroup& nodes, RankId self, const Log& log);

}  // namespace cox::runtime
