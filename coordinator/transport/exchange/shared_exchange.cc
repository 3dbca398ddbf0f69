#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/transport/exchange/departure_watch.h"
#include "coordinator/transport/exchange/round_exchange.h"
#include "coordinator/transport/shared/check_word.h"
#include "coordinator/transport/shared/futex.h"

namespace cox::transport {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 10;  // two blocks fit the L1 cache
constexpr int kClaimsAMove = 4;                            // at most 1 MiB: about 100 us
constexpr std::chrono::microseconds kLongestSleep{300};    // the longest delay of a pump
constexpr std::chrono::microseconds kShortestSleep{1};

enum class Stage : std::uint8_t {
  arriving,          // some rank has not started the bucket
  adding,            // there are chunks to claim
  adding_elsewhere,  // all chunks are claimed, some are not done
  added,             // the node's sum is complete
  spreading,         // the sum of all nodes lies in the leader's arena; chunks to claim
  spreading_elsewhere,
  spread,
};

// One round of one bucket.
struct Pass {
  std::size_t bucket = 0;
  std::uint64_t turn = 0;  // counts rounds from 0
  std::uint64_t chunks = 0;
};

// Chunks over all rounds.
struct alignas(kLine) Work {
  std::atomic<std::uint64_t> claimed{0};
  std::atomic<std::uint64_t> done{0};

  // Returns a chunk below pass.chunks or none, also after stray writes to the counter.
  std::optional<std::uint64_t> claim(const Pass& pass) {
    const std::uint64_t begin = pass.turn * pass.chunks;
    const std::uint64_t end = begin + pass.chunks;
    std::uint64_t next = claimed.load();
    while (next < end) {
      const std::uint64_t chunk = std::max(next, begin);
      if (claimed.compare_exchange_weak(next, chunk + 1)) return chunk - begin;
    }
    return std::nullopt;
  }
  // Returns whether the chunk was the last of the round.
  bool finish(const Pass& pass) { return done.fetch_add(1) + 1 == (pass.turn + 1) * pass.chunks; }
};

struct Bucket {
  alignas(kLine) std::atomic<std::uint64_t> arrived{0};  // starts, over all rounds
  std::atomic<std::uint64_t> crossed{0};                 // rounds
  Work add;
  Work spread;
};

struct alignas(kLine) Seat {
  std::atomic<std::uint64_t> started{0};  // buckets, over all rounds
};

// Board holds the progress of each bucket of a node, as atomics in the node's shared segment. A
// bucket's round passes the stages below. Counters only grow. Round k is over when a counter has
// reached k + 1 times its share, so no counter is reset and no reset can race.
//
//   start() of every rank -> adding -> added -> [the leaders' sum -> spreading] -> spread
//
// Ranks claim the chunks of `adding` and `spreading`. A rank without work may sleep. The rank that
// completes a stage wakes the sleepers, by a system call only if there are any. No wake is lost,
// because all accesses are sequentially consistent: a waker completes the stage first and then
// reads the sleepers; a sleeper counts itself first and then reads the stages.
//
// A view that owns nothing; the memory must outlive the board. One thread per seat.
class Board {
 public:
  static std::size_t bytes_needed(std::int32_t ranks, std::size_t buckets) {
    return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(Seat) +
           buckets * sizeof(Bucket);
  }
  // REQUIRES: bytes_needed() bytes, aligned to 64. Only format() may be called before the memory is
  // formatted.
  Board(std::span<std::byte> memory, std::int32_t ranks, std::size_t buckets)
      : header_(std::launder(reinterpret_cast<Header*>(memory.data()))),
        seats_(std::launder(reinterpret_cast<Seat*>(memory.data() + sizeof(Header)))),
        buckets_(std::launder(reinterpret_cast<Bucket*>(seats_ + ranks))),
        ranks_(static_cast<std::uint64_t>(ranks)),
        count_(buckets) {}
  // Formats the board of a node in zeroed memory. Call it on one rank, before the others use the
  // memory.
  void format() {
    new (header_) Header;
    for (std::size_t s = 0; s < ranks_; ++s) new (seats_ + s) Seat;
    for (std::size_t b = 0; b < count_; ++b) new (buckets_ + b) Bucket;
  }

