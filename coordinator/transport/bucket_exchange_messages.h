// MessageExchange: buckets in memory of each rank, summed by messages alone. Where every node has
// one rank, or there is one node, a bucket is one all-reduce of all ranks. Otherwise it is a reduce
// to the node's leader, an all-reduce of the leaders, and a broadcast in the node, each on a
// communicator of its own, on which all ranks start the buckets in ascending order.
// Internal to bucket_exchange*; one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/transport/bucket_exchange_leave.h"
#include "coordinator/transport/bucket_exchange_rounds.h"

namespace cox::transport {

// What create() has prepared. Either `all`, or `up` and `down` of the node, whose rank 0 leads.
struct MessageParts {
  RankId rank{};
  std::int32_t size = 1;
  std::unique_ptr<Communicator> all;
  std::unique_ptr<Communicator> up, down;
  std::unique_ptr<Communicator> leaders;  // on leaders
  std::unique_ptr<DepartureWatch> watch;  // of all ranks
};

class MessageExchange final : public RoundExchange {
 public:
  MessageExchange(BucketLayout layout, const WaitPolicy& wait, std::string note,
                  MessageParts parts);
  ~MessageExchange() override;

  Bytes buffer(std::size_t bucket) override;
  SharedSegment memory() const override { return memory_; }
  const char* path() const override { return "mpi"; }

 private:
  // A bucket takes some of these; each has its buckets in ascending order.
  enum class Leg : std::uint8_t { all, up, across, down };
  struct Queue {
    std::size_t begun = 0;
    std::size_t over = 0;
  };

  Status give(std::size_t bucket) override;
  Result<Moved> move() override;
  void rest() override;
  void tell(const std::string& why) override;
  std::string holds_up(std::size_t bucket) const override;

  const char* way_of(std::size_t bucket) const;
  Status begin(Leg leg, std::size_t bucket);
  Result<Request> start_on(Leg leg, std::size_t bucket);
  Status arrive(Leg leg, std::size_t bucket);
  Result<Moved> drain(Leg leg);
  Communicator& communicator(Leg leg) const;
  Queue& queue(Leg leg) { return queues_[static_cast<std::size_t>(leg)]; }
  bool leads() const { return parts_.leaders != nullptr; }

  MessageParts parts_;
  SharedSegment memory_;  // this rank's own
  std::vector<Request> requests_;
  std::array<Queue, 4> queues_{};
};

}  // namespace cox::transport
