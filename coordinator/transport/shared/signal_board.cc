#include "coordinator/transport/shared/signal_board.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>

#include "coordinator/transport/shared/check_word.h"
#include "coordinator/transport/shared/futex.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::transport {
namespace {

constexpr std::uint64_t kSignalBoardMagic = 0x3244'5242'4749'5343;  // "CSIGBRD2"
constexpr std::chrono::nanoseconds kLongestSleep = std::chrono::milliseconds(100);

// Encodes "wake me when the count of arrivals reaches target". 0 = no sleeper.
constexpr std::uint64_t sleeper_for(std::uint32_t target) {
  return (std::uint64_t{1} << 32) | target;
}

// Counts wrap around, so they are compared by their distance.
bool reached(std::uint32_t count, std::uint32_t target) {
  return static_cast<std::int32_t>(count - target) >= 0;
}

}  // namespace

struct SignalBoard::Header {
  std::atomic<std::uint64_t> magic;  // written last by format()
  std::atomic<std::int32_t> ranks;
  std::atomic<std::uint32_t> blocks;
  alignas(kLine) std::atomic<std::uint32_t> arrivals;  // reports ever posted
  std::atomic<std::uint64_t> sleeper;
  alignas(kLine) std::atomic<std::uint32_t> wakes;  // the word that the reader sleeps on
  std::atomic<std::uint32_t> notices;               // calls of notify()
  alignas(kLine) std::atomic<std::uint32_t> taken;  // reports ever collected; the reader's
  std::atomic<std::uint32_t> notices_seen;          // the reader's
  std::atomic<std::int32_t> uncounted;              // minus reports taken uncounted; the reader's
};

struct SignalBoard::Slot {
  std::atomic<std::uint64_t> posted;  // the writer's line
  std::atomic<std::uint32_t> evidence_count;
  std::atomic<std::uint64_t> evidence_check;
  alignas(kLine) std::atomic<std::uint64_t> consumed;  // the reader's line
  alignas(kLine) RankSignal signal;
  // shape.blocks BlockEvidence follow.

  std::byte* evidence() { return reinterpret_cast<std::byte*>(this + 1); }
};

namespace {

Status check_shape(const BoardShape& shape, std::size_t needed, std::span<std::byte> memory) {
  if (shape.ranks < 1 || shape.ranks > kMaxRanks || shape.blocks > kMaxBlocks) {
    return invalid_argument("signal board: expected 1 .. ", kMaxRanks, " ranks and at most ",
                            kMaxBlocks, " blocks, found ", shape.ranks, " and ", shape.blocks);
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kLine != 0) {
    return invalid_argument("signal board: expected memory aligned to 64 bytes");
  }
  if (memory.size() < needed) {
    return resource_exhausted("signal board: expected ", needed, " bytes, found ", memory.size());
  }
  return ok_status();
}

}  // namespace

std::size_t SignalBoard::bytes_needed(const BoardShape& shape) {
  const std::size_t slot = round_up(sizeof(Slot) + shape.blocks * sizeof(BlockEvidence));
  return round_up(sizeof(Header)) + static_cast<std::size_t>(std::max(0, shape.ranks)) * slot;
}

SignalBoard::SignalBoard(std::byte* memory, const BoardShape& shape)
    : memory_(memory), header_(std::launder(reinterpret_cast<Header*>(memory))), shape_(shape) {}

SignalBoard::Slot& SignalBoard::slot_at(std::int32_t slot) const {
  const std::size_t bytes = round_up(sizeof(Slot) + shape_.blocks * sizeof(BlockEvidence));
  std::byte* place = memory_ + round_up(sizeof(Header)) + static_cast<std::size_t>(slot) * bytes;
  return *std::launder(reinterpret_cast<Slot*>(place));
}

Result<SignalBoard> SignalBoard::format(std::span<std::byte> memory, const BoardShape& shape) {
  if (Status fits = check_shape(shape, bytes_needed(shape), memory); !fits.ok()) return fits;
  Header* header = new (memory.data()) Header{};
  header->ranks = shape.ranks;
  header->blocks = shape.blocks;
  SignalBoard board(memory.data(), shape);
  for (std::int32_t r = 0; r < shape.ranks; ++r) new (&board.slot_at(r)) Slot{};
  header->magic.store(kSignalBoardMagic, std::memory_order_release);
  return board;
}

Result<SignalBoard> SignalBoard::attach(std::span<std::byte> memory, const BoardShape& shape) {
  if (Status fits = check_shape(shape, bytes_needed(shape), memory); !fits.ok()) return fits;
  SignalBoard board(memory.data(), shape);
  if (board.header_->magic.load(std::memory_order_acquire) != kSignalBoardMagic) {
    return data_loss(
        "signal board: expected a board of this version, found other bytes; all ranks must run the "
        "same build and attach after the board was formatted");
  }
  const BoardShape found{board.header_->ranks.load(), board.header_->blocks.load()};
  if (!(found == shape)) {
    return data_loss("signal board: expected ", shape.ranks, " ranks and ", shape.blocks,
                     " blocks, found ", found.ranks, " and ", found.blocks,
                     "; all ranks must run the same model");
  }
  return board;
}

