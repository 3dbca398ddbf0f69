#include "coordinator/transport/shared/mark_board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <type_traits>

#include "coordinator/core/text.h"
#include "coordinator/io/descriptor.h"
#include "coordinator/transport/shared/check_word.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/segment.h"

namespace cox::transport {
namespace {

constexpr std::uint64_t kMarkBoardMagic = 0x3244'5242'4B52'4D43;  // "CMRKBRD2"
constexpr double kToldSeconds = 5;
constexpr int kMarkTries = 64;                          // to read a mark that changes all the time
constexpr std::uint32_t kEndIsExplained = 0x444E'4558;  // "XEND"; other numbers are damage

std::int64_t ticks(MarkClock::time_point time) {
  return std::chrono::duration_cast<Nanoseconds>(time.time_since_epoch()).count();
}

double age(std::int64_t since, MarkClock::time_point now) {
  return std::max(0.0, (static_cast<double>(ticks(now)) - static_cast<double>(since)) / 1e9);
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
  const std::string path = concat("/proc/", process.number, "/stat");
  const io::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return errno == ENOENT ? ProcessState::gone : ProcessState::unknown;
  std::array<char, 512> line{};
  const ssize_t size = read(file.number(), line.data(), line.size());
  if (size < 0) return errno == ESRCH ? ProcessState::gone : ProcessState::unknown;
  return parse_process_state({line.data(), static_cast<std::size_t>(size)});
}

namespace {

// The words of a copy, each read once.
struct MarkWords {
  std::uint64_t what = 0;
  std::uint64_t round = 0;
  std::int64_t since = 0;
  std::int64_t round_since = 0;

  std::uint64_t check(std::uint64_t moves) const {
    return check_word({moves, what, round, static_cast<std::uint64_t>(since),
                       static_cast<std::uint64_t>(round_since)});
  }
};

}  // namespace

// Two copies of a rank's mark. The writer fills the older copy and then makes it the newest. A rank
// stopped in the middle leaves the other copy whole. Each copy has a check of its words and its
// number, so stray writes give no mark instead of a wrong one.
struct alignas(kLine) MarkWriter::Slot {
  struct Copy {
    std::atomic<std::uint64_t> what;  // step x 256 + activity
    std::atomic<std::uint64_t> round;
    std::atomic<std::int64_t> since;
    std::atomic<std::int64_t> round_since;
    std::atomic<std::uint64_t> check;
  };
  std::atomic<std::uint64_t> moves;  // 0 = never written; the newest copy is the one at moves % 2
  std::atomic<std::int64_t> moved;   // time of the last write or beat
  std::atomic<std::uint64_t> space;  // PID namespace of the process
  std::atomic<std::int32_t> process;
  std::atomic<std::uint32_t> end_explained;  // kEndIsExplained or 0
  std::atomic<std::uint64_t> signature;      // check of space and process
  std::array<Copy, 2> copies;

