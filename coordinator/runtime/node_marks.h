// NodeMarks: where the marks of a node's ranks lie, and whose they are: a MarkBoard in memory that
// the ranks of a node share, whatever path reports and plans take, since it is small. A rank that
// can share no memory has a board of its own and is alone on it. Set up at the start of a job;
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
  // The marks of the ranks that share this board.
  std::vector<RankMark> read(transport::MarkClock::time_point now,
                             transport::MarkBoard::Look look) const;
  // Those marks with the state of their processes, and the marks of other nodes' ranks that the
  // coordinator says others wait for; ascending ranks.
  std::vector<RankMark> read_all_known(transport::MarkClock::time_point now) const;
};

// Collective over the ranks of the node; waits by polling.
Result<NodeMarks> set_up_marks(NodeGroup& nodes, RankId self, const Log& log);

}  // namespace cox::runtime
