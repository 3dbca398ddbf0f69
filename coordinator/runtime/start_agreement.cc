#include "coordinator/runtime/start_agreement.h"

#include <chrono>

#include "coordinator/transport/wait.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {
namespace {

using transport::Communicator;

constexpr std::chrono::seconds kStartUpTimeout{120};

template <class T>
Status broadcast(Communicator& communicator, std::span<T> values) {
  return transport::finish(communicator,
                           communicator.start_broadcast(std::as_writable_bytes(values), kRoot),
                           start_up_patience(communicator));
}

}  // namespace

transport::WaitPolicy start_up_patience(const Communicator& communicator) {
  return transport::with_timeout(
      transport::wait_policy(communicator.ranks_on_node(), transport::usable_cores()),
      kStartUpTimeout, "all ranks to start");
}

Result<NodeGroup> find_nodes(Communicator& world) {
  auto ranks = world.split_by_node();
  if (!ranks.ok()) return ranks.status();
  std::int32_t lowest = world.rank().value();
  Status told = broadcast(**ranks, std::span<std::int32_t>(&lowest, 1));
  if (!told.ok()) return told;
  std::vector<std::int32_t> nodes(static_cast<std::size_t>(world.size()));
  Status gathered = transport::finish(
      world,
      world.start_all_gather(std::as_bytes(std::span<const std::int32_t>(&lowest, 1)),
                             std::as_writable_bytes(std::span<std::int32_t>(nodes))),
      start_up_patience(world));
  if (!gathered.ok()) return gathered;
  NodeGroup group{std::move(*ranks), {}};
  for (const std::int32_t node : nodes) group.node_of_rank.push_back(NodeId(node));
  return group;
}

Result<StartFacts> broadcast_start(Communicator& world, StartFacts mine) {
  Status told = broadcast(world, std::span<StartFacts>(&mine, 1));
  if (!told.ok()) return told;
  return mine;
}

Result<Plan> broadcast_first_plan(Communicator& world, const JobFacts& job, const Plan& mine) {
  Plan numbered = mine;
  numbered.id = {job.incarnation, 1};  // frames of number 0 would be old news to an assembler
  std::vector<wire::Frame> frames;
  if (world.rank() == kRoot) {
    auto encoded = wire::encode_plan(numbered, nullptr);
    if (!encoded.ok()) return encoded.status();
    frames = std::move(*encoded);
  }
  std::uint64_t count = frames.size();
  if (Status s = broadcast(world, std::span<std::uint64_t>(&count, 1)); !s.ok()) return s;
  frames.resize(count);
  if (Status s = broadcast(world, std::span<wire::Frame>(frames)); !s.ok()) return s;
  wire::PlanAssembler assembler(job, initial_plan(job));
  for (const wire::Frame& frame : frames) {
    if (auto fed = assembler.feed(frame.used()); !fed.ok()) return fed.status();
  }
  Plan first = assembler.held();
  first.id.number = 0;
  return first;
}

}  // namespace cox::runtime
