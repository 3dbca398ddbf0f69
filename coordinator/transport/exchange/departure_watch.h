// DepartureWatch: tells ranks without common memory that one of them has left, by a tiny reduction
// on a communicator of its own, once a round. Every member adds "nobody" when it has given all its
// parts of the round; one that fails, or hears of one in its node that did, adds the departure at
// once instead. So nobody waits for what will not come longer than until all have given theirs.
//
// BucketExchange has such rounds; the control plane's leaders have one, at the end of the job. A
// node's shared segment holds a Departure as well. One thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

struct Departure {
  std::int32_t rank = -1;  // of the job; -1 = nobody left
  std::array<char, 508> why{};

  static Departure of(RankId rank, const std::string& why);
  bool somebody() const { return rank >= 0; }
  // Returns `why` as text, also where another rank's bytes have no end.
  std::string text() const;
  // Returns unavailable: "rank 2 takes no further part in the exchange: <why>". REQUIRES:
  // somebody().
  Status status() const;
};
// Keeps the departure of the lower rank.
void merge_into(Departure& into, const Departure& from);

// Tells every rank which one has something to say: the lowest whose `why` is not empty, or nobody.
// Collective and waiting (start-up only).
Result<Departure> first_to_depart(Communicator& ranks, const std::string& why,
                                  const WaitPolicy& policy);

class DepartureWatch {
 public:
  // Owns `members`, which nothing else uses.
  explicit DepartureWatch(std::unique_ptr<Communicator> members) : members_(std::move(members)) {}
  // Says that this member has given all its parts of a round. Once a round; does nothing after
  // depart().
  Status close_round();
  // Tells the other members that this one departs. Later calls do nothing.
  Status depart(const Departure& departure);
  // Waits, at most for `limit`, until what this member said has reached the others. Before the end.
  void hear_out(std::chrono::nanoseconds limit);
  // Returns what the members said, as far as it has come; a departure stays.
  Result<Departure> poll();
  // Returns whether all that this member said has reached every member, as of the last poll().
  bool all_heard() const;

 private:
  struct Word {
    Departure said;
    Request request;
  };
  Status say(const Departure& departure);
  Status hear(Word& word);

  std::unique_ptr<Communicator> members_;
  // Words of this round, of the one before, and a departure after both.
  std::array<Word, 4> words_;
  std::size_t next_ = 0;
  bool departed_ = false;
  Departure heard_;
};

}  // namespace cox::transport
