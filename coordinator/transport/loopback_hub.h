// LoopbackHub: what the ranks of one loopback communicator share: the operations that some rank has
// started and not every rank has finished. It matches the k-th call of each rank with the k-th call
// of the others, computes the result when the last one arrives, and breaks for good when the calls
// differ. Internal to loopback; all members may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/transport/call.h"
#include "coordinator/transport/loopback.h"

namespace cox::transport {

// What all communicators of one world share: options, and complaints about how they were used.
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

// The k-th operation of a communicator. Only `complete` may be read before it is true; afterwards
// everything is constant until the operation is retired.
struct LoopbackOperation {
  // What one rank gave, and what it gets from a split or duplicate.
  struct Part {
    Call call;  // `none` until the rank has started it
    std::vector<std::byte> given;
    std::shared_ptr<LoopbackHub> child;
    RankId child_rank{};
  };
  std::uint64_t number = 0;
  Call call;  // of the rank that came first
  std::vector<Part> parts;
  std::int32_t started = 0;
  std::int32_t taken = 0;
  std::vector<std::byte> combined;  // of reductions
  SharedSegment segment;
  std::atomic<bool> complete{false};
};

class LoopbackHub {
 public:
  LoopbackHub(std::string name, std::vector<NodeId> nodes, std::shared_ptr<LoopbackState> state);

  const std::string& name() const { return name_; }
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  NodeId node(RankId rank) const { return nodes_[static_cast<std::size_t>(rank.value())]; }
  std::int32_t ranks_on_node(RankId rank) const;
  LoopbackState& state() const { return *state_; }

  // Rank's next call. failed_precondition, for this and every later call of any rank, when the
  // ranks do not do the same. The operation stays valid until this rank leaves it.
  Result<LoopbackOperation*> start(RankId rank, const Call& call, ConstBytes given,
                                   const Reduction& reduction);
  // The failure that broke this hub, or ok. Cheap while all is well.
  Status broken() const;
  // The rank has taken what it wanted from a complete operation.
  void leave(LoopbackOperation& operation);
  // One of the communicators is gone.
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

}  // namespace cox::transport
