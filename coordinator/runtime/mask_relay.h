// MaskRelay: a leader's last step with masks that came from another node, frame by frame: it shows
// them to the ranks of its node. Those may look seldom, so the frames of one plan stay on the board
// together until frames of another one come. Damaged frames are dropped before they spread.
// Thread rule: the leader's training thread, the board's only writer.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/wire/frame.h"

namespace cox::runtime {

class MaskRelay {
 public:
  explicit MaskRelay(transport::MaskBoard board) : board_(board) {}

  // data_loss when the bytes are no frame: nothing changes then. Frames of older plans and ones
  // that lie there already are no news.
  Status pass(std::span<const std::byte> frame);

 private:
  transport::MaskBoard board_;
  wire::FrameHeader plan_{};  // what the frames on the board belong to
  std::vector<wire::Frame> frames_;
};

}  // namespace cox::runtime
