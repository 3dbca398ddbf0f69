#include "coordinator/runtime/node_marks.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::runtime {
namespace {

using transport::MarkBoard;
using transport::SharedSegment;

NodeMarks signed_by(RankId self, SharedSegment memory, const MarkBoard& board,
                    std::vector<RankId> ranks) {
  const auto place = std::ranges::find(ranks, self) - ranks.begin();
  NodeMarks marks{std::move(memory), board, std::move(ranks), static_cast<std::size_t>(place)};
  marks.writer().sign(transport::this_process());
  return marks;
}

Result<NodeMarks> alone(RankId self) {
  auto memory = transport::inherited_segment(MarkBoard::bytes_needed(1));
  if (!memory.ok()) return memory.status();
  const auto board = MarkBoard::format(memory->bytes(), 1);
  if (!board.ok()) return board.status();
  return signed_by(self, std::move(*memory), *board, {self});
}

}  // namespace

std::vector<RankMark> NodeMarks::read(transport::MarkClock::time_point now,
                                      MarkBoard::Look look) const {
  std::vector<RankMark> marks = board.read(now, look);
  for (std::size_t i = 0; i < marks.size(); ++i) marks[i].rank = ranks[i];
  return marks;
}

std::vector<RankMark> NodeMarks::read_all_known(transport::MarkClock::time_point now) const {
  auto marks = read(now, MarkBoard::Look::marks_and_processes);
  for (const RankMark& told : board.told(now)) {
    if (std::ranges::find(marks, told.rank, &RankMark::rank) == marks.end()) marks.push_back(told);
  }
  std::ranges::sort(marks, {}, &RankMark::rank);
  return marks;
}

Result<NodeMarks> set_up_marks(NodeGroup& nodes, RankId self, const Log& log) {
  transport::Communicator& node = *nodes.ranks;
  std::vector<RankId> members = make_topology(self, nodes.node_of_rank).my_node();
  if (members.size() == 1) return alone(self);
  auto memory = node.shared_segment(MarkBoard::bytes_needed(members.size()));
  if (!memory.ok() && memory.status().code() != StatusCode::resource_exhausted)
    return memory.status();
  if (!memory.ok()) {
    if (node.rank() == kRoot)
      log.warning(concat("ranks of one node cannot read each other's progress: ",
                         memory.status().message()));
    return alone(self);
  }
  const auto board = laid_out(node, [&](Role role) {
    return role == Role::formats ? MarkBoard::format(memory->bytes(), members.size())
                                 : MarkBoard::attach(memory->bytes(), members.size());
  });
  if (!board.ok()) return board.status();
  return signed_by(self, std::move(*memory), *board, std::move(members));
}

}  // namespace cox::runtime
