// TraceEvent: one thing in a picture of a run over time: a span, a moment, or the value of a
// counter, in a lane of a process. The processes of the picture are the ranks and the coordinator.
//
//   run directory -> rank_lanes.h, tools/trace_command.cc -> TraceEvent ->
//   records/trace_event_file.h
//
// Times are whole nanoseconds since the picture begins, so that spans that nest here nest in the
// file, too. Views are valid during the call that passes them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <variant>

namespace cox::diagnosis {

enum class TraceKind : std::uint8_t {
  span,
  moment,
  counter,  // `arguments` are its series, all numbers
  lane,     // gives `name` to a lane; of all that is drawn there, this comes first
  process,  // gives `name` to a process
};

// Texts are shown as they are; a number that is not finite has no value in the file.
struct TraceArgument {
  std::string_view name;
  std::variant<double, std::string_view> value;
};

struct TraceEvent {
  TraceKind kind = TraceKind::span;
  std::int32_t process = 0;
  std::int32_t lane = 0;
  std::string_view name;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;  // of a span
  std::span<const TraceArgument> arguments{};
};

using TraceSink = std::function<void(const TraceEvent& event)>;

// Where the process of a rank stands; the coordinator's is above all of them.
inline constexpr std::int32_t kCoordinatorProcess = 1;
inline constexpr std::int32_t process_of(std::int32_t rank) {
  return kCoordinatorProcess + 1 + rank;
}

// What lies beyond is not drawn: about three years, in which microseconds as doubles, which is what
// viewers read, still tell nanoseconds apart by some tens.
inline constexpr std::int64_t kMostTraceNs = std::int64_t{100'000'000} * 1'000'000'000;

}  // namespace cox::diagnosis
