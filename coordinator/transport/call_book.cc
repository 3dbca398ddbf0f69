#include "coordinator/transport/call_book.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstring>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/words.h"

namespace cox::transport {
namespace {

static_assert(std::is_trivially_copyable_v<CallNote>);

constexpr Seconds kSlow{1};
constexpr std::chrono::milliseconds kLookEvery{500};
constexpr std::chrono::seconds kHearOut{3};  // for the note of a rank in another call
constexpr std::uint32_t kPollsALook = 16;
constexpr std::size_t kMostNamed = 4;
constexpr std::size_t kMostNameLength = 60;

std::uint64_t hash_of(std::string_view text) {
  Fnv1a64 hash;
  hash.add(text);
  return hash.value();
}

template <std::size_t Size>
std::string text_of(const std::array<char, Size>& words) {
  return printable({words.data(), strnlen(words.data(), Size)});
}

// Writes into zeroed words. Cuts off text that does not fit, and keeps one zero at the end.
class StampWriter {
 public:
  explicit StampWriter(std::span<char> words) : left_(words.first(words.size() - 1)) {}

  StampWriter& put(std::string_view text) {
    left_ = left_.subspan(text.copy(left_.data(), left_.size()));
    return *this;
  }
  template <std::integral Number>
  StampWriter& put(Number number) {
    std::array<char, 24> digits{};
    const char* const end = std::to_chars(digits.begin(), digits.end(), number).ptr;
    return put(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
  }

 private:
  std::span<char> left_;
};

std::uint64_t hash_of_words(const CallStamp& stamp) {
  return hash_of({stamp.words.data(), strnlen(stamp.words.data(), stamp.words.size())});
}

}  // namespace

// Allocates nothing, because every call of a step gets a stamp.
CallStamp CallStamp::of(std::string_view name, const Call& call) {
  CallStamp stamp;
  StampWriter writer(stamp.words);
  if (!name.empty()) writer.put(name.substr(0, kMostNameLength)).put(": ");
  writer.put(to_string(call.operation)).put(" of ").put(call.bytes).put(" bytes");
  if (call.root.value() >= 0) writer.put(", root ").put(call.root.value());
  if (call.element_bytes > 0) writer.put(" (elements of ").put(call.element_bytes).put(")");
  stamp.hash = hash_of_words(stamp);
  return stamp;
}

CallStamp CallStamp::of(std::string_view name) {
  CallStamp stamp;
  StampWriter(stamp.words).put(name);
  stamp.hash = hash_of_words(stamp);
  return stamp;
}

bool CallStamp::is_sound() const {
  return hash == hash_of_words(*this);
}

std::string CallStamp::text() const {
  return text_of(words);
}

Status check_same_call(const std::vector<CallOf>& calls) {
  std::vector<CallOf> kinds;
  for (const CallOf& call : calls) {
    const auto is_same = [&](const CallOf& kind) { return kind.stamp.is_same(call.stamp); };
    if (std::ranges::none_of(kinds, is_same)) kinds.push_back(call);
  }
  if (kinds.size() < 2) return ok_status();
  std::string found;
  for (std::size_t i = 0; i < std::min(kinds.size(), kMostNamed); ++i) {
    found += concat(i == 0 ? "" : ", ", kinds[i].stamp.text(), " on rank ", kinds[i].rank);
  }
  return invalid_argument("expected the same call on all ranks, found ", found,
                          "; all ranks must run the same program and make the same calls of "
                          "Coxswain in the same order");
}

CallLine::CallLine(std::string_view name, std::vector<RankId> members)
    : id_(hash_of(name)), members_(std::move(members)) {}

bool CallLine::has(RankId rank) const {
  return std::ranges::find(members_, rank) != members_.end();
}

void CallLine::begin_at(std::uint64_t number, const CallStamp& stamp) {
  begun_ = number;
  stamps_[number % kKept] = stamp;
}

const CallStamp* CallLine::call(std::uint64_t number) const {
  const bool is_kept = number <= begun_ && number + kKept > begun_ && number > 0;
  return is_kept ? &stamps_[number % kKept] : nullptr;
}

CallBook::CallBook(std::unique_ptr<CallPost> post)
    : post_(std::move(post)), heard_(static_cast<std::size_t>(post_->size())) {
  std::vector<RankId> all;
  for (std::int32_t rank = 0; rank < post_->size(); ++rank) all.push_back(RankId(rank));
  rounds_ = open_line("rounds", all);
  end_ = open_line("the end", std::move(all));
}

std::shared_ptr<CallLine> CallBook::open_line(std::string_view name, std::vector<RankId> members) {
  std::erase_if(lines_, [](const auto& line) { return line.expired(); });
  auto line = std::make_shared<CallLine>(name, std::move(members));
  lines_.push_back(line);
  return line;
}

CallStamp CallBook::begin(CallLine& line, const Call& call) {
  if (is_named()) end();
  const CallStamp stamp = CallStamp::of(is_named() ? name_ : "", call);
  line.begin(stamp);
  return stamp;
}

// Uses one name for all, because a rank that only joins a round gives its part by another call.
void CallBook::begin_round(RoundId round) {
  end();
  rounds_->begin_at(round.value() + 1, CallStamp::of("the averaging of a step"));
}

void CallBook::begin_end() {
  end();
  end_->begin(CallStamp::of("the end of its session"));
}

void CallBook::end() {
  if (told_line_ == 0) return;
  told_line_ = 0;
  CallNote note;
  note.kind = CallNote::Kind::goes_on;
  note.rank = post_->rank().value();
  post_->send_to_others(note);
}

const CallLine* CallBook::find(std::uint64_t id) const {
  for (const auto& each : lines_) {
    const auto line = each.lock();
    if (line != nullptr && line->id() == id) return line.get();  // kept by its communicator
  }
  return nullptr;
}

void CallBook::post(CallNote::Kind kind, const CallLine& line, const std::string& why) {
  CallNote note;
  note.kind = kind;
  note.rank = post_->rank().value();
  note.line = line.id();
  note.number = line.begun();
  note.stamp = line.newest();
  for (const auto& each : lines_) {
    const auto known = each.lock();
    if (known == nullptr || known->begun() == 0 || note.lines == CallNote::kMostLines) continue;
    const bool waits_elsewhere = known == rounds_ && &line != rounds_.get();
    const std::uint64_t begun =
        waits_elsewhere ? std::min(known->begun(), rounds_done_) : known->begun();
    note.begun[note.lines++] = {known->id(), begun};
  }
  why.copy(note.why.data(), note.why.size() - 1);
  post_->send_to_others(note);
}

void CallBook::read_notes() {
  while (const auto note = post_->receive()) {
    const bool is_sound = note->magic == CallNote::kMagic && note->rank >= 0 &&
                          note->rank < post_->size() && note->lines <= CallNote::kMostLines &&
                          (note->kind == CallNote::Kind::goes_on || note->stamp.is_sound());
    if (!is_sound) continue;
    CallNote& kept = heard_[static_cast<std::size_t>(note->rank)];
    if (kept.kind != CallNote::Kind::fails) kept = *note;
  }
}

Status CallBook::look(const CallLine& line, Clock::time_point since) {
  const bool skips = ++polls_ % kPollsALook != 0 && failure_.ok();
  return skips ? ok_status() : look_now(line, since);
}

Status CallBook::look_now(const CallLine& line, Clock::time_point since) {
  if (!failure_.ok()) return failure_;
  const Clock::time_point now = Clock::now();
  const Seconds waited = now - since;
  if (waited < kSlow || now < next_look_) return ok_status();
  next_look_ = now + kLookEvery;
  if (std::exchange(told_line_, line.id()) != line.id())
    post(CallNote::Kind::waits, line, std::string());
  read_notes();
  Status found = compare(line);
  if (!found.ok() && is_new_suspicion(line)) return ok_status();
  failure_ = std::move(found);
  if (!failure_.ok()) post(CallNote::Kind::fails, line, failure_.message());
  const bool is_watched_here = &line != rounds_.get() && &line != end_.get();
  if (failure_.ok() && on_slow_ && is_watched_here) on_slow_(slow_call(line, waited));
  return failure_;
}

// Two ranks in different calls are reported only at the second look at one wait: on a busy machine
// the wait may have ended long before this rank's last look.
bool CallBook::is_new_suspicion(const CallLine& line) {
  const Suspicion now{line.id(), line.begun()};
  return std::exchange(suspicion_, now) != now;
}

Status CallBook::compare(const CallLine& line) {
  for (const CallNote& note : heard_) {
    if (note.kind == CallNote::Kind::none || note.kind == CallNote::Kind::goes_on) continue;
    if (Status same = compare(line, note); !same.ok()) return same;
    if (note.kind == CallNote::Kind::fails)
      return unavailable("rank ", note.rank, " has failed: ", text_of(note.why));
  }
  return ok_status();
}

// Two ranks that wait in the same call are in order. A rank that waits in a call which the other
// rank began earlier is in order too. If neither rank has begun the other's call, the ranks wait
// for each other.
Status CallBook::compare(const CallLine& line, const CallNote& note) const {
  const RankId other(note.rank);
  const CallLine* theirs = find(note.line);
  if (theirs == nullptr || !theirs->has(post_->rank())) return ok_status();
  if (const CallStamp* mine = theirs->call(note.number))
    return check_same_call({{post_->rank(), *mine}, {other, note.stamp}});
  const bool is_begun_here = theirs->begun() >= note.number;
  if (is_begun_here || theirs == &line || !line.has(other)) return ok_status();
  const auto known = note.begun.begin() + note.lines;
  const auto begun = std::find_if(note.begun.begin(), known,
                                  [&](const auto& each) { return each.line == line.id(); });
  if (begun != known && begun->calls >= line.begun()) return ok_status();
  return check_same_call({{post_->rank(), line.newest()}, {other, note.stamp}});
}

CallBook::SlowCall CallBook::slow_call(const CallLine& line, Seconds waited) const {
  SlowCall slow{line.newest().text(), waited, {}};
  for (const RankId member : line.members()) {
    const CallNote& note = heard_[static_cast<std::size_t>(member.value())];
    const bool waits_there =
        note.kind == CallNote::Kind::waits && note.line == line.id() && note.number == line.begun();
    if (member != post_->rank() && !waits_there) slow.missing.push_back(member);
  }
  return slow;
}

Status CallBook::failed(const CallLine& line, const Status& why) {
  if (!failure_.ok()) return failure_;
  failure_ = why;
  post(CallNote::Kind::fails, line, why.message());
  if (why.code() == StatusCode::invalid_argument) return why;  // the message names the calls
  const Clock::time_point until = Clock::now() + kHearOut;
  for (;;) {
    read_notes();
    for (const CallNote& note : heard_) {
      const bool tells = note.kind == CallNote::Kind::waits || note.kind == CallNote::Kind::fails;
      if (const Status same = tells ? compare(line, note) : ok_status(); !same.ok())
        return failure_ = same;
    }
    if (Clock::now() >= until) return failure_;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace cox::transport
