#include "coordinator/runtime/mask_relay.h"

#include <algorithm>

namespace cox::runtime {
namespace {

bool same_set(const wire::FrameHeader& a, const wire::FrameHeader& b) {
  return a.id == b.id && a.base_distance == b.base_distance && a.continuations == b.continuations;
}

}  // namespace

Status MaskRelay::pass(std::span<const std::byte> bytes) {
  const auto view = wire::open_frame(bytes);
  if (!view.ok()) return view.status();
  const wire::FrameHeader& header = view->header;
  if (header.kind == wire::FrameKind::unchanged) return ok_status();
  if (header.id < plan_.id) return ok_status();
  wire::Frame frame;
  frame.size = static_cast<std::uint16_t>(std::min(bytes.size(), frame.bytes.size()));
  std::copy_n(bytes.begin(), frame.size, frame.bytes.begin());
  if (!same_set(header, plan_)) frames_.clear();
  plan_ = header;
  // One that is there already was sent again for a rank that asked, so all look again.
  if (std::find(frames_.begin(), frames_.end(), frame) == frames_.end()) frames_.push_back(frame);
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& f : frames_) set.push_back(f.used());
  return board_.publish(set);
}

}  // namespace cox::runtime