  // Records that the rank in `seat` has given its part of the bucket.
  void arrive(std::size_t seat, const Pass& pass) {
    seats_[seat].started.store(pass.turn * count_ + pass.bucket + 1);
    if (buckets_[pass.bucket].arrived.fetch_add(1) + 1 == (pass.turn + 1) * ranks_) wake();
  }
  bool has_started(std::size_t seat, const Pass& pass) const {
    return seats_[seat].started.load() > pass.turn * count_ + pass.bucket;
  }

  // REQUIRES for all functions below: the pass belongs to the caller's round.
  Stage stage(const Pass& pass) const;
  // Returns "arrived 3/4, claimed 0/7, added 0/7, crossed 0/1, spread 0/7", for messages.
  std::string progress(const Pass& pass) const;
  // Returns a chunk that the caller now owns, or none.
  std::optional<std::uint64_t> claim(Work Bucket::*work, const Pass& pass) {
    return (buckets_[pass.bucket].*work).claim(pass);
  }
  void finish(Work Bucket::*work, const Pass& pass) {
    if ((buckets_[pass.bucket].*work).finish(pass)) wake();
  }
  // Records that the sum of all nodes lies in the leader's arena. Called by the leader.
  void cross(const Pass& pass) {
    buckets_[pass.bucket].crossed.store(pass.turn + 1);
    wake();
  }

  // Records a departure. The first one stays.
  void depart(const Departure& departure) {
    std::uint32_t found = header_->departed.load();
    if (found == kDeparting || this->departure()) return;
    if (!header_->departed.compare_exchange_strong(found, kDeparting)) return;
    header_->departure = departure;
    header_->departure_check.store(check_word(std::as_bytes(std::span(&departure, 1))));
    header_->departed.store(kDeparted);
    wake();
  }
  // Returns the rank that has left. Returns nothing for stray writes that no depart() made.
  std::optional<Departure> departure() const {
    if (header_->departed.load() != kDeparted) return std::nullopt;
    const Departure departure = header_->departure;
    const std::uint64_t check = check_word(std::as_bytes(std::span(&departure, 1)));
    if (check != header_->departure_check.load()) return std::nullopt;
    return departure;
  }

  // Sleeps until some rank completes a stage, at most for `limit`. Returns at once if `ready()`
  // finds work.
  template <class Ready>
  void wait(std::chrono::nanoseconds limit, const Ready& ready) {
    const std::uint32_t wakes = header_->wakes.load();
    header_->sleepers.fetch_add(1);
    if (!ready()) futex_wait(header_->wakes, wakes, limit);
    header_->sleepers.fetch_sub(1);
  }

 private:
  struct Header {
    alignas(kLine) std::atomic<std::uint32_t> wakes{0};
    std::atomic<std::uint32_t> sleepers{0};
    alignas(kLine) std::atomic<std::uint32_t> departed{0};  // 0, kDeparting or kDeparted
    std::atomic<std::uint64_t> departure_check{0};
    Departure departure;
  };
  static constexpr std::uint32_t kDeparting = 1;
  static constexpr std::uint32_t kDeparted = 2;

  void wake() {
    if (header_->sleepers.load() == 0) return;
    header_->wakes.fetch_add(1);
    futex_wake(header_->wakes);
  }

