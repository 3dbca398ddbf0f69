// DepartureWatch reports a leaving rank to ranks without common memory. Uses a tiny reduction per
// round on a communicator of its own. A member adds "nobody" when the member has given all its
// parts of the round. A member that fails, or learns of a failure in its node, adds the departure
// at once. So a rank that waits for a lost part learns of the loss once all other ranks have given
// their parts.
//
// The rounds are those of BucketExchange. The control plane's leaders have one round, at the end of
// the job. A node's shared segment holds a Departure too. One thread.
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
  std::int32_t rank = -1;  // rank of the job; -1 = nobody left
  std::array<char, 508> why{};

  static Departure of(RankId rank, const std::string& why);
  bool somebody() const { return rank >= 0; }
  // Returns `why` as text, also if another rank's bytes have no terminating zero.
  std::string text() const;
  // Returns unavailable: "rank 2 has left the exchange: <why>". REQUIRES:
  // somebody().
  Status status() const;
};
// Keeps the departure of the lower rank.
void merge_into(Departure& into, const Departure& from);

// Returns on every rank the departure of the lowest rank with a non-empty `why`, or nobody.
// Collective and blocking (start-up only).
Result<Departure> first_to_depart(Communicator& ranks, const std::string& why,
                                  const WaitPolicy& policy);

class DepartureWatch {
 public:
  // Owns `members`; nothing else uses the communicator.
  explicit DepartureWatch(std::unique_ptr<Communicator> members) : members_(std::move(members)) {}
  // Records that this member has given all its parts of a round. Call it once a round. A no-op
  // after depart().
  Status close_round();
  // Reports to the other members that this one departs. Later calls are no-ops.
  Status depart(const Departure& departure);
  // Waits, at most for `limit`, until the others have received this member's reports. Call it
  // before the end.
  void hear_out(std::chrono::nanoseconds limit);
  // Returns the members' merged reports received so far. A departure stays.
  Result<Departure> poll();
  // Returns whether every member has received all reports of this one, as of the last poll().
  bool all_heard() const;

 private:
  struct Word {
    Departure said;
    Request request;
  };
  Status say(const Departure& departure);
  Status hear(Word& word);

  std::unique_ptr<Communicator> members_;
  // Reports of this round and of the previous one, and a departure after both.
  std::array<Word, 4> words_;
  std::size_t next_ = 0;
  bool departed_ = false;
  Departure heard_;
};

}  // namespace cox::transport
