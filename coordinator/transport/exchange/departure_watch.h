// How ranks without common memory hear that one of them left an exchange: DepartureWatch, a tiny
// sum on a communicator of its own, once a round. Every member adds "nobody" when it has given all
// its parts of the round; one that fails, or hears of one in its node that did, adds the departure
// at once instead. So nobody waits for what will not come longer than until all have given theirs.
//
// Departure is also what a node's board holds. One thread.
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
  // unavailable: "rank 2 takes no further part in the exchange: <why>". Requires: somebody().
  Status status() const;
};
// The lowest rank's.
void merge_into(Departure& into, const Departure& from);

class DepartureWatch {
 public:
  // Owns `members`, which nothing else uses.
  explicit DepartureWatch(std::unique_ptr<Communicator> members) : members_(std::move(members)) {}
  // This member has given all its parts of a round. Once a round, never after depart().
  Status close_round();
  // Tells the others; once.
  Status depart(const Departure& departure);
  // The end: what this member said reaches the others while it waits, at most so long.
  void hear_out(std::chrono::nanoseconds limit);
  // Returns what the members said, as far as it has come; a departure stays.
  Result<Departure> poll();
  // Whether all that this member said has reached every member, as of the last poll().
  bool all_heard() const;

 private:
  struct Word {
    Departure said;
    Request request;
  };
  Status say(const Departure& departure);
  Status hear(Word& word);

  std::unique_ptr<Communicator> members_;
  // Of this round, the one before, and a departure after both.
  std::array<Word, 4> words_;
  std::size_t next_ = 0;
  bool departed_ = false;
  Departure heard_;
};

}  // namespace cox::transport