  Header* header_;
  Seat* seats_;
  Bucket* buckets_;
  std::uint64_t ranks_;
  std::uint64_t count_;
};

Stage Board::stage(const Pass& pass) const {
  const Bucket& it = buckets_[pass.bucket];
  const std::uint64_t end = (pass.turn + 1) * pass.chunks;
  if (it.arrived.load() < (pass.turn + 1) * ranks_) return Stage::arriving;
  if (it.add.done.load() < end)
    return it.add.claimed.load() < end ? Stage::adding : Stage::adding_elsewhere;
  if (it.crossed.load() <= pass.turn) return Stage::added;
  if (it.spread.done.load() >= end) return Stage::spread;
  return it.spread.claimed.load() < end ? Stage::spreading : Stage::spreading_elsewhere;
}

std::string Board::progress(const Pass& pass) const {
  const Bucket& it = buckets_[pass.bucket];
  // Other ranks may be a round ahead.
  const auto part = [&pass](const std::atomic<std::uint64_t>& counter, std::uint64_t share) {
    const std::uint64_t before = pass.turn * share;
    const std::uint64_t now = std::clamp(counter.load(), before, before + share) - before;
    return concat(now, "/", share);
  };
  return concat("arrived ", part(it.arrived, ranks_), ", claimed ",
                part(it.add.claimed, pass.chunks), ", added ", part(it.add.done, pass.chunks),
                ", crossed ", part(it.crossed, 1), ", spread ", part(it.spread.done, pass.chunks));
}

std::size_t board_bytes(std::int32_t ranks, std::size_t buckets) {
  return round_up(Board::bytes_needed(ranks, buckets), kPage);
}

struct Range {
  std::size_t first;
  std::size_t bytes;
};

Range chunk_of(const BucketPlace& place, std::uint64_t chunk) {
  const std::size_t first = chunk * place.chunk_bytes;
  return {first, std::min(place.chunk_bytes, place.bytes - first)};
}

// Buckets in the shared segment of the node: first the board, then the arenas of the node's ranks.
// Ranks claim chunks of buckets that all ranks of the node have started, add the chunks in
// ascending ranks and write the sum to every rank's bucket. With several nodes the sum goes to the
// leader's bucket and the leaders add their sums in place. Ranks then claim chunks of the result
// again, to copy them.
class SharedExchange final : public RoundExchange {
 public:
  SharedExchange(BucketLayout layout, const WaitPolicy& wait, SharedParts parts)
      : RoundExchange(parts.rank, layout, wait, std::string()),
        parts_(std::move(parts)),
        board_(parts_.segment.bytes(), static_cast<std::int32_t>(parts_.node_ranks.size()),
               buckets()),
        arenas_(parts_.segment.bytes().data() +
                board_bytes(static_cast<std::int32_t>(parts_.node_ranks.size()), buckets())),
        arena_bytes_(layout.arena_bytes),
        requests_(buckets()) {}

  // MPI may still write to a sum in flight. Memory in use by MPI is left to the end of the process.
  ~SharedExchange() override {
    if (parts_.watch != nullptr) {
      // No rank is left to receive a failure of this report.
      if (const auto left = board_.departure()) static_cast<void>(parts_.watch->depart(*left));
      parts_.watch->hear_out(last_word());
    }
    if (awaits_messages() && parts_.leaders->kind() == std::string_view("mpi")) {
      static_cast<void>(std::make_unique<SharedSegment>(parts_.segment).release());
    }
  }

  Bytes buffer(std::size_t bucket) override {
    return {at(parts_.seat, bucket), place(bucket).bytes};
  }

  SharedSegment memory() const override { return parts_.segment; }

  const char* path() const override {
    return several_nodes() ? "shared memory and mpi" : "shared memory";
  }

 private:
  Status give(std::size_t bucket) override {
    if (bucket == 0) to_cross_ = crossed_ = 0;
    if (Status heard = hear(); !heard.ok()) return heard;
    board_.arrive(static_cast<std::size_t>(parts_.seat), pass(bucket));
    return ok_status();
  }

  Result<Moved> move() override {
    // Before reading the buckets: a round that was complete when a rank left stays valid.
    Status heard = hear();
    Moved moved = Moved::nothing;
    int claims = kClaimsAMove;
    for (std::size_t b = first_open(); b < started(); ++b) {
      if (is_done(b)) continue;
      if (stage(b) == Stage::arriving) break;  // and all later buckets arrive too
      Result<Moved> one = move_bucket(b, claims);
      if (!one.ok()) return one;
      if (*one == Moved::something) moved = Moved::something;
    }
    if (moved == Moved::something && first_open() == buckets()) return moved;  // even if one left
    if (!heard.ok()) return heard;
    return moved;
  }

