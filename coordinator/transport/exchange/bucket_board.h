// BucketBoard: how far each bucket of a node's ranks is, as atomics in their shared segment. A
// bucket's round goes through the stages below. Every counter only ever grows, and round k is over
// when it has reached k + 1 times its share, so nothing is reset and no reset can race.
//
//   start() of every rank -> adding -> added -> [the leaders' sum -> spreading] -> spread
//
// Ranks claim the chunks of `adding` and `spreading`. A rank that finds nothing to do may sleep;
// the rank that completes a stage wakes the sleepers, with a system call only if there are any. No
// wake is lost: the one completes first and then looks for sleepers, the other counts itself as a
// sleeper first and then looks at the stages, all sequentially consistent.
//
// A view that owns nothing; its memory must outlive it. One thread per seat.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "coordinator/transport/exchange/departure_watch.h"

namespace cox::transport {

enum class BucketStage : std::uint8_t {
  arriving,          // some rank has not started it
  adding,            // there are chunks to claim
  adding_elsewhere,  // all are claimed, some not done
  added,             // the node's sum is complete
  spreading,         // the sum of all nodes lies in the leader's arena; chunks to claim
  spreading_elsewhere,
  spread,
};

class BucketBoard {
 public:
  static std::size_t bytes_needed(std::int32_t ranks, std::size_t buckets);
  // Makes the board of a node in zeroed memory aligned to 64 bytes; one rank, before the others use
  // theirs. Requires: bytes_needed() bytes.
  static void format(std::span<std::byte> memory, std::int32_t ranks, std::size_t buckets);
  // Requires: formatted memory.
  BucketBoard(std::span<std::byte> memory, std::int32_t ranks, std::size_t buckets);

  // The rank in `seat` has given its part of `bucket`. `turn` counts rounds from 0.
  void arrive(std::int32_t seat, std::size_t bucket, std::uint64_t turn);
  bool has_started(std::int32_t seat, std::size_t bucket, std::uint64_t turn) const;

  // Requires of all below: `turn` is the round that the caller is in.
  BucketStage stage(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks) const;
  // "arrived 3/4, claimed 0/7, added 0/7, crossed 0/1, spread 0/7", for messages.
  std::string progress(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks) const;
  // A chunk that is now the caller's to add (or to spread), or none.
  std::optional<std::uint64_t> claim_add(std::size_t bucket, std::uint64_t turn,
                                         std::uint64_t chunks);
  std::optional<std::uint64_t> claim_spread(std::size_t bucket, std::uint64_t turn,
                                            std::uint64_t chunks);
  void chunk_added(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks);
  void chunk_spread(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks);
  // The leader says that the sum of all nodes lies in its arena.
  void crossed(std::size_t bucket, std::uint64_t turn);

  // The first departure stays.
  void depart(const Departure& departure);
  bool has_departure() const;
  Departure departure() const;  // requires: has_departure()

  // Sleeps until some rank completes a stage, at most for `limit`. Returns at once if `ready()`
  // says that there is something to do.
  template <class Ready>
  void wait(std::chrono::nanoseconds limit, const Ready& ready) {
    const std::uint32_t wakes = begin_sleep();
    if (!ready()) sleep_until_woken(wakes, limit);
    end_sleep();
  }

 private:
  struct Header;
  struct Seat;
  struct Work;
  struct Bucket;
  Seat& seat(std::int32_t index) const;
  Bucket& at(std::size_t bucket) const;
  void wake();
  std::uint32_t begin_sleep();
  void sleep_until_woken(std::uint32_t wakes, std::chrono::nanoseconds limit);
  void end_sleep();

  Header* header_;
  std::byte* seats_;
  std::byte* buckets_;
  std::uint64_t ranks_;
  std::uint64_t count_;
};

}  // namespace cox::transport
