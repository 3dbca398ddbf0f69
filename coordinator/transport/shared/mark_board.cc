#include "coordinator/transport/shared/mark_board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include "coordinator/io/descriptor.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::transport {
namespace {

constexpr std::uint64_t kMagic = 0x3144'5242'4B52'4D43;  // "CMRKBRD1"
constexpr double kToldSeconds = 5;
constexpr int kTries = 64;  // of a mark that moves all the time

std::int64_t ticks(MarkClock::time_point time) {
  return std::chrono::duration_cast<Nanoseconds>(time.time_since_epoch()).count();
}

double age(std::int64_t since, MarkClock::time_point now) {
  return std::max(0.0, static_cast<double>(ticks(now) - since) / 1e9);
}

std::uint64_t own_space() {
  struct stat info {};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

ProcessId this_process() {
  return {getpid(), own_space()};
}

ProcessState parse_process_state(std::string_view stat_line) {
  const std::size_t name_end = stat_line.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= stat_line.size())
    return ProcessState::unknown;
  const char letter = stat_line[name_end + 2];
  if (letter == 'T' || letter == 't') return ProcessState::stopped;
  if (letter == 'Z' || letter == 'X' || letter == 'x') return ProcessState::gone;
  return ProcessState::running;
}

ProcessState state_of(const ProcessId& process) {
  if (process.number <= 0 || process.space == 0 || process.space != own_space())
    return ProcessState::unknown;
  const std::string path = "/proc/" + std::to_string(process.number) + "/stat";
  const io::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return errno == ENOENT ? ProcessState::gone : ProcessState::unknown;
  std::array<char, 512> line{};
  const ssize_t size = read(file.number(), line.data(), line.size());
  if (size < 0) return errno == ESRCH ? ProcessState::gone : ProcessState::unknown;
  return parse_process_state({line.data(), static_cast<std::size_t>(size)});
}

// Two copies of what a rank does: the writer fills the one that nobody is to read, then makes it
// the newest. A rank that is stopped in the middle leaves the other one whole.
struct alignas(kLine) MarkWriter::Slot {
  struct Copy {
    std::atomic<std::uint64_t> what;  // step x 256 + activity
    std::atomic<std::uint64_t> round;
    std::atomic<std::int64_t> since;
    std::atomic<std::int64_t> round_since;
  };
  std::atomic<std::uint64_t> moves;  // 0 = never written; the newest copy is the one at moves % 2
  std::atomic<std::int64_t> moved;   // when; a beat alone moves it
  std::atomic<std::uint64_t> space;  // of the process
  std::atomic<std::int32_t> process;
  std::atomic<std::uint32_t> is_end_explained;
  std::array<Copy, 2> copies;
};

struct alignas(kLine) MarkBoard::Header {
  std::atomic<std::uint64_t> magic;  // written last by format()
  std::uint64_t ranks;
};

// tell() writes a time and the marks to the board within this one.
constexpr std::size_t kToldBytes = 8 + 16 + MarkBoard::kMostTold * sizeof(RankMark);
static_assert(std::is_trivially_copyable_v<RankMark>);

// Whole lines, since slots follow.
std::size_t told_bytes() {
  return round_up(MaskBoard::bytes_needed(kToldBytes));
}

void MarkWriter::sign(const ProcessId& process) {
  if (slot_ == nullptr) return;
  slot_->space.store(process.space, std::memory_order_relaxed);
  slot_->process.store(process.number, std::memory_order_release);
}

void MarkWriter::enter(Activity activity, StepId step, MarkClock::time_point now) {
  now_.activity = activity;
  now_.step = step;
  now_.since = now;
  write(now);
}

void MarkWriter::begin_round(RoundId round, MarkClock::time_point now) {
  now_.round = round;
  now_.round_since = now;
  write(now);
}

void MarkWriter::beat(MarkClock::time_point now) {
  if (slot_ != nullptr) slot_->moved.store(ticks(now), std::memory_order_relaxed);
}

void MarkWriter::explain_end() {
  if (slot_ != nullptr) slot_->is_end_explained.store(1, std::memory_order_release);
}

// A reader that saw a word of a newer mark sees the newer number afterwards, too, and looks again.
void MarkWriter::write(MarkClock::time_point now) {
  if (slot_ == nullptr) return;
  const std::uint64_t moves = slot_->moves.load(std::memory_order_relaxed) + 1;
  Slot::Copy& to = slot_->copies[moves % 2];
  const std::uint64_t what = now_.step.value() << 8 | static_cast<std::uint64_t>(now_.activity);
  to.what.store(what, std::memory_order_release);
  to.round.store(now_.round.value(), std::memory_order_release);
  to.since.store(ticks(now_.since), std::memory_order_release);
  to.round_since.store(ticks(now_.round_since), std::memory_order_release);
  slot_->moved.store(ticks(now), std::memory_order_relaxed);
  slot_->moves.store(moves, std::memory_order_release);
}

std::size_t MarkBoard::bytes_needed(std::size_t ranks) {
  static_assert(sizeof(MarkWriter::Slot) == 2 * kLine && sizeof(Header) == kLine);
  return sizeof(Header) + told_bytes() + ranks * sizeof(MarkWriter::Slot);
}

MarkBoard::MarkBoard(std::byte* memory, std::size_t ranks) : memory_(memory), ranks_(ranks) {}

MarkWriter::Slot& MarkBoard::slot_at(std::size_t slot) const {
  std::byte* place = memory_ + sizeof(Header) + told_bytes() + slot * sizeof(MarkWriter::Slot);
  return *std::launder(reinterpret_cast<MarkWriter::Slot*>(place));
}

std::span<std::byte> MarkBoard::told_memory() const {
  return {memory_ + sizeof(Header), told_bytes()};
}

void MarkBoard::tell(std::span<const RankMark> culprits, MarkClock::time_point now) const {
  auto board = MaskBoard::attach(told_memory());
  if (!board.ok()) return;
  const std::int64_t at = ticks(now);
  const auto marks = culprits.first(std::min(culprits.size(), kMostTold));
  const std::array frames = {std::as_bytes(std::span(&at, 1)), std::as_bytes(marks)};
  static_cast<void>(board->publish(frames));  // the board has room for kMostTold
}

std::vector<RankMark> MarkBoard::told(MarkClock::time_point now) const {
  const auto board = MaskBoard::attach(told_memory());
  if (!board.ok()) return {};
  MaskReader reader(*board);
  if (!reader.poll() || reader.frames().size() != 2) return {};
  std::int64_t at = 0;
  std::memcpy(&at, reader.frames()[0].data(), sizeof at);
  const double seconds = age(at, now);
  const auto bytes = reader.frames()[1];
  if (seconds > kToldSeconds || bytes.empty()) return {};
  std::vector<RankMark> marks(bytes.size() / sizeof(RankMark));
  std::memcpy(static_cast<void*>(marks.data()), bytes.data(), bytes.size());
  for (RankMark& mark : marks) {
    mark.activity_seconds += seconds;
    mark.round_seconds += seconds;
    mark.silent_seconds += seconds;
  }
  return marks;
}

Result<MarkBoard> MarkBoard::format(std::span<std::byte> memory, std::size_t ranks) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(memory.data()) % kLine == 0;
  if (ranks > static_cast<std::size_t>(kMaxRanks) || !is_aligned ||
      memory.size() < bytes_needed(ranks)) {
    return invalid_argument("mark board: expected at most ", kMaxRanks, " ranks and ",
                            bytes_needed(ranks), " bytes of aligned memory, found ", ranks, " and ",
                            memory.size());
  }
  auto* header = new (memory.data()) Header{};
  header->ranks = ranks;
  const MarkBoard board(memory.data(), ranks);
  if (auto told = MaskBoard::format(board.told_memory(), kToldBytes); !told.ok())
    return told.status();
  for (std::size_t slot = 0; slot < ranks; ++slot) new (&board.slot_at(slot)) MarkWriter::Slot{};
  header->magic.store(kMagic, std::memory_order_release);
  return board;
}

