#include "metrics/records/kernel_trace_file.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/io/gzip.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

constexpr std::size_t kMaxTextBytes = 4096;  // kernel names are long, but shorter

// Returns the device number of a process. Processes with text names share number 0; devices have
// numbers.
std::int64_t device_of(const JsonScalar& pid) {
  const bool is_number = pid.kind == JsonKind::number && std::fabs(pid.number) <= 0x1p53;
  return is_number ? static_cast<std::int64_t>(pid.number) : 0;
}

// Collects events: objects in a list, which is the root or the root's member traceEvents.
class TraceEvents final : public JsonEvents {
 public:
  Status begin(JsonKind kind) override {
    ++depth_;
    if (depth_ == 1) is_list_ = kind == JsonKind::array;
    if (depth_ == 1 && is_list_) list_depth_ = 1;
    if (depth_ == 2 && !is_list_ && name_ == "traceEvents" && kind == JsonKind::array)
      list_depth_ = 2;
    if (list_depth_ > 0 && depth_ == list_depth_ + 1) event_ = {};
    has_list_ = has_list_ || list_depth_ > 0;
    return ok_status();
  }
  Status name(std::string_view name) override {
    if (depth_ == 1 || depth_ == list_depth_ + 1) name_ = name.substr(0, 16);
    return ok_status();
  }
  Status value(const JsonScalar& scalar) override {
    if (list_depth_ == 0 || depth_ != list_depth_ + 1) return ok_status();
    if (name_ == "ph") event_.phase = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "cat") event_.category = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "name") event_.name = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "ts" && scalar.kind == JsonKind::number) event_.start_us = scalar.number;
    if (name_ == "pid") event_.device = device_of(scalar);
    if (name_ == "dur" && scalar.kind == JsonKind::number) event_.duration_us = scalar.number;
    return ok_status();
  }
  Status end() override {
    if (list_depth_ > 0 && depth_ == list_depth_ + 1) take_event();
    if (depth_ == list_depth_) list_depth_ = 0;
    --depth_;
    if (kernels_.intervals > kMaxKernels)
      return resource_exhausted("expected at most ", kMaxKernels,
                                " kernels that do not overlap, found more; trace fewer steps");
    if (kernels_.devices.size() > kMaxDevices)
      return resource_exhausted("expected kernels of at most ", kMaxDevices,
                                " devices (pid), found more; trace fewer ranks");
    return ok_status();
  }

  bool has_list() const { return has_list_; }
  diagnosis::Kernels take() { return std::move(kernels_); }

 private:
  struct Event {
    std::int64_t device = 0;
    std::string phase;
    std::string category;
    std::string name;
    double start_us = std::nan("");
    double duration_us = 0;
  };
  void take_event() {
    if (event_.phase != "X") return;
    kernels_.add(
        {event_.device, event_.category, event_.name, event_.start_us, event_.duration_us});
  }

  diagnosis::Kernels kernels_;
  Event event_;
  std::string name_;
  std::size_t depth_ = 0;
  std::size_t list_depth_ = 0;  // the list of events, while inside the list
  bool is_list_ = false;
  bool has_list_ = false;
};

Result<diagnosis::Kernels> parse_pieces(const NextBytes& next) {
  TraceEvents events;
  if (Status read = read_json(next, events); !read.ok()) return read;
  if (!events.has_list())
    return invalid_argument("expected a trace with the list 'traceEvents', found none");
  return events.take();
}

}  // namespace

Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json) {
  return parse_pieces(one_piece(json));
}

Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path) {
  std::optional<diagnosis::Kernels> kernels;
  const Status read = with_unpacked(path, kMaxKernelTraceBytes, [&kernels](const NextBytes& next) {
    auto parsed = parse_pieces(next);
    if (!parsed.ok()) return parsed.status();
    kernels = *std::move(parsed);
    return ok_status();
  });
  if (!read.ok()) return read;
  return *std::move(kernels);
}

}  // namespace cox::io
