#include "coordinator/transport/loopback_communicator.h"

#include <algorithm>
#include <cstring>

#include "coordinator/transport/wait.h"

namespace cox::transport {
namespace {

constexpr std::byte kPoison{0xDB};  // read as a float: about -1.2e17

ConstBytes as_bytes(const std::int32_t& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

LoopbackCommunicator::~LoopbackCommunicator() {
  requests_.for_each_in_flight([this](const Slot& slot) {
    hub_->state().complain("rank " + std::to_string(rank_.value()) + " destroyed communicator " +
                           hub_->name() + " with operation " +
                           std::to_string(slot.operation->number) + " (" + describe(slot.call) +
                           ") in flight; test every request until it says done");
  });
  hub_->close();
}

Result<Request> LoopbackCommunicator::start_gather(ConstBytes send, Bytes receive, RankId root) {
  return start({Operation::gather, send.size(), root}, {send, receive}, {});
}

Result<Request> LoopbackCommunicator::start_broadcast(Bytes buffer, RankId root) {
  const ConstBytes send = rank_ == root ? ConstBytes(buffer) : ConstBytes();
  return start({Operation::broadcast, buffer.size(), root}, {send, buffer}, {});
}

Result<Request> LoopbackCommunicator::start_all_gather(ConstBytes send, Bytes receive) {
  return start({Operation::all_gather, send.size()}, {send, receive}, {});
}

Result<Request> LoopbackCommunicator::start_all_reduce(Bytes buffer, const Reduction& reduction) {
  Status fits = check_reduction(reduction, buffer.size());
  if (!fits.ok()) return fits;
  return start({Operation::all_reduce, buffer.size(), RankId(-1), reduction.element_bytes},
               {buffer, buffer}, reduction);
}

Result<Request> LoopbackCommunicator::start_reduce(Bytes buffer, const Reduction& reduction,
                                                   RankId root) {
  Status fits = check_reduction(reduction, buffer.size());
  if (!fits.ok()) return fits;
  return start({Operation::reduce, buffer.size(), root, reduction.element_bytes}, {buffer, buffer},
               reduction);
}

Result<Request> LoopbackCommunicator::start_reduce_scatter(ConstBytes send, Bytes receive,
                                                           const Reduction& reduction) {
  Status fits = check_reduction(reduction, send.size());
  if (!fits.ok()) return fits;
  return start({Operation::reduce_scatter, send.size(), RankId(-1), reduction.element_bytes},
               {send, receive}, reduction);
}

Result<Request> LoopbackCommunicator::start(const Call& call, const Buffers& buffers,
                                            const Reduction& reduction) {
  Status fits = check_call(call, buffers, rank_, size());
  if (!fits.ok()) return fits;
  Result<LoopbackOperation*> operation = hub_->start(rank_, call, buffers.send, reduction);
  if (!operation.ok()) return operation.status();
  const bool separate = buffers.receive.data() != buffers.send.data();
  const bool receives = call.operation != Operation::gather || rank_ == call.root;
  if (separate && receives) {
    std::fill(buffers.receive.begin(), buffers.receive.end(), kPoison);
  }
  const auto taken = requests_.take();
  const Fault fault = hub_->state().options().faults.at(hub_->name(), rank_, (*operation)->number);
  *taken.slot = {*operation, call, buffers, fault, 0};
  return taken.request;
}

Result<Progress> LoopbackCommunicator::test(Request& request) {
  if (!request.active()) return Progress::done;
  Slot* slot = requests_.find(request);
  if (slot == nullptr) return stale_request();
  Result<Progress> progress = poll(*slot);
  if (!progress.ok() || *progress == Progress::done) requests_.release(request);
  return progress;
}

Result<Progress> LoopbackCommunicator::poll(Slot& slot) {
  LoopbackOperation& operation = *slot.operation;
  if (!operation.complete.load(std::memory_order_acquire)) {
    Status broken = hub_->broken();
    if (!broken.ok()) return broken;
    return Progress::pending;
  }
  if (slot.fault.kind == FaultKind::never) return Progress::pending;
  if (slot.fault.kind == FaultKind::delay && slot.polls++ < slot.fault.polls) {
    return Progress::pending;
  }
  Status delivered = deliver(slot);
  if (slot.fault.kind == FaultKind::error) {
    delivered =
        unavailable("operation " + std::to_string(operation.number) + " on communicator " +
                    hub_->name() + " (" + describe(slot.call) + "): failed by the fault script");
  }
  hub_->leave(operation);
  if (!delivered.ok()) return delivered;
  return Progress::done;
}

Status LoopbackCommunicator::deliver(const Slot& slot) {
  const LoopbackOperation& operation = *slot.operation;
  const auto& given = operation.parts[static_cast<std::size_t>(rank_.value())].given;
  if (!std::equal(given.begin(), given.end(), slot.buffers.send.begin(), slot.buffers.send.end())) {
    return failed_precondition("operation " + std::to_string(operation.number) +
                               " on communicator " + hub_->name() + " (" + describe(slot.call) +
                               "): rank " + std::to_string(rank_.value()) +
                               " changed the buffer while it was in flight; leave it alone until "
                               "test() says done");
  }
  const Bytes receive = slot.buffers.receive;
  switch (slot.call.operation) {
    case Operation::gather:
      if (rank_ == slot.call.root) deliver_gather(slot);
      break;
    case Operation::broadcast:
      if (rank_ != slot.call.root) deliver_broadcast(slot);
      break;
    case Operation::all_gather:
      for (std::size_t r = 0; r < operation.parts.size(); ++r) {
        std::ranges::copy(operation.parts[r].given,
                          receive.begin() + static_cast<std::ptrdiff_t>(r * slot.call.bytes));
      }
      break;
    case Operation::all_reduce:
      std::ranges::copy(operation.combined, receive.begin());
      break;
    case Operation::reduce:
      if (rank_ == slot.call.root) std::ranges::copy(operation.combined, receive.begin());
      break;
    case Operation::reduce_scatter: {
      const std::size_t offset = static_cast<std::size_t>(rank_.value()) * receive.size();
      std::ranges::copy(std::span(operation.combined).subspan(offset, receive.size()),
                        receive.begin());
      break;
    }
    default:
      break;
  }
  return ok_status();
}

void LoopbackCommunicator::deliver_gather(const Slot& slot) {
  const FaultScript& script = hub_->state().options().faults;
  const LoopbackOperation& operation = *slot.operation;
  gathered_before_.resize(script.empty() ? 0 : operation.parts.size());
  for (std::size_t r = 0; r < operation.parts.size(); ++r) {
    std::vector<std::byte> bytes = operation.parts[r].given;
    if (!script.empty()) {
      const RankId sender(static_cast<std::int32_t>(r));
      damage(script.at(hub_->name(), sender, operation.number), bytes, gathered_before_[r]);
      gathered_before_[r] = operation.parts[r].given;
    }
    std::ranges::copy(
        bytes, slot.buffers.receive.begin() + static_cast<std::ptrdiff_t>(r * slot.call.bytes));
  }
}

void LoopbackCommunicator::deliver_broadcast(const Slot& slot) {
  const auto root = static_cast<std::size_t>(slot.call.root.value());
  std::vector<std::byte> bytes = slot.operation->parts[root].given;
  if (!hub_->state().options().faults.empty()) {
    damage(slot.fault, bytes, received_before_);
    received_before_ = slot.operation->parts[root].given;
  }
  std::ranges::copy(bytes, slot.buffers.receive.begin());
}

Result<LoopbackOperation*> LoopbackCommunicator::run_blocking(const Call& call, ConstBytes given) {
  Result<LoopbackOperation*> started = hub_->start(rank_, call, given, {});
  if (!started.ok()) return started;
  const std::string what = describe(call) + " on communicator " + hub_->name();
  Waiter waiter(
      with_timeout(wait_policy(size(), 1), hub_->state().options().start_up_timeout, what.c_str()));
  while (!(*started)->complete.load(std::memory_order_acquire)) {
    Status broken = hub_->broken();
    if (!broken.ok()) return broken;
    Status paused = waiter.pause();
    if (!paused.ok()) return paused;
  }
  return started;
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::derive(Operation operation,
                                                                   std::int32_t color) {
  Result<LoopbackOperation*> done = run_blocking({operation}, as_bytes(color));
  if (!done.ok()) return done.status();
  const LoopbackOperation::Part& part = (*done)->parts[static_cast<std::size_t>(rank_.value())];
  auto child = std::make_unique<LoopbackCommunicator>(part.child, part.child_rank);
  hub_->leave(**done);
  return std::unique_ptr<Communicator>(std::move(child));
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::split(std::int32_t color) {
  Status fits = check_color(color);
  if (!fits.ok()) return fits;
  return derive(Operation::split, color);
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::duplicate() {
  return derive(Operation::duplicate, 0);
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::split_by_node() {
  return derive(Operation::split_by_node, hub_->node(rank_).value());
}

Result<SharedSegment> LoopbackCommunicator::shared_segment(std::size_t bytes) {
  if (ranks_on_node() != size()) {
    return failed_precondition("shared_segment: expected ranks of one node, found " +
                               std::to_string(size() - ranks_on_node()) +
                               " on others; call it on what split_by_node() returns");
  }
  Result<LoopbackOperation*> done = run_blocking({Operation::shared_segment, bytes}, {});
  if (!done.ok()) return done.status();
  SharedSegment segment = (*done)->segment;
  hub_->leave(**done);
  const std::size_t limit = hub_->state().options().shared_segment_limit_bytes;
  if (bytes > limit) {
    return resource_exhausted("shared segment: expected room for " + std::to_string(bytes) +
                              " bytes, found " + std::to_string(limit) +
                              " (the limit of this loopback world)");
  }
  return segment;
}

}  // namespace cox::transport
