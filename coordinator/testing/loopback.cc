#include "coordinator/testing/loopback.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/transport/call.h"
#include "coordinator/transport/request_table.h"
#include "coordinator/transport/wait.h"

namespace cox::testing {

using namespace transport;

// Shared by all communicators of one world: the options, and complaints about misuse.
class LoopbackState {
 public:
  explicit LoopbackState(LoopbackOptions options) : options_(std::move(options)) {}
  const LoopbackOptions& options() const { return options_; }
  void complain(std::string complaint);
  Status verify() const;

 private:
  const LoopbackOptions options_;
  mutable std::mutex mutex_;
  std::vector<std::string> complaints_;
};

// The k-th operation of a communicator. Before `complete` is true, only `complete` may be read.
// Afterwards everything is constant until the operation is retired.
struct LoopbackOperation {
  // One rank's call and bytes, and its result of a split or duplicate.
  struct Part {
    Call call;  // `none` until the rank has started it
    std::vector<std::byte> given;
    std::shared_ptr<LoopbackHub> child;
    RankId child_rank{};
  };
  std::uint64_t number = 0;
  Call call;  // call of the first rank
  std::vector<Part> parts;
  std::int32_t started = 0;
  std::int32_t taken = 0;
  std::vector<std::byte> combined;  // result of a reduction
  SharedSegment segment;
  std::atomic<bool> complete{false};
};

// LoopbackHub holds the operations of one communicator that some rank has started and not every
// rank has finished. Matches the k-th calls of all ranks, computes the result when the last rank
// arrives, and fails for good when the calls differ. Any thread may call any function.
class LoopbackHub {
 public:
  LoopbackHub(std::string name, std::vector<NodeId> nodes, std::shared_ptr<LoopbackState> state);

  const std::string& name() const { return name_; }
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  NodeId node(RankId rank) const { return nodes_[static_cast<std::size_t>(rank.value())]; }
  std::int32_t ranks_on_node(RankId rank) const;
  LoopbackState& state() const { return *state_; }

  // Returns the number of the rank's next call.
  std::uint64_t next_number(RankId rank) const;
  // Starts the rank's next call. The operation stays valid until this rank leaves it. When the
  // ranks' calls differ, returns failed_precondition now and for every later call of any rank.
  Result<LoopbackOperation*> start(RankId rank, const Call& call, ConstBytes given,
                                   const Reduction& reduction);
  // Returns the failure that broke this hub, or ok. Cheap without a failure.
  Status broken() const;
  // Records that the rank is done with a complete operation.
  void leave(LoopbackOperation& operation);
  // Records that one of the communicators was destroyed.
  void close();

 private:
  LoopbackOperation& operation_for(std::uint64_t number);
  void finish(LoopbackOperation& operation, const Reduction& reduction);
  void make_children(LoopbackOperation& operation);
  void break_on_mismatch(const LoopbackOperation& operation);

  const std::string name_;
  const std::vector<NodeId> nodes_;
  const std::shared_ptr<LoopbackState> state_;

