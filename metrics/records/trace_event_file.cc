#include "metrics/records/trace_event_file.h"

#include <array>
#include <charconv>
#include <utility>

#include "coordinator/io/json.h"

namespace cox::io {
namespace {

using diagnosis::TraceArgument;
using diagnosis::TraceEvent;
using diagnosis::TraceKind;

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
// Cuts texts from outside, so that an event has a few thousand bytes at most.
constexpr std::size_t kMaxNameBytes = 200;
constexpr std::size_t kMaxTextBytes = 2000;

void put_number(std::string& out, std::int64_t number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

// Moments have scope "t", because they belong to their lane.
std::string_view phase_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::span:
      return R"("ph":"X")";
    case TraceKind::moment:
      return R"("ph":"i","s":"t")";
    case TraceKind::counter:
      return R"("ph":"C")";
    case TraceKind::lane:
      return R"("ph":"M","name":"thread_name")";
    case TraceKind::process:
      break;
  }
  return R"("ph":"M","name":"process_name")";
}

bool is_name(TraceKind kind) {
  return kind == TraceKind::lane || kind == TraceKind::process;
}

}  // namespace

TraceEventFile::TraceEventFile(Put put) : put_(std::move(put)) {
  text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
}

void TraceEventFile::take(const TraceEvent& event) {
  if (!is_name(event.kind)) {
    if (allowed_ == 0) {
      ++left_out_;
      return;
    }
    --allowed_;
  }
  text_ += written_++ == 0 ? "\n{" : ",\n{";
  text_ += phase_of(event.kind);
  text_ += ",\"pid\":";
  put_number(text_, event.process);
  text_ += ",\"tid\":";
  put_number(text_, event.lane);
  if (is_name(event.kind)) {
    text_ += ",\"args\":{\"name\":" + json_string(event.name.substr(0, kMaxNameBytes)) + "}}";
  } else {
    put_time(",\"ts\":", event.start_ns);
    if (event.kind == TraceKind::span) put_time(",\"dur\":", event.duration_ns);
    text_ += ",\"name\":" + json_string(event.name.substr(0, kMaxNameBytes));
    put_arguments(event);
    text_ += '}';
  }
  if (text_.size() >= kPieceBytes) pass_on();
}

// The format counts in microseconds.
void TraceEventFile::put_time(std::string_view name, std::int64_t ns) {
  text_ += name;
  put_number(text_, ns / 1000);
  const auto rest = static_cast<std::size_t>(ns % 1000);
  if (rest == 0) return;
  constexpr std::string_view kDigits = "0123456789";
  text_ += {'.', kDigits[rest / 100], kDigits[rest / 10 % 10], kDigits[rest % 10]};
}

void TraceEventFile::put_arguments(const TraceEvent& event) {
  if (event.arguments.empty()) return;
  text_ += ",\"args\":";
  char before = '{';
  for (const TraceArgument& argument : event.arguments) {
    text_ += before + json_string(argument.name) + ':';
    const double* number = std::get_if<double>(&argument.value);
    text_ += number != nullptr
                 ? json_number(*number)
                 : json_string(std::get<std::string_view>(argument.value).substr(0, kMaxTextBytes));
    before = ',';
  }
  text_ += '}';
}

void TraceEventFile::pass_on() {
  if (status_.ok()) status_ = put_(text_);
  text_.clear();
}

Status TraceEventFile::finish(std::string_view facts) {
  text_ += "\n],\n\"otherData\":";
  text_ += facts;
  text_ += "}\n";
  pass_on();
  return status_;
}

}  // namespace cox::io
