// The arrival of ranks at a collective call, on one clock for all ranks, and the time that each
// rank waited for the last one. ClockModel converts a node's clock to rank 0's, within bounds from
// exchanges of messages with rank 0. Ranks of one node read one clock (CLOCK_MONOTONIC). Pure
// values; time is passed in, as nanoseconds of a steady clock. Training thread.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

namespace cox {

// ArrivalStamp is a moment by rank 0's clock.
struct ArrivalStamp {
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
  std::uint64_t at_ns = 0;
  std::uint64_t error_ns = 0;  // bound of the error; kUnknown = clocks were not compared
};
static_assert(std::is_trivially_copyable_v<ArrivalStamp>);

// Keeps the later moment and the larger error.
void merge_into(ArrivalStamp& into, const ArrivalStamp& from);

// Returns the seconds from `mine` to the arrival of the last rank. `latest` is merged over all
// ranks. Returns 0 if both errors together are as large as the difference, because the order is
// then unknown. Empty if a rank's clock is not known.
std::optional<double> waiting_seconds(const ArrivalStamp& mine, const ArrivalStamp& latest);

// ClockExchange is one exchange of a node with rank 0. The node sent at `sent_ns`, rank 0 read its
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

// OffsetBounds narrows an offset by several exchanges. Each exchange bounds the offset from both
// sides (F. Cristian, Probabilistic clock synchronization, 1989), because rank 0's clock was read
// after the node sent and before the node received. The truth lies in the intersection of all
// bounds, which is never wider than the shortest round trip.
class OffsetBounds {
 public:
  void note(const ClockExchange& exchange);
  // Returns the middle of the remaining bounds. Empty before the first exchange, and if exchanges
  // contradict each other, as after a clock was set.
  std::optional<ClockOffset> offset() const;

 private:
  std::optional<std::int64_t> least_ns_;
  std::int64_t most_ns_ = 0;
};

// ClockModel follows a node's clock between comparisons. Two comparisons give a rate. The error
// grows with the time since the last comparison, by the error of the rate.
class ClockModel {
 public:
  // `same`: both clocks belong to one machine, or to the only rank, and never differ.
  enum class Kind : std::uint8_t { same, compared };
  explicit ClockModel(Kind kind = Kind::same) : kind_(kind) {}

  // Records a comparison whose middle was at `now_ns` of the node's clock.
  void note(std::int64_t now_ns, const ClockOffset& offset);
  // Forgets all comparisons, because a clock that contradicts itself shows nothing.
  void forget();

  // Returns the moment `now_ns` by rank 0's clock.
  ArrivalStamp stamp(std::int64_t now_ns) const;
  // Returns whether a comparison is due: after a second at first, then after twice as long each
  // time, up to half a minute.
  bool is_due(std::int64_t now_ns) const;

 private:
  struct Known {
    std::int64_t at_ns = 0;
    ClockOffset offset;
  };

  Kind kind_;
  std::optional<Known> last_;
  double rate_ = 0;           // nanoseconds of offset a nanosecond
  double rate_error_ = 0;     // of the rate
  std::int64_t wait_ns_ = 0;  // from the last comparison to the next
};

}  // namespace cox