  mutable std::mutex mutex_;
  std::atomic<bool> is_broken_{false};
  Status failure_;
  std::vector<std::uint64_t> next_;  // number of each rank's next operation
  std::deque<std::unique_ptr<LoopbackOperation>> window_;
  std::vector<std::unique_ptr<LoopbackOperation>> retired_;  // kept for their memory
  std::uint64_t window_start_ = 0;                           // number of window_.front()
  std::int32_t open_;
  std::int32_t children_ = 0;
};

namespace {

// One rank's end of a LoopbackHub. Keeps the rank's requests, delivers results, applies scripted
// faults and checks that buffers in flight stay unchanged. One thread.
class LoopbackCommunicator final : public Communicator {
 public:
  LoopbackCommunicator(std::shared_ptr<LoopbackHub> hub, RankId rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackCommunicator() override;

  RankId rank() const override { return rank_; }
  std::int32_t size() const override { return hub_->size(); }
  std::int32_t ranks_on_node() const override { return hub_->ranks_on_node(rank_); }
  const char* kind() const override { return "loopback"; }

  Result<Progress> test(Request& request) override;

  Result<std::unique_ptr<Communicator>> duplicate() override;
  Result<std::unique_ptr<Communicator>> split_by_node() override;

 private:
  struct Slot {
    LoopbackOperation* operation = nullptr;
    Call call;
    Buffers buffers;
    Fault fault;
    std::uint32_t polls = 0;  // since the operation was complete
  };

  Result<Request> start(const Call& call, const Buffers& buffers,
                        const Reduction& reduction) override;
  Result<std::unique_ptr<Communicator>> part(std::int32_t color) override;
  Result<SharedSegment> share(std::size_t bytes) override;
  Result<Progress> poll(Slot& slot);
  Status deliver(const Slot& slot);
  void deliver_gather(const Slot& slot);
  void deliver_broadcast(const Slot& slot);
  Result<LoopbackOperation*> run_blocking(const Call& call, ConstBytes given);
  Result<std::unique_ptr<Communicator>> derive(Operation operation, std::int32_t color);

  const std::shared_ptr<LoopbackHub> hub_;
  const RankId rank_;
  RequestTable<Slot> requests_;
  // Bytes that a `repeat` fault delivers again. Kept only with a script.
  std::vector<std::vector<std::byte>> gathered_before_;
  std::vector<std::byte> received_before_;
};

constexpr std::byte kPoison{0xDB};  // read as a float: about -1.2e17

ConstBytes as_bytes(const std::int32_t& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::size_t index(RankId rank) {
  return static_cast<std::size_t>(rank.value());
}

std::string who_started_what(const LoopbackOperation& operation) {
  std::string text;
  for (std::size_t r = 0; r < operation.parts.size(); ++r) {
    const Call& call = operation.parts[r].call;
    text += concat(r == 0 ? "rank " : "; rank ", r, " ");
    text += call.operation == Operation::none ? "has not started it"
                                              : concat("started ", describe(call));
  }
  return text;
}

void combine(LoopbackOperation& operation, const Reduction& reduction) {
  operation.combined = operation.parts[0].given;
  const std::size_t count = operation.combined.size() / reduction.element_bytes;
  for (std::size_t r = 1; r < operation.parts.size(); ++r) {
    reduction.apply(operation.combined.data(), operation.parts[r].given.data(), count);
  }
}

}  // namespace

void LoopbackState::complain(std::string complaint) {
  const std::lock_guard lock(mutex_);
  complaints_.push_back(std::move(complaint));
}

Status LoopbackState::verify() const {
  const std::lock_guard lock(mutex_);
  if (complaints_.empty()) return ok_status();
  std::vector<std::string> sorted = complaints_;
  std::ranges::sort(sorted);
  std::string text;
  for (const std::string& complaint : sorted) text += (text.empty() ? "" : "; ") + complaint;
  return failed_precondition(text);
}

LoopbackHub::LoopbackHub(std::string name, std::vector<NodeId> nodes,
                         std::shared_ptr<LoopbackState> state)
    : name_(std::move(name)),
      nodes_(std::move(nodes)),
      state_(std::move(state)),
      next_(nodes_.size(), 0),
      open_(static_cast<std::int32_t>(nodes_.size())) {}

std::int32_t LoopbackHub::ranks_on_node(RankId rank) const {
  return static_cast<std::int32_t>(std::ranges::count(nodes_, node(rank)));
}

Result<LoopbackOperation*> LoopbackHub::start(RankId rank, const Call& call, ConstBytes given,
                                              const Reduction& reduction) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  LoopbackOperation& operation = operation_for(next_[index(rank)]++);
  LoopbackOperation::Part& part = operation.parts[index(rank)];
  part.call = call;
  part.given.assign(given.begin(), given.end());
  if (operation.started == 0) operation.call = call;
  ++operation.started;
  if (!(operation.call == call)) {
    break_on_mismatch(operation);
    return failure_;
  }
  if (operation.started == size()) finish(operation, reduction);
  if (!failure_.ok()) return failure_;
  return &operation;
}

std::uint64_t LoopbackHub::next_number(RankId rank) const {
  const std::lock_guard lock(mutex_);
  return next_[index(rank)];
}

Status LoopbackHub::broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return ok_status();
  const std::lock_guard lock(mutex_);
  return failure_;
}

LoopbackOperation& LoopbackHub::operation_for(std::uint64_t number) {
  if (number - window_start_ == window_.size()) {
    if (retired_.empty()) {
      window_.push_back(std::make_unique<LoopbackOperation>());
      window_.back()->parts.resize(nodes_.size());
    } else {
      window_.push_back(std::move(retired_.back()));
      retired_.pop_back();
    }
    LoopbackOperation& fresh = *window_.back();
    fresh.number = number;
    fresh.started = fresh.taken = 0;
    for (LoopbackOperation::Part& part : fresh.parts) part.call = Call{};
    fresh.complete.store(false, std::memory_order_relaxed);
  }
  return *window_[number - window_start_];
}

void LoopbackHub::break_on_mismatch(const LoopbackOperation& operation) {
  failure_ = failed_precondition(
      "operation ", operation.number, " on communicator ", name_,
      ": expected the same call on every rank, found: ", who_started_what(operation),
      ". MPI would hang or corrupt here; make all ranks start the same operations in one order");
  is_broken_.store(true, std::memory_order_release);
}

void LoopbackHub::finish(LoopbackOperation& operation, const Reduction& reduction) {
  switch (operation.call.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      combine(operation, reduction);
      break;
    case Operation::duplicate:
    case Operation::split:
    case Operation::split_by_node:
      make_children(operation);
      break;
    case Operation::shared_segment:
      // Above the limit the segment stays empty, and every rank reports the error.
      if (operation.call.bytes <= state_->options().shared_segment_limit_bytes) {
        operation.segment = heap_segment(operation.call.bytes);
      }
      break;
    default:
      break;
  }
  operation.complete.store(true, std::memory_order_release);
}

void LoopbackHub::make_children(LoopbackOperation& operation) {
  std::map<std::int32_t, std::vector<RankId>> groups;  // by color, ranks ascending
  for (std::size_t r = 0; r < operation.parts.size(); ++r) {
    std::int32_t color = 0;
    std::memcpy(&color, operation.parts[r].given.data(), sizeof color);
    groups[color].emplace_back(static_cast<std::int32_t>(r));
  }
  const std::string base = concat(name_, ".", children_++);
  const bool named_by_color = operation.call.operation != Operation::duplicate;
  for (const auto& [color, ranks] : groups) {
    std::vector<NodeId> nodes;
    for (const RankId rank : ranks) nodes.push_back(node(rank));
    const std::string name = named_by_color ? concat(base, ":", color) : base;
    const auto child = std::make_shared<LoopbackHub>(name, std::move(nodes), state_);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      LoopbackOperation::Part& part = operation.parts[index(ranks[i])];
      part.child = child;
      part.child_rank = RankId(static_cast<std::int32_t>(i));
    }
  }
}

