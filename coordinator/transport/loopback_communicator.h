// LoopbackCommunicator: one rank's end of a LoopbackHub. Keeps this rank's requests, delivers
// results, plays the scripted faults and checks that buffers in flight are left alone. Internal to
// loopback; one thread.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/transport/loopback_hub.h"
#include "coordinator/transport/request_table.h"

namespace cox::transport {

class LoopbackCommunicator final : public Communicator {
 public:
  LoopbackCommunicator(std::shared_ptr<LoopbackHub> hub, RankId rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackCommunicator() override;

  RankId rank() const override { return rank_; }
  std::int32_t size() const override { return hub_->size(); }
  std::int32_t ranks_on_node() const override { return hub_->ranks_on_node(rank_); }
  const char* kind() const override { return "loopback"; }

  Result<Request> start_gather(ConstBytes send, Bytes receive, RankId root) override;
  Result<Request> start_broadcast(Bytes buffer, RankId root) override;
  Result<Request> start_all_gather(ConstBytes send, Bytes receive) override;
  Result<Request> start_all_reduce(Bytes buffer, const Reduction& reduction) override;
  Result<Request> start_reduce(Bytes buffer, const Reduction& reduction, RankId root) override;
  Result<Request> start_reduce_scatter(ConstBytes send, Bytes receive,
                                       const Reduction& reduction) override;
  Result<Progress> test(Request& request) override;

  Result<std::unique_ptr<Communicator>> split(std::int32_t color) override;
  Result<std::unique_ptr<Communicator>> duplicate() override;
  Result<std::unique_ptr<Communicator>> split_by_node() override;
  Result<SharedSegment> shared_segment(std::size_t bytes) override;

 private:
  struct Slot {
    LoopbackOperation* operation = nullptr;
    Call call;
    Buffers buffers;
    Fault fault;
    std::uint32_t polls = 0;  // since the operation was complete
  };

  Result<Request> start(const Call& call, const Buffers& buffers, const Reduction& reduction);
  Result<Progress> poll(Slot& slot);
  Status deliver(const Slot& slot);
  void deliver_gather(const Slot& slot);
  void deliver_broadcast(const Slot& slot);
  Result<LoopbackOperation*> run_blocking(const Call& call, ConstBytes given);
  Result<std::unique_ptr<Communicator>> derive(Operation operation, std::int32_t color);

  const std::shared_ptr<LoopbackHub> hub_;
  const RankId rank_;
  RequestTable<Slot> requests_;
  // What the faults `repeat` deliver again; kept only while there is a script.
  std::vector<std::vector<std::byte>> gathered_before_;
  std::vector<std::byte> received_before_;
};

}  // namespace cox::transport
