// TraceEvent is one element of a picture of a run over time: a span, a moment, or the value of a
// counter, in a lane of a process. The processes of the picture are the ranks and the coordinator.
//
//   run directory -> rank_lanes.h, command/trace_command.cc -> TraceEvent -> trace_event_file.h
//
// Times are whole nanoseconds since the picture begins, so that nested spans stay nested in the
// file. Views are valid during the call that passes them.
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
  counter,  // `arguments` are the series, all numbers
  lane,     // names a lane; precedes all events of the lane
  process,  // names a process
};

// An argument. Texts are shown unchanged; a non-finite number has no value in the file.
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
  std::int64_t duration_ns = 0;  // spans only
  std::span<const TraceArgument> arguments{};
};

using TraceSink = std::function<void(const TraceEvent& event)>;

// Process numbers in the picture. The coordinator comes before all ranks.
inline constexpr std::int32_t kCoordinatorProcess = 1;
inline constexpr std::int32_t process_of(std::int32_t rank) {
  return kCoordinatorProcess + 1 + rank;
}

// The end of a picture, about three years; later events are not drawn. Viewers read microseconds as
// doubles, which still resolve some tens of nanoseconds there.
inline constexpr std::int64_t kMostTraceNs = std::int64_t{100'000'000} * 1'000'000'000;

}  // namespace cox::diagnosis