  void back_off() override {
    std::chrono::nanoseconds limit = kLongestSleep;
    // Messages do not wake a sleeper.
    if (parts_.watch != nullptr)
      limit =
          std::clamp<std::chrono::nanoseconds>(wait_policy().sleep, kShortestSleep, kLongestSleep);
    board_.wait(limit, [this] { return ready(); });
  }

  void tell(const std::string& why) override {
    const Departure departure = Departure::of(rank(), why);
    board_.depart(departure);
    // No rank is left to receive a failure of this report.
    if (parts_.watch != nullptr) static_cast<void>(parts_.watch->depart(departure));
  }

  std::string holds_up(std::size_t bucket) const override {
    return concat(missing_part(bucket), " (", board_.progress(pass(bucket)), ")");
  }

  std::string missing_part(std::size_t bucket) const {
    std::string missing;
    for (std::size_t s = 0; s < parts_.node_ranks.size(); ++s) {
      if (board_.has_started(s, pass(bucket))) continue;
      missing += concat(missing.empty() ? "rank " : ", rank ", parts_.node_ranks[s].value());
    }
    if (!missing.empty()) return concat(missing, " of this node did not start it");
    if (!several_nodes()) return "a rank of this node stopped while it added its part";
    std::string leaders;
    for (const RankId leader : parts_.leader_ranks) {
      if (leader == parts_.node_ranks[0]) continue;
      leaders += concat(leaders.empty() ? "rank " : " or rank ", leader.value());
    }
    return concat("all ranks of this node added their parts; the part is missing from the node of ",
                  leaders);
  }

  Result<Moved> move_bucket(std::size_t bucket, int& claims) {
    Moved moved = Moved::nothing;
    for (;;) {
      const Stage now = stage(bucket);
      bool more = false;
      if (now == Stage::adding || now == Stage::spreading) {
        more = claims > 0 && (now == Stage::adding ? add(bucket) : spread(bucket));
        if (more) --claims;
      } else if (now == Stage::spread || (now == Stage::added && !several_nodes())) {
        finish(bucket);
        return Moved::something;
      } else if (now == Stage::added && leads()) {
        const std::size_t before = to_cross_ + crossed_;
        if (Status crossing = cross(bucket); !crossing.ok()) return crossing;
        more = to_cross_ + crossed_ != before;
      }
      if (!more) return moved;
      moved = Moved::something;
    }
  }

  // The leader is seat 0, so a sum is built in the leader's bucket whether or not the others get it
  // now.
  bool add(std::size_t bucket) {
    const BucketPlace& it = place(bucket);
    const std::optional<std::uint64_t> chunk = board_.claim(&Bucket::add, pass(bucket));
    if (!chunk) return false;
    const Clock::time_point since = Clock::now();
    const Range range = chunk_of(it, *chunk);
    const std::size_t element = it.reduction.element_bytes;
    const std::size_t block = std::max<std::size_t>(1, kBlockBytes / element) * element;
    const std::size_t ranks = parts_.node_ranks.size();
    for (std::size_t done = 0; done < range.bytes; done += block) {
      const std::size_t bytes = std::min(block, range.bytes - done);
      std::byte* sum = at(0, bucket) + range.first + done;
      for (std::size_t r = 1; r < ranks; ++r) {
        it.reduction.apply(sum, sum + r * arena_bytes_, bytes / element);
      }
      for (std::size_t r = 1; r < ranks && !several_nodes(); ++r) {
        std::memcpy(sum + r * arena_bytes_, sum, bytes);
      }
    }
    worked(bucket, since);
    board_.finish(&Bucket::add, pass(bucket));
    return true;
  }

