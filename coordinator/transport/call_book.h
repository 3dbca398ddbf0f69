// CallBook: which collective calls this rank has begun, on which communicator, under which name, so
// that ranks in different calls are told apart by name instead of waiting for each other.
//
//   every call:      a CallStamp travels with the bytes; ranks whose stamps differ get an error
//   a slow call:     after a second the rank tells the others by a CallNote where it waits; whoever
//                    reads that two ranks wait for each other in different calls ends the wait
//
// Notes go point to point and only while somebody waits: a call that is not slow costs a stamp.
// Waits of calls that began under a name are watched, others are for their caller to watch. Bytes
// of other ranks are hostile. Owned by the transport's runtime; training thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/transport/call.h"

namespace cox::transport {

// A call in a form that travels: "the start of a Trainer: all_gather of 8 bytes" and its hash.
struct CallStamp {
  std::uint64_t hash = 0;
  std::array<char, 120> words{};

  static CallStamp of(std::string_view name, const Call& call);
  static CallStamp of(std::string_view name);
  std::string text() const;
  // False for bytes that are no stamp: those of another rank, or memory that none came to.
  bool is_sound() const;
  bool is_same(const CallStamp& other) const { return hash == other.hash; }
};

// One rank and its call, for messages.
struct CallOf {
  RankId rank{};
  CallStamp stamp;
};
// Returns ok where all stamps are the same, else invalid_argument that names ranks and calls.
Status check_same_call(const std::vector<CallOf>& calls);

// CallNote is what a rank that waits tells the others. Travels as it is.
struct CallNote {
  static constexpr std::uint32_t kMagic = 0x324C'4143;  // "CAL2"
  static constexpr std::size_t kMostLines = 24;
  enum class Kind : std::uint32_t { none = 0, waits, goes_on, fails };
  struct Begun {
    std::uint64_t line = 0;
    std::uint64_t calls = 0;
  };

  std::uint32_t magic = kMagic;
  Kind kind = Kind::none;
  std::int32_t rank = -1;
  std::uint32_t lines = 0;
  std::uint64_t line = 0;
  std::uint64_t number = 0;
  CallStamp stamp;
  std::array<Begun, kMostLines> begun{};
  std::array<char, 480> why{};  // of a rank that fails
};

// Carries notes between the ranks of the job; neither call waits.
class CallPost {
 public:
  virtual ~CallPost() = default;
  virtual RankId rank() const = 0;
  virtual std::int32_t size() const = 0;
  virtual void send_to_others(const CallNote& note) = 0;
  virtual std::optional<CallNote> receive() = 0;
};

// CallLine is the calls of one communicator on this rank, in their order, which all its ranks
// share.
class CallLine {
 public:
  // `name` is the same on all ranks of the communicator; `members` are their ranks in the job.
  CallLine(std::string_view name, std::vector<RankId> members);
  std::uint64_t id() const { return id_; }
  std::uint64_t begun() const { return begun_; }
  const std::vector<RankId>& members() const { return members_; }
  bool has(RankId rank) const;

  void begin(const CallStamp& stamp) { begin_at(begun_ + 1, stamp); }
  // For calls that have numbers of their own.
  void begin_at(std::uint64_t number, const CallStamp& stamp);
  const CallStamp& newest() const { return stamps_[begun_ % kKept]; }
  // Returns the call of that number, counted from 1; null where it is not begun or no longer kept.
  const CallStamp* call(std::uint64_t number) const;

 private:
  static constexpr std::size_t kKept = 16;
  std::uint64_t id_;
  std::vector<RankId> members_;
  std::uint64_t begun_ = 0;
  std::array<CallStamp, kKept> stamps_{};
};

class CallBook {
 public:
  using Clock = std::chrono::steady_clock;

  // A wait that lasts.
  struct SlowCall {
    std::string call;
    Seconds waited{0};
    std::vector<RankId> missing;  // ranks that have not said that they wait there as well
  };