bool SignalBoard::post(std::int32_t slot, const RankSignal& signal,
                       std::span<const BlockEvidence> evidence) {
  Slot& mine = slot_at(slot);
  const std::uint64_t last = mine.posted.load(std::memory_order_relaxed);
  if (mine.consumed.load(std::memory_order_acquire) != last) return false;
  mine.signal = signal;
  const std::size_t count = std::min<std::size_t>(evidence.size(), shape_.blocks);
  const auto bytes = std::as_bytes(evidence.first(count));
  mine.evidence_count.store(static_cast<std::uint32_t>(count), std::memory_order_relaxed);
  mine.evidence_check.store(check_word(bytes), std::memory_order_relaxed);
  std::ranges::copy(bytes, mine.evidence());
  mine.posted.store(last + 1, std::memory_order_release);

  const std::uint32_t arrived = header_->arrivals.fetch_add(1) + 1;
  std::uint64_t sleeper = header_->sleeper.load();
  if (sleeper != 0 && reached(arrived, static_cast<std::uint32_t>(sleeper)) &&
      header_->sleeper.compare_exchange_strong(sleeper, 0)) {
    header_->wakes.fetch_add(1);
    futex_wake(header_->wakes);
  }
  return true;
}

bool SignalBoard::consumed(std::int32_t slot) const {
  const Slot& mine = slot_at(slot);
  return mine.consumed.load(std::memory_order_acquire) ==
         mine.posted.load(std::memory_order_relaxed);
}

void SignalBoard::notify() {
  header_->notices.fetch_add(1);
  header_->wakes.fetch_add(1);
  futex_wake(header_->wakes);
}

std::int32_t SignalBoard::fresh() const {
  return static_cast<std::int32_t>(header_->arrivals.load() -
                                   header_->taken.load(std::memory_order_relaxed));
}

std::optional<BoardWake> SignalBoard::reason_to_wake(std::int32_t expected) {
  const std::uint32_t notices = header_->notices.load();
  const bool is_notified = notices != header_->notices_seen.load(std::memory_order_relaxed);
  if (is_notified) header_->notices_seen.store(notices, std::memory_order_relaxed);
  if (fresh() >= expected) return BoardWake::complete;
  return is_notified ? std::optional(BoardWake::notified) : std::nullopt;
}

BoardWake SignalBoard::wait(std::int32_t expected, std::chrono::nanoseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const std::uint32_t target =
      header_->taken.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(expected);
  for (;;) {
    const std::uint32_t wakes = header_->wakes.load();
    header_->sleeper.store(sleeper_for(target));
    const auto reason = reason_to_wake(expected);
    const auto left = deadline - std::chrono::steady_clock::now();
    if (reason || left.count() <= 0) {
      header_->sleeper.store(0);
      return reason.value_or(BoardWake::timed_out);
    }
    // Sleeps for a short time only, in case a poster died between its count and its wake.
    futex_wait(header_->wakes, wakes, std::min<std::chrono::nanoseconds>(left, kLongestSleep));
  }
}

BoardWake SignalBoard::wait_polling(std::int32_t expected, std::chrono::nanoseconds interval,
                                    int polls) {
  for (;; --polls) {
    const std::uint32_t wakes = header_->wakes.load();
    if (const auto reason = reason_to_wake(expected)) return *reason;
    if (polls <= 0) return BoardWake::timed_out;
    futex_wait(header_->wakes, wakes, interval);
  }
}

CollectedSignals SignalBoard::collect() {
  CollectedSignals collected;
  collect(collected);
  return collected;
}

void SignalBoard::collect(CollectedSignals& into) {
  into.signals.clear();
  into.evidence.assign(shape_.blocks, BlockEvidence{});
  const std::int32_t counted = fresh();
  for (std::int32_t r = 0; r < shape_.ranks; ++r) {
    Slot& slot = slot_at(r);
    const std::uint64_t posted = slot.posted.load(std::memory_order_acquire);
    if (posted == slot.consumed.load(std::memory_order_relaxed)) continue;
    into.signals.push_back(slot.signal);
    take_evidence(slot, into);
    slot.consumed.store(posted, std::memory_order_release);
  }
  settle_counts(counted, static_cast<std::int32_t>(into.signals.size()));
}

// Drops evidence that fails its check.
void SignalBoard::take_evidence(Slot& slot, CollectedSignals& into) const {
  const std::size_t count =
      std::min<std::size_t>(slot.evidence_count.load(std::memory_order_relaxed), shape_.blocks);
  into.given.resize(count);
  const auto bytes = std::as_writable_bytes(std::span(into.given));
  std::copy_n(slot.evidence(), bytes.size(), bytes.begin());
  if (slot.evidence_check.load(std::memory_order_relaxed) != check_word(bytes)) return;
  merge_into(std::span(into.evidence).first(count), into.given);
}

// `counted` is fresh() before the slots were read; `taken` is the number of reports found there.
// Every counted report lies in its slot, so more counts than reports are damage. Fewer counts mean
// a writer between its report and its count, or damage if the next collect() finds the same
// shortage. No count is off by more than the number of ranks.
void SignalBoard::settle_counts(std::int32_t counted, std::int32_t taken) {
  header_->taken.fetch_add(static_cast<std::uint32_t>(taken));
  const std::int32_t after = fresh();
  const std::int32_t before = header_->uncounted.exchange(std::min(after, 0));
  const bool too_many = counted > taken;
  const bool too_few = after < 0 && after == before;
  if (too_few || after < -shape_.ranks || after > shape_.ranks) {
    header_->taken.fetch_add(static_cast<std::uint32_t>(after));
  } else if (too_many) {
    header_->taken.fetch_add(static_cast<std::uint32_t>(counted - taken));
  }
}

}  // namespace cox::transport
