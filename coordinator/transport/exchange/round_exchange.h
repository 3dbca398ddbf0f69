// RoundExchange: the base of all bucket exchanges: over shared memory, over messages, and over NCCL
// (transport/nccl/device_exchange.h). Keeps the order of starts, the set of done buckets, times and
// permanent failures, and waits. The derived classes move the given parts. BucketExchange::create()
// prepares communicators and memory for the first two and calls one of the make functions below.
// Internal to transport; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/transport/exchange/bucket_exchange.h"
#include "coordinator/transport/exchange/departure_watch.h"

namespace cox::transport {

struct BucketPlace {
  std::size_t offset = 0;  // in a rank's arena; a multiple of 64
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;  // whole elements; the last chunk may be smaller
  std::uint64_t chunks = 1;
  Reduction reduction;
};

// BucketLayout holds the place of each bucket in a rank's arena and the chunks of each sum. Equal
// on all ranks: ranks compare fingerprint(). Pure value; any thread.
struct BucketLayout {
  std::vector<BucketPlace> places;
  std::size_t arena_bytes = 0;  // size of one rank's arena; whole pages

  // Returns the layout. `chunk_bytes` is as in ExchangeOptions. Returns invalid_argument for a
  // bucket without a reduction or with broken elements.
  static Result<BucketLayout> make(const std::vector<BucketSpec>& buckets, std::size_t chunk_bytes);
  // Returns a hash of sizes, elements and chunks. Different layouts have equal hashes only by
  // chance. Never 0.
  std::uint64_t fingerprint() const;
};

class RoundExchange : public BucketExchange {
 public:
  std::size_t buckets() const final { return layout_.places.size(); }
  Status start(std::size_t bucket) final;
  Status advance() final;
  bool is_done(std::size_t bucket) const final;
  Status wait_all(const std::function<void()>& pump) final;
  void leave(const std::string& why) final;
  const std::string& note() const final { return note_; }
  BucketTimes times(std::size_t bucket) const final { return times_[bucket]; }

 protected:
  enum class Moved : std::uint8_t { nothing, something };
  using Clock = std::chrono::steady_clock;

  RoundExchange(RankId rank, BucketLayout layout, const WaitPolicy& wait, std::string note);

  // The five steps of a derived class: give() publishes this rank's part of `bucket`, move()
  // advances the work in flight, back_off() sleeps until a change is possible. tell() reports that
  // this rank leaves, and holds_up() names the ranks that a bucket waits for.
  virtual Status give(std::size_t bucket) = 0;
  virtual Result<Moved> move() = 0;
  virtual void back_off() = 0;
  virtual void tell(const std::string& why) = 0;
  virtual std::string holds_up(std::size_t bucket) const = 0;
  // Finishes wait_all() after all buckets are done.
  virtual Status close() { return ok_status(); }

  const BucketPlace& place(std::size_t bucket) const { return layout_.places[bucket]; }
  RankId rank() const { return rank_; }
  std::uint64_t turn() const { return turn_; }       // rounds before this one
  std::size_t started() const { return started_; }   // buckets, in this round
  std::size_t first_open() const { return first_; }  // all earlier buckets are done
  // Returns whether buckets were started since the last wait_all() that succeeded.
  bool is_open() const { return started_ > 0 && !is_closed_; }
  bool has_failed() const { return !failure_.ok(); }
  void finish(std::size_t bucket);
  void worked(std::size_t bucket, Clock::time_point since) {
    times_[bucket].worked += Clock::now() - since;
  }
  const WaitPolicy& wait_policy() const { return wait_; }
  // Returns how long the destructor waits for the other ranks to receive a last report. The others
  // are about to end too or, after a failure, may be lost.
  std::chrono::milliseconds last_word() const {
    return std::chrono::milliseconds(failure_.ok() ? 10'000 : 200);
  }

 private:
  Status check_order(std::size_t bucket) const;
  void begin_round();
  Status fail(Status status);
  Result<Moved> move_on();
  void pause(std::uint32_t vain, const std::function<void()>& pump);
  Status timed_out(const WaitLimit& limit, std::uint64_t polls) const;

  const RankId rank_;
  const BucketLayout layout_;
  const WaitPolicy wait_;
  const std::string note_;
  std::uint64_t turn_ = 0;
  std::size_t started_ = 0;
  std::size_t open_ = 0;  // started and not done
  std::size_t first_ = 0;
  bool is_closed_ = false;  // wait_all() came after the last start()
  std::vector<std::uint8_t> done_;
  std::vector<BucketTimes> times_;
  Status failure_;
  bool left_ = false;
};

// SharedParts hold the parts of an exchange over the node's shared segment. Rank 0 of the node
// leads.
struct SharedParts {
  RankId rank{};                     // rank of the job
  std::int32_t seat = 0;             // rank within the node
  std::vector<RankId> node_ranks;    // ranks of the job, ascending
  std::vector<RankId> leader_ranks;  // one per node, ascending
  SharedSegment segment;
  std::unique_ptr<Communicator> leaders;  // null except on leaders of several nodes
  std::unique_ptr<DepartureWatch> watch;  // null except on leaders of several nodes
};
// Returns the size of the segment for a node of `ranks` ranks.
std::size_t shared_exchange_bytes(const BucketLayout& layout, std::int32_t ranks);
// Prepares the memory of a node. Call it on one rank of the node, before any rank uses the memory.
// REQUIRES: zeroed memory of shared_exchange_bytes(), aligned to 64 bytes.
void format_shared_exchange(Bytes memory, const BucketLayout& layout, std::int32_t ranks);
// REQUIRES: the segment is formatted.
std::unique_ptr<BucketExchange> make_shared_exchange(BucketLayout layout, const WaitPolicy& wait,
                                                     SharedParts parts);

// MessageParts hold the parts of an exchange by messages: either `all`, or `up` and `down` of the
// node. Rank 0 of the node leads.
struct MessageParts {
  RankId rank{};
  std::int32_t size = 1;
  std::unique_ptr<Communicator> all;
  std::unique_ptr<Communicator> up, down;
  std::unique_ptr<Communicator> leaders;  // on leaders
  std::unique_ptr<DepartureWatch> watch;  // over all ranks
};
// Returns the exchange. `note` explains the lack of shared memory.
std::unique_ptr<BucketExchange> make_message_exchange(BucketLayout layout, const WaitPolicy& wait,
                                                      std::string note, MessageParts parts);

}  // namespace cox::transport