  explicit CallBook(std::unique_ptr<CallPost> post);
  CallBook(const CallBook&) = delete;
  CallBook& operator=(const CallBook&) = delete;

  // Names the calls that begin during its life, unless a name is given already. A default one names
  // nothing.
  class [[nodiscard]] Name {
   public:
    Name() = default;
    Name(CallBook* book, const char* name)
        : book_(book != nullptr && !book->name_ ? book : nullptr) {
      if (book_ != nullptr) book_->name_ = name;
    }
    Name(const Name&) = delete;
    Name& operator=(const Name&) = delete;
    ~Name() {
      if (book_ != nullptr) book_->name_ = nullptr;
    }

   private:
    CallBook* book_ = nullptr;
  };

  std::shared_ptr<CallLine> open_line(std::string_view name, std::vector<RankId> members);
  // Notes a call and returns its stamp.
  CallStamp begin(CallLine& line, const Call& call);
  bool is_named() const { return name_ != nullptr; }
  const char* name() const { return name_; }  // null without one

  // The rank has given its part of a round, and waits for the others.
  void begin_round(RoundId round);
  // All rounds before this one are over here. A rank has more than one call in a round, so a round
  // that it has begun may still wait for it.
  void complete_rounds_before(RoundId round) { rounds_done_ = round.value(); }
  // The newest call is over here.
  void end();

  // Called between the polls of a wait for the newest call of a line; costs nothing to speak of in
  // its first second, and then some microseconds twice a second. Returns invalid_argument where
  // ranks wait for each other in different calls, and what a rank said that failed for it.
  Status look(const CallLine& line, Clock::time_point since);
  // The same for the newest round, where every call looks.
  Status look_at_round(Clock::time_point since) { return look_now(*rounds_, since); }

  // The rank has ended its session, and waits until the others have. Any number of them may go on
  // for as long as they like, but none may wait for this rank in a call.
  void begin_end();
  Status look_at_end(Clock::time_point since) { return look_now(*end_, since); }
  // Receives notes that no look has read. MPI complains of messages that are left at its end.
  void clear_notes() { read_notes(); }

  // A call of `line` failed: tells the others, hears for some seconds what they do instead, and
  // returns the error with both calls, or `why`.
  Status failed(const CallLine& line, const Status& why);
  // Returns whether ranks have parted: messages may be left that nobody takes.
  bool has_failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }

  // Receives every look at a call that is slow, rounds and the end aside; may end the process.
  void on_slow(std::function<void(const SlowCall&)> told) { on_slow_ = std::move(told); }

 private:
  // The wait in which this rank and another one seemed to be in different calls.
  struct Suspicion {
    std::uint64_t line = 0;
    std::uint64_t number = 0;
    friend bool operator==(const Suspicion&, const Suspicion&) = default;
  };
  Status look_now(const CallLine& line, Clock::time_point since);
  void read_notes();
  void post(CallNote::Kind kind, const CallLine& line, const std::string& why);
  bool is_new_suspicion(const CallLine& line);
  Status compare(const CallLine& line);
  Status compare(const CallLine& line, const CallNote& note) const;
  const CallLine* find(std::uint64_t id) const;
  SlowCall slow_call(const CallLine& line, Seconds waited) const;

  std::unique_ptr<CallPost> post_;
  std::vector<std::weak_ptr<CallLine>> lines_;
  std::shared_ptr<CallLine> rounds_;
  std::uint64_t rounds_done_ = 0;
  Suspicion suspicion_;  // of the newest look
  const char* name_ = nullptr;
  std::vector<CallNote> heard_;  // per rank, the newest; kind none = it does not wait
  std::uint64_t told_line_ = 0;  // where the others were told that this rank waits; 0 = nowhere
  std::uint32_t polls_ = 0;
  Clock::time_point next_look_{};
  Status failure_;
  std::function<void(const SlowCall&)> on_slow_;
  std::shared_ptr<CallLine> end_;
};

}  // namespace cox::transport
