#include "coordinator/io/kernel_trace_file.h"

#include <cmath>
#include <string>

#include "coordinator/io/file.h"
#include "coordinator/io/gzip.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

// An event is an object in a list: the root, or the root's member traceEvents.
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
    if (name_ == "ph") event_.phase = scalar.string;
    if (name_ == "cat") event_.category = scalar.string;
    if (name_ == "name") event_.name = scalar.string;
    if (name_ == "ts" && scalar.kind == JsonKind::number) event_.start_us = scalar.number;
    if (name_ == "dur" && scalar.kind == JsonKind::number) event_.duration_us = scalar.number;
    return ok_status();
  }
  Status end() override {
    if (list_depth_ > 0 && depth_ == list_depth_ + 1) take_event();
    if (depth_ == list_depth_) list_depth_ = 0;
    --depth_;
    if (kernels_.communication.size() + kernels_.compute.size() > kMaxKernels)
      return resource_exhausted("expected at most ", kMaxKernels,
                                " kernels, found more; trace fewer steps");
    return ok_status();
  }

  bool has_list() const { return has_list_; }
  diagnosis::Kernels take() { return std::move(kernels_); }

 private:
  struct Event {
    std::string phase;
    std::string category;
    std::string name;
    double start_us = std::nan("");
    double duration_us = 0;
  };
  void take_event() {
    if (event_.phase != "X" || !std::isfinite(event_.start_us)) return;
    kernels_.add(event_.category, event_.name, event_.start_us, event_.duration_us);
  }

  diagnosis::Kernels kernels_;
  Event event_;
  std::string name_;
  std::size_t depth_ = 0;
  std::size_t list_depth_ = 0;  // of the list of events, while inside of it
  bool is_list_ = false;
  bool has_list_ = false;
};

}  // namespace

Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json) {
  TraceEvents events;
  if (Status read = read_json(json, events); !read.ok()) return read;
  if (!events.has_list())
    return invalid_argument("expected a trace with the list 'traceEvents', found none");
  return events.take();
}

Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path) {
  auto text = read_file(path, kMaxKernelTraceBytes);
  if (!text.ok()) return text.status();
  if (is_gzip(*text)) text = gunzip(*text, kMaxKernelTraceBytes);
  if (!text.ok()) return text.status().with_context(path.string());
  auto kernels = parse_kernel_trace(*text);
  if (!kernels.ok()) return kernels.status().with_context(path.string());
  return kernels;
}

}  // namespace cox::io
