// RoundExchange: what all ways of exchanging buckets have in common: the order of starts, which
// buckets are done, times, failures that stay, and waiting. The ways say how a part that was given
// moves on. Internal to bucket_exchange*; one thread.
#pragma once

#include <string>
#include <vector>

#include "coordinator/transport/bucket_exchange_layout.h"

namespace cox::transport {

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

  // All in-between work: gives `bucket`'s part away; moves on what is in flight; sleeps until
  // something may have changed; tells the others of this rank's end; says who holds up a bucket.
  virtual Status give(std::size_t bucket) = 0;
  virtual Result<Moved> move() = 0;
  virtual void rest() = 0;
  virtual void tell(const std::string& why) = 0;
  virtual std::string holds_up(std::size_t bucket) const = 0;

  const BucketPlace& place(std::size_t bucket) const { return layout_.places[bucket]; }
  RankId rank() const { return rank_; }
  std::uint64_t turn() const { return turn_; }       // rounds before this one
  std::size_t started() const { return started_; }   // buckets, in this round
  std::size_t first_open() const { return first_; }  // all before it are done
  void finish(std::size_t bucket);
  void worked(std::size_t bucket, Clock::time_point since) {
    times_[bucket].worked += Clock::now() - since;
  }
  const WaitPolicy& wait_policy() const { return wait_; }
  // How long the end may wait for others to hear a last word: they are about to end as well, or,
  // after a failure, may be lost.
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
  std::vector<std::uint8_t> done_;
  std::vector<BucketTimes> times_;
  Status failure_;
  bool left_ = false;
};

}  // namespace cox::transport
