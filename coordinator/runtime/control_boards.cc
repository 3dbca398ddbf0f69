#include "coordinator/runtime/control_boards.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/transport/wait.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {

namespace {

using transport::BoardShape;
using transport::Communicator;
using transport::MaskBoard;
using transport::SharedSegment;
using transport::SignalBoard;
using transport::take;

BoardShape shape_for(std::size_t ranks, const JobFacts& job) {
  return {static_cast<std::int32_t>(ranks), static_cast<std::uint32_t>(job.blocks.size())};
}

Result<BoardPair> lay_out(SharedSegment memory, const BoardShape& shape, std::size_t capacity,
                          Role role) {
  const std::size_t split = transport::round_up(SignalBoard::bytes_needed(shape));
  const auto front = memory.bytes().first(split);
  const auto back = memory.bytes().subspan(split);
  auto signals =
      role == Role::formats ? SignalBoard::format(front, shape) : SignalBoard::attach(front, shape);
  if (!signals.ok()) return signals.status();
  auto masks = role == Role::formats ? MaskBoard::format(back, capacity) : MaskBoard::attach(back);
  if (!masks.ok()) return masks.status();
  return BoardPair{std::move(memory), *signals, *masks};
}

std::size_t pair_bytes(const BoardShape& shape, std::size_t capacity) {
  return transport::round_up(SignalBoard::bytes_needed(shape)) +
         transport::round_up(MaskBoard::bytes_needed(capacity));
}

Result<BoardPair> private_boards(const BoardShape& shape, std::size_t capacity) {
  return lay_out(transport::heap_segment(pair_bytes(shape, capacity)), shape, capacity,
                 Role::formats);
}

Result<BoardPair> shared_boards(Communicator& node, const BoardShape& shape, std::size_t capacity) {
  auto segment = node.shared_segment(pair_bytes(shape, capacity));
  if (!segment.ok()) return segment.status();
  return laid_out(node, [&](Role role) { return lay_out(*segment, shape, capacity, role); });
}

Result<std::unique_ptr<LeaderExchange>> make_exchange(Communicator& world, const Topology& topology,
                                                      const JobFacts& job) {
  auto leaders = world.split(topology.is_leader() ? 0 : 1);
  if (!leaders.ok()) return leaders.status();
  if (!topology.is_leader()) return std::unique_ptr<LeaderExchange>();
  LeaderExchange::Links links;
  for (auto* link : {&links.gathers, &links.masks, &links.endings}) {
    if (Status made = take((*leaders)->duplicate(), *link); !made.ok()) return made;
  }
  return std::make_unique<LeaderExchange>(std::move(links), topology.self, topology.largest_node(),
                                          job.blocks.size());
}

// Returns nodes with one rank each, as pure MPI uses any machine.
std::vector<NodeId> everybody_alone(std::int32_t ranks) {
  std::vector<NodeId> nodes;
  for (std::int32_t r = 0; r < ranks; ++r) nodes.push_back(NodeId(r));
  return nodes;
}

// Makes mailboxes if all nodes can have shared memory; otherwise a board for each rank.
Result<Boards> node_boards(Communicator& world, NodeGroup& nodes, const JobFacts& job,
                           const ControlConfig& config, const Log& log) {
  const std::size_t capacity = mask_capacity_bytes(job);
  if (config.path != ControlPath::mpi) {
    const Topology topology = make_topology(world.rank(), nodes.node_of_rank);
    auto shared = shared_boards(*nodes.ranks, shape_for(topology.my_node().size(), job), capacity);
    std::uint64_t all_share = shared.ok() ? 1 : 0;
    Status agreed = all_reduce(world, all_share, transport::min_u64(), start_up_patience(world));
    if (!agreed.ok()) return agreed;
    if (all_share == 1) return Boards{topology, std::move(*shared)};
    if (config.path == ControlPath::mailbox) {
      return shared.ok() ? unavailable(
                               "control.path=mailbox: expected mailboxes on every rank, found a "
                               "rank without mailboxes; that rank's log has the cause; "
                               "control.path=auto uses MPI in that case")
                         : shared.status();
    }
    if (!shared.ok())
      log.warning(concat(shared.status().text(), "; control goes over MPI instead"));
  }
  auto alone = private_boards(shape_for(1, job), capacity);
  if (!alone.ok()) return alone.status();
  return Boards{make_topology(world.rank(), everybody_alone(world.size())), std::move(*alone)};
}

}  // namespace

std::size_t mask_capacity_bytes(const JobFacts& job) {
  // Frames have 160 bytes, 8 of them bookkeeping. A block takes a byte, a profile half a byte a
  // block and class, and runs of ranks and shares up to 8 bytes a rank. A valid plan may have
  // kMaxProfiles profiles.
  const std::size_t payload =
      4096 + job.blocks.size() * 513 + static_cast<std::size_t>(job.world_size) * 16;
  return std::clamp<std::size_t>(payload * 2, 64 << 10, 8 << 20);
}

Result<Boards> set_up_boards(Communicator& world, NodeGroup& nodes, const JobFacts& job,
                             const ControlConfig& config, const Log& log) {
  auto made = node_boards(world, nodes, job, config, log);
  if (!made.ok() || made->topology.nodes.size() == 1) return made;
  Boards& boards = *made;
  boards.path = boards.topology.largest_node() == 1 ? "mpi" : "mailbox+mpi";
  Status linked = take(make_exchange(world, boards.topology, job), boards.exchange);
  if (!linked.ok()) return linked;
  if (world.rank() != kRoot) return made;
  auto own = private_boards(shape_for(static_cast<std::size_t>(job.world_size), job),
                            mask_capacity_bytes(job));
  if (!own.ok()) return own.status();
  boards.own = std::move(*own);
  return made;
}

Status add_mask_broadcast(Communicator& world, Boards& boards, const JobFacts& job,
                          const ControlConfig& config, MaskBroadcast::Setup setup, const Log& log) {
  const bool is_wanted = config.masks != MaskPath::mpi && setup.make_lane && world.size() > 1;
  std::uint64_t wanting = is_wanted ? 1 : 0;
  setup.wait = start_up_patience(world);
  setup.limit = std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(config.nccl_seconds));
  Status made = all_reduce(world, wanting, transport::sum_u64(), setup.wait);
  if (!made.ok()) return made;
  if (wanting == static_cast<std::uint64_t>(world.size())) {
    made = take(MaskBroadcast::create(world, setup), boards.broadcast);
  } else if (wanting > 0 || config.masks == MaskPath::nccl) {
    made = unavailable("masks over NCCL: expected several ranks with a device each, found ",
                       wanting, " of ", world.size());
  }
  if (!made.ok() && config.masks == MaskPath::nccl) return made.with_context("control.masks=nccl");
  if (!made.ok() && world.rank() == kRoot) {  // the reason is the same on all ranks
    log.warning(concat(made.message(), "; masks go without NCCL"));
  }
  boards.no_broadcast = made;
  if (boards.broadcast == nullptr || world.rank() != kRoot) return ok_status();
  const std::size_t capacity = mask_capacity_bytes(job);
  boards.outbox_memory = transport::heap_segment(MaskBoard::bytes_needed(capacity));
  auto outbox = MaskBoard::format(boards.outbox_memory.bytes(), capacity);
  if (outbox.ok()) boards.outbox = *outbox;
  return outbox.status();
}

}  // namespace cox::runtime
