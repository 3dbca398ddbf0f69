// CallBook records the collective calls that this rank has begun, per communicator and name. Ranks
// in different calls then get an error with both names instead of waiting for each other.
//
//   every call:    a CallStamp travels with the bytes; ranks with different stamps get an error
//   a slow call:   after a second, the rank sends a CallNote to the others; ranks that wait for
//                  each other in different calls then end their waits with an error
//
// Notes go point to point, and only while a rank waits: a fast call costs one stamp. The book
// watches the waits of named calls; callers watch the others. Bytes of other ranks are hostile.
// Owned by the transport's runtime; training thread.
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

// CallStamp is a call in a form for messages: "the start of a Trainer: all_gather of 8 bytes" and
// the text's hash.
struct CallStamp {
  std::uint64_t hash = 0;
  std::array<char, 120> words{};

  static CallStamp of(std::string_view name, const Call& call);
  static CallStamp of(std::string_view name);
  std::string text() const;
  // Returns false for bytes that are no stamp: another rank's bytes, or memory never written.
  bool is_sound() const;
  bool is_same(const CallStamp& other) const { return hash == other.hash; }
};

// One rank and its call, for messages.
struct CallOf {
  RankId rank{};
  CallStamp stamp;
};
// Returns ok if all stamps are the same, else invalid_argument with the ranks and their calls.
Status check_same_call(const std::vector<CallOf>& calls);

// CallNote is the report of a waiting rank to the others. Sent as raw bytes.
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
  std::array<char, 480> why{};  // why the rank failed
};

// Carries notes between the ranks of the job. No function waits.
class CallPost {
 public:
  virtual ~CallPost() = default;
  virtual RankId rank() const = 0;
  virtual std::int32_t size() const = 0;
  virtual void send_to_others(const CallNote& note) = 0;
  virtual std::optional<CallNote> receive() = 0;
};

// CallLine holds the calls of one communicator on this rank, in their order. All ranks of the
// communicator share the order.
class CallLine {
 public:
  // `name` is the same on all ranks of the communicator; `members` are the ranks' numbers in the
  // job.
  CallLine(std::string_view name, std::vector<RankId> members);
  std::uint64_t id() const { return id_; }
  std::uint64_t begun() const { return begun_; }
  const std::vector<RankId>& members() const { return members_; }
  bool has(RankId rank) const;

  void begin(const CallStamp& stamp) { begin_at(begun_ + 1, stamp); }
  // Begins a call with a number of its own, such as a round.
  void begin_at(std::uint64_t number, const CallStamp& stamp);
  const CallStamp& newest() const { return stamps_[begun_ % kKept]; }
  // Returns the call with the given number, counted from 1. Returns null if the call has not begun
  // or is no longer kept.
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

  // Describes one slow wait.
  struct SlowCall {
    std::string call;
    Seconds waited{0};
    std::vector<RankId> missing;  // ranks not known to wait in the same call
  };

  explicit CallBook(std::unique_ptr<CallPost> post);
  CallBook(const CallBook&) = delete;
  CallBook& operator=(const CallBook&) = delete;

  // Names the calls that begin during the object's life, unless a name is set already. A
  // default-constructed Name does nothing.
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
  // Records a call and returns its stamp.
  CallStamp begin(CallLine& line, const Call& call);
  bool is_named() const { return name_ != nullptr; }
  const char* name() const { return name_; }  // null without a name

  // Records that this rank has given its part of a round and now waits for the others.
  void begin_round(RoundId round);
  // Records that all earlier rounds are over here. A rank makes several calls in a round, so
  // another rank may still wait for this one in a round that this one has begun.
  void complete_rounds_before(RoundId round) { rounds_done_ = round.value(); }
  // Records that the newest call is over here.
  void end();

  // Checks a slow wait; called between the polls of a wait for the newest call of a line. Costs
  // almost nothing in the first second, then some microseconds twice a second. Returns
  // invalid_argument when ranks wait for each other in different calls, and the error of a rank
  // that reported a failure.
  Status look(const CallLine& line, Clock::time_point since);
  // Does the same for the newest round, for callers inside any call.
  Status look_at_round(Clock::time_point since) { return look_now(*rounds_, since); }

  // Records that this rank has ended its session and waits for the others' ends. Other ranks may go
  // on for any time, but none may wait for this rank in a call.
  void begin_end();
  Status look_at_end(Clock::time_point since) { return look_now(*end_, since); }
  // Receives the notes that no look has read. MPI reports messages that are left unreceived at its
  // end.
  void clear_notes() { read_notes(); }

  // Reports to the others that a call of `line` failed. Listens for up to some seconds for their
  // calls, and returns the error with both calls, or `why`.
  Status failed(const CallLine& line, const Status& why);
  // Returns whether the ranks have parted. Messages may then stay unreceived.
  bool has_failed() const { return !failure_.ok(); }
  const Status& failure() const { return failure_; }

  // Sets the receiver of every look at a slow call, except rounds and the end. The receiver may end
  // the process.
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
  Suspicion suspicion_;  // at the newest look
  const char* name_ = nullptr;
  std::vector<CallNote> heard_;  // per rank, the newest note; kind none = the rank does not wait
  std::uint64_t told_line_ = 0;  // the line last reported to the others as waited for; 0 = none
  std::uint32_t polls_ = 0;
  Clock::time_point next_look_{};
  Status failure_;
  std::function<void(const SlowCall&)> on_slow_;
  std::shared_ptr<CallLine> end_;
};

}  // namespace cox::transport
