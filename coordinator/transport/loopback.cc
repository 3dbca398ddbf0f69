#include "coordinator/transport/loopback.h"

#include <algorithm>

#include "coordinator/transport/loopback_communicator.h"
#include "coordinator/transport/loopback_hub.h"

namespace cox::transport {

LoopbackWorld::LoopbackWorld(std::int32_t ranks, LoopbackOptions options)
    : state_(std::make_shared<LoopbackState>(std::move(options))) {
  const std::int32_t per_node = state_->options().ranks_per_node;
  std::vector<NodeId> nodes;
  for (std::int32_t r = 0; r < std::max(1, ranks); ++r) {
    nodes.emplace_back(per_node > 0 ? r / per_node : 0);
  }
  hub_ = std::make_shared<LoopbackHub>("world", std::move(nodes), state_);
}

std::unique_ptr<Communicator> LoopbackWorld::communicator(RankId rank) const {
  return std::make_unique<LoopbackCommunicator>(hub_, rank);
}

Status LoopbackWorld::verify() const {
  return state_->verify();
}

}  // namespace cox::transport