void LoopbackHub::leave(LoopbackOperation& operation) {
  const std::lock_guard lock(mutex_);
  ++operation.taken;
  while (!window_.empty() && window_.front()->taken == size()) {
    for (LoopbackOperation::Part& part : window_.front()->parts) part.child.reset();
    window_.front()->segment = SharedSegment{};
    retired_.push_back(std::move(window_.front()));
    window_.pop_front();
    ++window_start_;
  }
}

void LoopbackHub::close() {
  std::unique_lock lock(mutex_);
  if (--open_ > 0 || !failure_.ok()) return;
  const auto [fewest, most] = std::minmax_element(next_.begin(), next_.end());
  if (*fewest == *most) return;
  const std::string text =
      concat("communicator ", name_, " ended with operation ", *fewest,
             " started by some ranks only: ", who_started_what(*window_[*fewest - window_start_]));
  lock.unlock();
  state_->complain(text);
}

LoopbackCommunicator::~LoopbackCommunicator() {
  requests_.for_each_in_flight([this](const Slot& slot) {
    hub_->state().complain(concat("rank ", rank_.value(), " destroyed communicator ", hub_->name(),
                                  " with operation ", slot.operation->number, " (",
                                  describe(slot.call),
                                  ") in flight; test every request until test() returns done"));
  });
  hub_->close();
}

Result<Request> LoopbackCommunicator::start(const Call& call, const Buffers& buffers,
                                            const Reduction& reduction) {
  const Fault fault =
      hub_->state().options().faults.at(hub_->name(), rank_, hub_->next_number(rank_));
  if (fault.kind == FaultKind::refuse) {
    return unavailable(describe(call), " on communicator ", hub_->name(),
                       ": refused by the fault script");
  }
  Result<LoopbackOperation*> operation = hub_->start(rank_, call, buffers.send, reduction);
  if (!operation.ok()) return operation.status();
  const bool separate = buffers.receive.data() != buffers.send.data();
  const bool receives = call.operation != Operation::gather || rank_ == call.root;
  if (separate && receives) {
    std::ranges::fill(buffers.receive, kPoison);
  }
  const auto taken = requests_.take();
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
    delivered = unavailable("operation ", operation.number, " on communicator ", hub_->name(), " (",
                            describe(slot.call), "): failed by the fault script");
  }
  hub_->leave(operation);
  if (!delivered.ok()) return delivered;
  return Progress::done;
}

Status LoopbackCommunicator::deliver(const Slot& slot) {
  const LoopbackOperation& operation = *slot.operation;
  const auto& given = operation.parts[static_cast<std::size_t>(rank_.value())].given;
  if (!std::equal(given.begin(), given.end(), slot.buffers.send.begin(), slot.buffers.send.end())) {
    return failed_precondition("operation ", operation.number, " on communicator ", hub_->name(),
                               " (", describe(slot.call), "): rank ", rank_.value(),
                               " changed the buffer while it was in flight; do not touch the "
                               "buffer until test() returns done");
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
  const std::string what = concat(describe(call), " on communicator ", hub_->name());
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

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::part(std::int32_t color) {
  return derive(Operation::split, color);
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::duplicate() {
  return derive(Operation::duplicate, 0);
}

Result<std::unique_ptr<Communicator>> LoopbackCommunicator::split_by_node() {
  return derive(Operation::split_by_node, hub_->node(rank_).value());
}

Result<SharedSegment> LoopbackCommunicator::share(std::size_t bytes) {
  Result<LoopbackOperation*> done = run_blocking({Operation::shared_segment, bytes}, {});
  if (!done.ok()) return done.status();
  SharedSegment segment = (*done)->segment;
  hub_->leave(**done);
  const std::size_t limit = hub_->state().options().shared_segment_limit_bytes;
  if (bytes > limit) {
    return resource_exhausted("shared segment: expected room for ", bytes, " bytes, found ", limit,
                              " (the limit of this loopback world)");
  }
  return segment;
}

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

}  // namespace cox::testing
