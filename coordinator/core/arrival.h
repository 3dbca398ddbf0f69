// When ranks arrive at a collective call, on one clock for all of them, and what follows: how long
// each rank waited for the last one. ClockModel tells rank 0's clock from a node's own by what
// exchanges of messages with rank 0 bounded; ranks of one node read one clock (CLOCK_MONOTONIC).
// Pure values; time is passed in, as nanoseconds of a steady clock. Training thread.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

namespace cox {

// ArrivalStamp is a moment by rank 0's clock.
struct ArrivalStamp {
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
  std::uint64_t at_ns = 0;
  std::uint64_t error_ns = 0;  // the truth is no farther away; kUnknown = clocks were not compared
};
static_assert(std::is_trivially_copyable_v<ArrivalStamp>);

// Keeps the later moment and the larger error.
void merge_into(ArrivalStamp& into, const ArrivalStamp& from);

// Returns the seconds from `mine` to the arrival of the last rank. `latest` is merged over all
// ranks. 0 where both errors together are as large as the difference, because then nobody knows who
// came first; empty where a rank's clock is not known.
std::optional<double> waiting_seconds(const ArrivalStamp& mine, const ArrivalStamp& latest);

// ClockExchange is one exchange of a node with rank 0: the node sent at `sent_ns`, rank 0 read its
// own clock at `root_ns` between receiving and answering, and the answer came at `received_ns`.
struct ClockExchange {
  std::int64_t sent_ns = 0;
  std::int64_t root_ns = 0;
  std::int64_t received_ns = 0;
};

// ClockOffset says that rank 0's clock shows `offset_ns` more than the node's, within `error_ns`.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::uint64_t error_ns = 0;
};

// OffsetBounds narrows an offset down by several exchanges. Each bounds it from both sides
// (F. Cristian, Probabilistic clock synchronization, 1989): rank 0's clock was read after the node
// sent and before it received. The truth lies in what all of them allow, which is never wider than
// the shortest round trip.
class OffsetBounds {
 public:
  void note(const ClockExchange& exchange);
  // Returns the middle of what is left; empty before the first exchange, and when exchanges
  // contradict each other, as those of a clock that was set do.
  std::optional<ClockOffset> offset() const;

 private:
  std::optional<std::int64_t> least_ns_;
  std::int64_t most_ns_ = 0;
};

// ClockModel follows a node's clock between comparisons. Two comparisons give a rate; the error
// grows with the time since the last one, by what the rate may be off.
class ClockModel {
 public:
  // The two clocks of one machine, or of one rank, never differ.
  enum class Kind : std::uint8_t { same, compared };
  explicit ClockModel(Kind kind = Kind::same) : kind_(kind) {}

  // A comparison whose middle was at `now_ns` of the node's clock.
  void note(std::int64_t now_ns, const ClockOffset& offset);
  // Forgets what was compared: clocks that contradict themselves say nothing.
  void forget();

  // Returns the moment `now_ns` by rank 0's clock.
  ArrivalStamp stamp(std::int64_t now_ns) const;
  // Returns whether it is time to compare again: after a second at first, then after twice as long
  // each time, up to half a minute.
  bool is_due(std::int64_t now_ns) const;

 private:
  struct Known {
    std::int64_t at_ns = 0;
    ClockOffset offset;
  };

  Kind kind_;
  std::optional<Known> last_;
  double rate_ = 0;           // nanoseconds of offset a nanosecond
  double rate_error_ = 0;     // of that
  std::int64_t wait_ns_ = 0;  // from the last comparison to the next
};

}  // namespace cox