  bool spread(std::size_t bucket) {
    const BucketPlace& it = place(bucket);
    const std::optional<std::uint64_t> chunk = board_.claim(&Bucket::spread, pass(bucket));
    if (!chunk) return false;
    const Clock::time_point since = Clock::now();
    const Range range = chunk_of(it, *chunk);
    for (std::size_t done = 0; done < range.bytes; done += kBlockBytes) {
      const std::size_t bytes = std::min(kBlockBytes, range.bytes - done);
      const std::byte* sum = at(0, bucket) + range.first + done;
      for (std::size_t r = 1; r < parts_.node_ranks.size(); ++r) {
        std::memcpy(const_cast<std::byte*>(sum) + r * arena_bytes_, sum, bytes);
      }
    }
    worked(bucket, since);
    board_.finish(&Bucket::spread, pass(bucket));
    return true;
  }

  // Advances the leaders' sum by one step. Buckets cross in ascending order on all leaders.
  Status cross(std::size_t bucket) {
    if (bucket == to_cross_) {
      Status started =
          take(parts_.leaders->start_all_reduce(buffer(bucket), place(bucket).reduction),
               requests_[bucket]);
      if (!started.ok()) return started;
      ++to_cross_;
      return to_cross_ == buckets() ? parts_.watch->close_round() : ok_status();
    }
    if (bucket != crossed_) return ok_status();
    Result<Progress> progress = parts_.leaders->test(requests_[bucket]);
    if (!progress.ok()) return progress.status();
    if (*progress == Progress::pending) return ok_status();
    ++crossed_;
    board_.cross(pass(bucket));
    return ok_status();
  }

  // Reads the board once. The next call, or the destructor, reports a later departure to the other
  // nodes.
  Status hear() {
    const std::optional<Departure> left = board_.departure();
    if (parts_.watch == nullptr) return left ? left->status() : ok_status();
    if (left) {
      if (Status told = parts_.watch->depart(*left); !told.ok()) return told;
    }
    Result<Departure> heard = parts_.watch->poll();
    if (!heard.ok()) return heard.status();
    if (left) return left->status();
    if (!heard->somebody()) return ok_status();
    board_.depart(*heard);
    return heard->status();
  }

  bool ready() const {
    if (board_.departure()) return true;
    for (std::size_t b = first_open(); b < started(); ++b) {
      if (is_done(b)) continue;
      const Stage now = stage(b);
      if (now == Stage::arriving) return false;
      if (now == Stage::adding || now == Stage::spreading || now == Stage::spread) {
        return true;
      }
      if (now == Stage::added && (!several_nodes() || (leads() && b == to_cross_))) return true;
    }
    return false;
  }

  Pass pass(std::size_t bucket) const { return {bucket, turn(), place(bucket).chunks}; }
  Stage stage(std::size_t bucket) const { return board_.stage(pass(bucket)); }
  bool several_nodes() const { return parts_.leader_ranks.size() > 1; }
  bool leads() const { return parts_.seat == 0; }
  bool awaits_messages() const { return to_cross_ > crossed_; }

  std::byte* at(std::int32_t seat, std::size_t bucket) const {
    return arenas_ + static_cast<std::size_t>(seat) * arena_bytes_ + place(bucket).offset;
  }

  SharedParts parts_;
  Board board_;
  std::byte* arenas_;
  std::size_t arena_bytes_;
  // The leader's sums of this round: started between the leaders, and finished.
  std::size_t to_cross_ = 0;
  std::size_t crossed_ = 0;
  std::vector<Request> requests_;
};

}  // namespace

std::size_t shared_exchange_bytes(const BucketLayout& layout, std::int32_t ranks) {
  return board_bytes(ranks, layout.places.size()) +
         static_cast<std::size_t>(ranks) * layout.arena_bytes;
}

void format_shared_exchange(Bytes memory, const BucketLayout& layout, std::int32_t ranks) {
  Board(memory, ranks, layout.places.size()).format();
}

std::unique_ptr<BucketExchange> make_shared_exchange(BucketLayout layout, const WaitPolicy& wait,
                                                     SharedParts parts) {
  return std::make_unique<SharedExchange>(std::move(layout), wait, std::move(parts));
}

}  // namespace cox::transport
