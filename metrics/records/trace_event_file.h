// Writes a picture of a run as JSON in the Trace Event Format, which ui.perfetto.dev and
// chrome://tracing open. Writes one event a line, in the order of the calls.
//
//   TraceEvent (records/trace_event.h) -> TraceEventFile -> text, piece by piece
//
// Buffers one piece of text. One thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/trace_event.h"

namespace cox::io {

class TraceEventFile {
 public:
  using Put = std::function<Status(std::string_view text)>;
  // Passes text to `put`, about 64 KiB at most at a time. Stops writing at the first error of
  // `put`.
  explicit TraceEventFile(Put put);

  // Allows at most `events` further spans, moments and counters; further ones are counted, not
  // written. Names of lanes and processes are always written.
  void allow(std::uint64_t events) { allowed_ = events; }
  void take(const diagnosis::TraceEvent& event);
  // Ends the file. `facts` is a JSON object that tells people and tools where the file came from.
  Status finish(std::string_view facts);

  std::uint64_t written() const { return written_; }
  std::uint64_t left_out() const { return left_out_; }  // since the beginning

 private:
  void put_time(std::string_view name, std::int64_t ns);
  void put_arguments(const diagnosis::TraceEvent& event);
  void pass_on();

  Put put_;
  Status status_;
  std::string text_;
  std::uint64_t allowed_ = ~std::uint64_t{0};
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace cox::io
