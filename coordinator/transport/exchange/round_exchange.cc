#include "coordinator/transport/exchange/round_exchange.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/transport/call.h"

namespace cox::transport {
namespace {

// A bucket up to the first size is one chunk: adding it takes about as long as waking a helper.
// About 16 chunks of a larger bucket let ranks of different speed share the work. No chunk is so
// small that claiming counts, or so large that a rank which loses the core holds up the others for
// long.
constexpr std::size_t kOneChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxChunkBytes = std::size_t{256} << 10;

std::size_t chunk_for(const BucketSpec& bucket, std::size_t wanted) {
  const std::size_t chosen = std::clamp(bucket.bytes / 16, kOneChunkBytes, kMaxChunkBytes);
  const std::size_t element = bucket.reduction.element_bytes;
  // Whole elements and, if they allow it, whole cache lines.
  const std::size_t unit = kLine % element == 0 ? kLine : element;
  return std::max(unit, (wanted > 0 ? wanted : chosen) / unit * unit);
}

constexpr std::uint32_t kPumpEvery = 16;  // polls; a poll costs a fraction of a pump

}  // namespace

Result<BucketLayout> BucketLayout::make(const std::vector<BucketSpec>& buckets,
                                        std::size_t chunk_bytes) {
  BucketLayout layout;
  for (const BucketSpec& bucket : buckets) {
    Status fits = check_reduction(bucket.reduction, bucket.bytes);
    if (!fits.ok()) return fits.with_context(concat("bucket ", layout.places.size()));
    const std::size_t chunk = chunk_for(bucket, chunk_bytes);
    const std::uint64_t chunks = std::max<std::uint64_t>(1, (bucket.bytes + chunk - 1) / chunk);
    layout.places.push_back({layout.arena_bytes, bucket.bytes, chunk, chunks, bucket.reduction});
    layout.arena_bytes += round_up(bucket.bytes, kLine);
  }
  layout.arena_bytes = round_up(std::max<std::size_t>(1, layout.arena_bytes), kPage);
  return layout;
}

std::uint64_t BucketLayout::fingerprint() const {
  Fnv1a64 hash;
  for (const BucketPlace& place : places) {
    hash.add(std::uint64_t{place.bytes});
    hash.add(std::uint64_t{place.chunk_bytes});
    hash.add(std::uint64_t{place.reduction.element_bytes});
  }
  hash.add(std::uint64_t{places.size()});
  return std::max<std::uint64_t>(1, hash.value());
}

RoundExchange::RoundExchange(RankId rank, BucketLayout layout, const WaitPolicy& wait,
                             std::string note)
    : rank_(rank),
      layout_(std::move(layout)),
      wait_(wait),
      note_(std::move(note)),
      done_(layout_.places.size(), 0),
      times_(layout_.places.size()) {}

Status RoundExchange::check_order(std::size_t bucket) const {
  const bool new_round = started_ == buckets() && bucket == 0;
  if (bucket >= buckets() || (!new_round && bucket != started_)) {
    return failed_precondition("exchange: expected the start of bucket ",
                               started_ % std::max<std::size_t>(1, buckets()), " of ", buckets(),
                               ", found bucket ", bucket,
                               "; every rank starts all buckets in ascending order");
  }
  if (!new_round || open_ == 0) return ok_status();
  return failed_precondition("exchange: expected all buckets done before the next round, found ",
                             open_, " in flight, the first of them bucket ", first_,
                             "; call wait_all() first");
}

void RoundExchange::begin_round() {
  ++turn_;
  started_ = 0;
  first_ = 0;
  std::fill(done_.begin(), done_.end(), std::uint8_t{0});
}

Status RoundExchange::start(std::size_t bucket) {
  if (!failure_.ok()) return failure_;
  if (Status fits = check_order(bucket); !fits.ok()) return fits;
  if (started_ == buckets()) begin_round();
  times_[bucket] = {Clock::now(), {}, {}};
  is_closed_ = false;
  ++started_;
  ++open_;
  return fail(give(bucket));
}

void RoundExchange::finish(std::size_t bucket) {
  done_[bucket] = 1;
  --open_;
  times_[bucket].done = Clock::now();
  while (first_ < started_ && done_[first_] != 0) ++first_;
}

bool RoundExchange::is_done(std::size_t bucket) const {
  return bucket < buckets() && done_[bucket] != 0;
}

Status RoundExchange::fail(Status status) {
  if (!status.ok() && failure_.ok()) failure_ = status;
  return status;
}

Result<RoundExchange::Moved> RoundExchange::move_on() {
  if (!failure_.ok()) return failure_;
  Result<Moved> moved = move();
  if (!moved.ok()) failure_ = moved.status();
  return moved;
}

Status RoundExchange::advance() {
  return move_on().status();
}

void RoundExchange::leave(const std::string& why) {
  if (left_) return;
  left_ = true;
  tell(why);
  failure_ = unavailable("this rank (", rank_.value(), ") has left the exchange: ", why);
}

Status RoundExchange::wait_all(const std::function<void()>& pump) {
  if (!failure_.ok()) return failure_;
  const std::size_t given = is_closed_ ? 0 : started_;  // in the round that follows the closed ones
  if (given < buckets()) {
    return failed_precondition("exchange: expected all buckets started before waiting, found ",
                               given, " of ", buckets());
  }
  WaitLimit limit(wait_.timeout);
  std::uint32_t vain = 0;
  for (std::uint64_t polls = 1; open_ > 0; ++polls) {
    Result<Moved> moved = move_on();
    if (!moved.ok()) return moved.status();
    if (open_ == 0) break;
    if (*moved == Moved::something) {
      vain = 0;
      if (pump) pump();
      continue;
    }
    pause(vain, pump);
    vain = std::min(vain + 1, wait_.spins + wait_.yields);
    const bool look = vain % 64 == 0 || vain >= wait_.spins + wait_.yields;
    if (look && limit.is_over()) return fail(timed_out(limit, polls));
  }
  Status closed = fail(close());
  is_closed_ = closed.ok();
  return closed;
}

void RoundExchange::pause(std::uint32_t vain, const std::function<void()>& pump) {
  const bool backs_off = vain >= wait_.spins + wait_.yields;
  if (backs_off) {
    back_off();
  } else if (vain >= wait_.spins) {
    sched_yield();
  }
  if (pump && (backs_off || vain % kPumpEvery == 0)) pump();
}

Status RoundExchange::timed_out(const WaitLimit& limit, std::uint64_t polls) const {
  const double seconds = std::chrono::duration<double>(wait_.timeout).count();
  const double gap = std::chrono::duration<double>(limit.longest_gap()).count();
  return unavailable("exchange: waited ", seconds, " s for ", wait_.waited_for, "; bucket ", first_,
                     " of round ", turn_, " is not complete: ", holds_up(first_), "; ", polls,
                     " polls, longest gap between two polls ", gap, " s");
}

}  // namespace cox::transport