  // Returns the newest copy, each word read once. Returns nothing if no copy is whole.
  std::optional<MarkWords> newest() const;
};

std::optional<MarkWords> MarkWriter::Slot::newest() const {
  for (int i = 0; i < kMarkTries; ++i) {
    const std::uint64_t now = moves.load(std::memory_order_acquire);
    const Copy& copy = copies[now % 2];
    const MarkWords words{copy.what.load(std::memory_order_acquire),
                          copy.round.load(std::memory_order_acquire),
                          copy.since.load(std::memory_order_acquire),
                          copy.round_since.load(std::memory_order_acquire)};
    const bool is_whole = copy.check.load(std::memory_order_acquire) == words.check(now);
    if (moves.load(std::memory_order_relaxed) == now)
      return is_whole ? std::optional(words) : std::nullopt;
  }
  return std::nullopt;
}

namespace {

std::uint64_t signature_of(const ProcessId& process) {
  return check_word({process.space, static_cast<std::uint64_t>(process.number)});
}

}  // namespace

struct alignas(kLine) MarkBoard::Header {
  std::atomic<std::uint64_t> magic;  // written last by format()
  std::uint64_t ranks;
};

// tell() writes one frame to the inner MaskBoard: the head, then the marks.
struct ToldHead {
  std::uint64_t check = 0;  // covers the rest of the frame
  std::int64_t at = 0;
};
constexpr std::size_t kToldBytes = 8 + sizeof(ToldHead) + MarkBoard::kMostTold * sizeof(RankMark);
static_assert(std::is_trivially_copyable_v<RankMark>);

namespace {

std::uint64_t check_of_told(std::span<const std::byte> frame) {
  return check_word(frame.subspan(sizeof(ToldHead::check)));
}

bool is_sound(const RankMark& mark) {
  const auto is_age = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  return mark.rank.value() >= 0 && mark.rank.value() < kMaxRanks &&
         static_cast<std::size_t>(mark.activity) < kActivities &&
         static_cast<std::size_t>(mark.process) < kProcessStates && is_age(mark.activity_seconds) &&
         is_age(mark.round_seconds) && is_age(mark.silent_seconds);
}

}  // namespace

// Whole lines, because slots follow.
std::size_t told_bytes() {
  return round_up(MaskBoard::bytes_needed(kToldBytes));
}

void MarkWriter::sign(const ProcessId& process) {
  if (slot_ == nullptr) return;
  slot_->space.store(process.space, std::memory_order_relaxed);
  slot_->signature.store(signature_of(process), std::memory_order_relaxed);
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
  if (slot_ != nullptr) slot_->end_explained.store(kEndIsExplained, std::memory_order_release);
}

// A reader that saw a word of a newer mark then sees the newer number too, and reads again.
void MarkWriter::write(MarkClock::time_point now) {
  if (slot_ == nullptr) return;
  const std::uint64_t moves = slot_->moves.load(std::memory_order_relaxed) + 1;
  Slot::Copy& to = slot_->copies[moves % 2];
  const MarkWords words{now_.step.value() << 8 | static_cast<std::uint64_t>(now_.activity),
                        now_.round.value(), ticks(now_.since), ticks(now_.round_since)};
  to.what.store(words.what, std::memory_order_release);
  to.round.store(words.round, std::memory_order_release);
  to.since.store(words.since, std::memory_order_release);
  to.round_since.store(words.round_since, std::memory_order_release);
  to.check.store(words.check(moves), std::memory_order_release);
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
  ToldHead head{0, ticks(now)};
  const auto marks = std::as_bytes(culprits.first(std::min(culprits.size(), kMostTold)));
  std::vector<std::byte> frame(sizeof head + marks.size());
  std::memcpy(frame.data(), &head, sizeof head);
  std::ranges::copy(marks, frame.begin() + sizeof head);
  head.check = check_of_told(frame);
  std::memcpy(frame.data(), &head, sizeof head);
  const std::array frames = {std::span<const std::byte>(frame)};
  static_cast<void>(board->publish(frames));  // the board has room for kMostTold
}

std::vector<RankMark> MarkBoard::told(MarkClock::time_point now) const {
  const auto board = MaskBoard::attach(told_memory());
  if (!board.ok()) return {};
  MaskReader reader(*board);
  if (!reader.poll() || reader.frames().size() != 1) return {};
  const auto frame = reader.frames().front();
  ToldHead head;
  if (frame.size() < sizeof head) return {};
  std::memcpy(&head, frame.data(), sizeof head);
  const auto bytes = frame.subspan(sizeof head);
  const double seconds = age(head.at, now);
  if (head.check != check_of_told(frame) || seconds > kToldSeconds || bytes.empty()) return {};
  std::vector<RankMark> marks(bytes.size() / sizeof(RankMark));
  std::memcpy(static_cast<void*>(marks.data()), bytes.data(), marks.size() * sizeof(RankMark));
  if (!std::ranges::all_of(marks, is_sound)) return {};
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
  header->magic.store(kMarkBoardMagic, std::memory_order_release);
  return board;
}

Result<MarkBoard> MarkBoard::attach(std::span<std::byte> memory, std::size_t ranks) {
  const bool has_room = memory.size() >= bytes_needed(ranks);
  const auto* header = has_room ? std::launder(reinterpret_cast<Header*>(memory.data())) : nullptr;
  if (header != nullptr && header->magic.load(std::memory_order_acquire) == kMarkBoardMagic &&
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
  const std::optional<MarkWords> words = from.newest();
  RankMark mark;
  if (!words || (words->what & 0xFF) >= kActivities) return mark;
  mark.activity = static_cast<Activity>(words->what & 0xFF);
  mark.step = StepId(words->what >> 8);
  mark.round = RoundId(words->round);
  mark.activity_seconds = age(words->since, now);
  mark.round_seconds = age(words->round_since, now);
  // Every write of the mark is a beat too, so a longer silence is damage.
  mark.silent_seconds =
      std::min(age(from.moved.load(std::memory_order_relaxed), now), mark.activity_seconds);
  if (look == Look::marks_and_processes) mark.process = state_of(process(slot));
  return mark;
}

ProcessId MarkBoard::process(std::size_t slot) const {
  const MarkWriter::Slot& from = slot_at(slot);
  const std::int32_t number = from.process.load(std::memory_order_acquire);
  const ProcessId process{number, from.space.load(std::memory_order_relaxed)};
  const bool is_signed = from.signature.load(std::memory_order_relaxed) == signature_of(process);
  return is_signed ? process : ProcessId{};
}

bool MarkBoard::is_end_explained(std::size_t slot) const {
  return slot_at(slot).end_explained.load(std::memory_order_acquire) == kEndIsExplained;
}

}  // namespace cox::transport
