#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/transport/exchange/departure_watch.h"
#include "coordinator/transport/exchange/round_exchange.h"

namespace cox::transport {
namespace {

// Sums buckets in each rank's own memory by messages alone. With one rank per node, or one node, a
// bucket is one all-reduce of all ranks. Otherwise a bucket is a reduce to the node's leader, an
// all-reduce of the leaders, and a broadcast in the node. Each step has a communicator of its own,
// on which all ranks start the buckets in ascending order.
class MessageExchange final : public RoundExchange {
 public:
  MessageExchange(BucketLayout layout, const WaitPolicy& wait, std::string note, MessageParts parts)
      : RoundExchange(parts.rank, layout, wait, std::move(note)),
        parts_(std::move(parts)),
        memory_(heap_segment(layout.arena_bytes)),
        requests_(buckets()) {}

  // MPI may still write to a sum in flight. Memory in use by MPI is left to the end of the process.
  ~MessageExchange() override {
    parts_.watch->hear_out(last_word());
    const bool in_flight =
        std::ranges::any_of(requests_, [](const Request& request) { return request.active(); });
    const Communicator& any = parts_.all != nullptr ? *parts_.all : *parts_.up;
    if (in_flight && any.kind() == std::string_view("mpi")) {
      static_cast<void>(std::make_unique<SharedSegment>(memory_).release());
    }
  }

  Bytes buffer(std::size_t bucket) override {
    return memory_.bytes().subspan(place(bucket).offset, place(bucket).bytes);
  }

  SharedSegment memory() const override { return memory_; }
  const char* path() const override { return "mpi"; }

 private:
  // The legs that a bucket may take. Each leg has its buckets in ascending order.
  enum class Leg : std::uint8_t { all, up, across, down };
  struct Queue {
    std::size_t begun = 0;
    std::size_t over = 0;
  };

  Status give(std::size_t bucket) override {
    if (bucket == 0) queues_.fill({});
    Status status = hear();
    if (status.ok()) status = begin(parts_.all != nullptr ? Leg::all : Leg::up, bucket);
    if (!status.ok()) return status;
    return started() == buckets() ? parts_.watch->close_round() : ok_status();
  }

  Result<Moved> move() override {
    Moved moved = Moved::nothing;
    for (const Leg leg : {Leg::all, Leg::up, Leg::across, Leg::down}) {
      Result<Moved> one = drain(leg);
      if (!one.ok()) return one;
      if (*one == Moved::something) moved = Moved::something;
    }
    if (moved == Moved::something && first_open() == buckets()) return moved;
    if (Status heard = hear(); !heard.ok()) return heard;
    return moved;
  }

  void back_off() override { std::this_thread::sleep_for(wait_policy().sleep); }

  void tell(const std::string& why) override {
    // No rank is left to receive a failure of this report.
    static_cast<void>(parts_.watch->depart(Departure::of(rank(), why)));
  }

  std::string holds_up(std::size_t bucket) const override {
    const std::string way = concat("; the bucket is being sent ", way_of(bucket));
    if (parts_.size == 2) {
      return concat("rank ", 1 - rank().value(), " did not send its part", way);
    }
    return concat("one of the other ", parts_.size - 1,
                  " ranks did not send its part (only shared memory shows which rank)", way);
  }

  // Returns ok, or unavailable with the rank that has left.
  Status hear() {
    const Result<Departure> heard = parts_.watch->poll();
    return heard.ok() && heard->somebody() ? heard->status() : heard.status();
  }

  const char* way_of(std::size_t bucket) const {
    constexpr std::array<const char*, 4> kWays = {"to all ranks", "to the leader", "across nodes",
                                                  "back from the leader"};
    for (std::size_t leg = 0; leg < kWays.size(); ++leg) {
      if (queues_[leg].over <= bucket && bucket < queues_[leg].begun) return kWays[leg];
    }
    return "nowhere";
  }

  Status begin(Leg leg, std::size_t bucket) {
    Status started = take(start_on(leg, bucket), requests_[bucket]);
    if (started.ok()) queue(leg).begun = bucket + 1;
    return started;
  }

  Result<Request> start_on(Leg leg, std::size_t bucket) {
    Communicator& on = communicator(leg);
    const Reduction& reduction = place(bucket).reduction;
    if (leg == Leg::up) return on.start_reduce(buffer(bucket), reduction, RankId(0));
    if (leg == Leg::down) return on.start_broadcast(buffer(bucket), RankId(0));
    return on.start_all_reduce(buffer(bucket), reduction);
  }

  // Sends a bucket on its next leg, or finishes it.
  Status arrive(Leg leg, std::size_t bucket) {
    if (leg == Leg::up) return begin(leads() ? Leg::across : Leg::down, bucket);
    if (leg == Leg::across) return begin(Leg::down, bucket);
    finish(bucket);
    return ok_status();
  }

  // Tests only the first request of a leg, because a test advances all requests.
  Result<Moved> drain(Leg leg) {
    Moved moved = Moved::nothing;
    Queue& it = queue(leg);
    while (it.over < it.begun) {
      const std::size_t bucket = it.over;
      Result<Progress> progress = communicator(leg).test(requests_[bucket]);
      if (!progress.ok()) return progress.status();
      if (*progress == Progress::pending) break;
      moved = Moved::something;
      ++it.over;
      if (Status arrived = arrive(leg, bucket); !arrived.ok()) return arrived;
    }
    return moved;
  }

  Communicator& communicator(Leg leg) const {
    const std::array all = {parts_.all.get(), parts_.up.get(), parts_.leaders.get(),
                            parts_.down.get()};
    return *all[static_cast<std::size_t>(leg)];
  }

  Queue& queue(Leg leg) { return queues_[static_cast<std::size_t>(leg)]; }
  bool leads() const { return parts_.leaders != nullptr; }

  MessageParts parts_;
  SharedSegment memory_;  // this rank's own
  std::vector<Request> requests_;
  std::array<Queue, 4> queues_{};
};
}  // namespace

std::unique_ptr<BucketExchange> make_message_exchange(BucketLayout layout, const WaitPolicy& wait,
                                                      std::string note, MessageParts parts) {
  return std::make_unique<MessageExchange>(std::move(layout), wait, std::move(note),
                                           std::move(parts));
}

}  // namespace cox::transport
