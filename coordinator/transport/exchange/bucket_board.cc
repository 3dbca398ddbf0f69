#include "coordinator/transport/exchange/bucket_board.h"

#include <algorithm>
#include <new>

#include "coordinator/transport/shared/futex.h"

namespace cox::transport {
namespace {
constexpr std::size_t kLine = 64;
}  // namespace

struct BucketBoard::Header {
  alignas(kLine) std::atomic<std::uint32_t> wakes{0};
  std::atomic<std::uint32_t> sleepers{0};
  alignas(kLine) std::atomic<std::uint32_t> departed{0};  // 1 = being written, 2 = there
  Departure departure;
};

struct alignas(kLine) BucketBoard::Seat {
  std::atomic<std::uint64_t> started{0};  // buckets, over all rounds
};

// Chunks over all rounds.
struct alignas(kLine) BucketBoard::Work {
  std::atomic<std::uint64_t> claimed{0};
  std::atomic<std::uint64_t> done{0};

  std::optional<std::uint64_t> claim(std::uint64_t turn, std::uint64_t chunks) {
    const std::uint64_t end = (turn + 1) * chunks;
    std::uint64_t next = claimed.load();
    while (next < end) {
      if (claimed.compare_exchange_weak(next, next + 1)) return next - turn * chunks;
    }
    return std::nullopt;
  }
  // Whether it was the last of the round.
  bool finish(std::uint64_t turn, std::uint64_t chunks) {
    return done.fetch_add(1) + 1 == (turn + 1) * chunks;
  }
};

struct BucketBoard::Bucket {
  alignas(kLine) std::atomic<std::uint64_t> arrived{0};  // starts, over all rounds
  std::atomic<std::uint64_t> crossed{0};                 // rounds
  Work add;
  Work spread;
};

std::size_t BucketBoard::bytes_needed(std::int32_t ranks, std::size_t buckets) {
  return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(Seat) + buckets * sizeof(Bucket);
}

BucketBoard::BucketBoard(std::span<std::byte> memory, std::int32_t ranks, std::size_t buckets)
    : header_(std::launder(reinterpret_cast<Header*>(memory.data()))),
      seats_(memory.data() + sizeof(Header)),
      buckets_(seats_ + static_cast<std::size_t>(ranks) * sizeof(Seat)),
      ranks_(static_cast<std::uint64_t>(ranks)),
      count_(buckets) {}

void BucketBoard::format(std::span<std::byte> memory, std::int32_t ranks, std::size_t buckets) {
  const BucketBoard board(memory, ranks, buckets);
  new (board.header_) Header;
  for (std::int32_t r = 0; r < ranks; ++r) new (&board.seat(r)) Seat;
  for (std::size_t b = 0; b < buckets; ++b) new (&board.at(b)) Bucket;
}

BucketBoard::Seat& BucketBoard::seat(std::int32_t index) const {
  return *std::launder(
      reinterpret_cast<Seat*>(seats_ + static_cast<std::size_t>(index) * sizeof(Seat)));
}

BucketBoard::Bucket& BucketBoard::at(std::size_t bucket) const {
  return *std::launder(reinterpret_cast<Bucket*>(buckets_ + bucket * sizeof(Bucket)));
}

void BucketBoard::arrive(std::int32_t place, std::size_t bucket, std::uint64_t turn) {
  seat(place).started.store(turn * count_ + bucket + 1);
  if (at(bucket).arrived.fetch_add(1) + 1 == (turn + 1) * ranks_) wake();
}

bool BucketBoard::has_started(std::int32_t place, std::size_t bucket, std::uint64_t turn) const {
  return seat(place).started.load() > turn * count_ + bucket;
}

BucketStage BucketBoard::stage(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks) const {
  const Bucket& it = at(bucket);
  const std::uint64_t end = (turn + 1) * chunks;
  if (it.arrived.load() < (turn + 1) * ranks_) return BucketStage::arriving;
  if (it.add.done.load() < end) {
    return it.add.claimed.load() < end ? BucketStage::adding : BucketStage::adding_elsewhere;
  }
  if (it.crossed.load() <= turn) return BucketStage::added;
  if (it.spread.done.load() >= end) return BucketStage::spread;
  return it.spread.claimed.load() < end ? BucketStage::spreading : BucketStage::spreading_elsewhere;
}

std::string BucketBoard::progress(std::size_t bucket, std::uint64_t turn,
                                  std::uint64_t chunks) const {
  const Bucket& it = at(bucket);
  // Others may be a round ahead.
  const auto part = [turn](const std::atomic<std::uint64_t>& counter, std::uint64_t share) {
    const std::uint64_t before = turn * share;
    const std::uint64_t now = std::clamp(counter.load(), before, before + share) - before;
    return std::to_string(now) + "/" + std::to_string(share);
  };
  return "arrived " + part(it.arrived, ranks_) + ", claimed " + part(it.add.claimed, chunks) +
         ", added " + part(it.add.done, chunks) + ", crossed " + part(it.crossed, 1) + ", spread " +
         part(it.spread.done, chunks);
}

std::optional<std::uint64_t> BucketBoard::claim_add(std::size_t bucket, std::uint64_t turn,
                                                    std::uint64_t chunks) {
  return at(bucket).add.claim(turn, chunks);
}

std::optional<std::uint64_t> BucketBoard::claim_spread(std::size_t bucket, std::uint64_t turn,
                                                       std::uint64_t chunks) {
  return at(bucket).spread.claim(turn, chunks);
}

void BucketBoard::chunk_added(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks) {
  if (at(bucket).add.finish(turn, chunks)) wake();
}

void BucketBoard::chunk_spread(std::size_t bucket, std::uint64_t turn, std::uint64_t chunks) {
  if (at(bucket).spread.finish(turn, chunks)) wake();
}

void BucketBoard::crossed(std::size_t bucket, std::uint64_t turn) {
  at(bucket).crossed.store(turn + 1);
  wake();
}

void BucketBoard::depart(const Departure& departure) {
  std::uint32_t none = 0;
  if (!header_->departed.compare_exchange_strong(none, 1)) return;
  header_->departure = departure;
  header_->departed.store(2);
  wake();
}

bool BucketBoard::has_departure() const {
  return header_->departed.load() == 2;
}

Departure BucketBoard::departure() const {
  return header_->departure;
}

void BucketBoard::wake() {
  if (header_->sleepers.load() == 0) return;
  header_->wakes.fetch_add(1);
  futex_wake(header_->wakes);
}

std::uint32_t BucketBoard::begin_sleep() {
  const std::uint32_t wakes = header_->wakes.load();
  header_->sleepers.fetch_add(1);
  return wakes;
}

void BucketBoard::sleep_until_woken(std::uint32_t wakes, std::chrono::nanoseconds limit) {
  futex_wait(header_->wakes, wakes, limit);
}

void BucketBoard::end_sleep() {
  header_->sleepers.fetch_sub(1);
}

}  // namespace cox::transport