Result<MarkBoard> MarkBoard::attach(std::span<std::byte> memory, std::size_t ranks) {
  const bool has_room = memory.size() >= bytes_needed(ranks);
  const auto* header = has_room ? std::launder(reinterpret_cast<Header*>(memory.data())) : nullptr;
  if (header != nullptr && header->magic.load(std::memory_order_acquire) == kMagic &&
      header->ranks == ranks) {
    return MarkBoard(memory.data(), ranks);
  }
  return data_loss("mark board: expected one of this version for ", ranks,
                   " ranks, found other bytes; all ranks must run the same build and attach after "
                   "the board was formatted");
}

MarkWriter MarkBoard::writer(std::size_t slot) const {
  return MarkWriter(&slot_at(slot));
}

std::vector<RankMark> MarkBoard::read(MarkClock::time_point now, Look look) const {
  std::vector<RankMark> marks;
  marks.reserve(ranks_);
  for (std::size_t slot = 0; slot < ranks_; ++slot) marks.push_back(read_slot(slot, now, look));
  return marks;
}

RankMark MarkBoard::read_slot(std::size_t slot, MarkClock::time_point now, Look look) const {
  const MarkWriter::Slot& from = slot_at(slot);
  RankMark mark;
  for (int i = 0; i < kTries && mark.activity == Activity::unknown; ++i) {
    const std::uint64_t moves = from.moves.load(std::memory_order_acquire);
    if (moves == 0) return mark;
    const MarkWriter::Slot::Copy& copy = from.copies[moves % 2];
    const std::uint64_t what = copy.what.load(std::memory_order_acquire);
    mark.round = RoundId(copy.round.load(std::memory_order_acquire));
    mark.activity_seconds = age(copy.since.load(std::memory_order_acquire), now);
    mark.round_seconds = age(copy.round_since.load(std::memory_order_acquire), now);
    if (from.moves.load(std::memory_order_relaxed) != moves) continue;
    const std::uint64_t activity = what & 0xFF;
    if (activity >= kActivities) return mark;
    mark.activity = static_cast<Activity>(activity);
    mark.step = StepId(what >> 8);
  }
  mark.silent_seconds = age(from.moved.load(std::memory_order_relaxed), now);
  if (look == Look::marks_and_processes) mark.process = state_of(process(slot));
  return mark;
}

ProcessId MarkBoard::process(std::size_t slot) const {
  const MarkWriter::Slot& from = slot_at(slot);
  const std::int32_t number = from.process.load(std::memory_order_acquire);
  return {number, from.space.load(std::memory_order_relaxed)};
}

bool MarkBoard::is_end_explained(std::size_t slot) const {
  return slot_at(slot).is_end_explained.load(std::memory_order_acquire) != 0;
}

}  // namespace cox::transport
