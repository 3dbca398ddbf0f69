#include "coordinator/io/kernel_trace_file.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/gzip.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxTextBytes = 4096;  // names of kernels are long, not that long

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
    if (name_ == "ph") event_.phase = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "cat") event_.category = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "name") event_.name = scalar.string.substr(0, kMaxTextBytes);
    if (name_ == "ts" && scalar.kind == JsonKind::number) event_.start_us = scalar.number;
    if (name_ == "dur" && scalar.kind == JsonKind::number) event_.duration_us = scalar.number;
    return ok_status();
  }
  Status end() override {
    if (list_depth_ > 0 && depth_ == list_depth_ + 1) take_event();
    if (depth_ == list_depth_) list_depth_ = 0;
    --depth_;
    if (std::max(kernels_.communication.size(), kernels_.compute.size()) > kMaxKernels)
      return resource_exhausted("expected at most ", kMaxKernels,
                                " kernels that do not overlap, found more; trace fewer steps");
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
    if (event_.phase != "X") return;
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

Result<diagnosis::Kernels> parse_pieces(const NextBytes& next) {
  TraceEvents events;
  if (Status read = read_json(next, events); !read.ok()) return read;
  if (!events.has_list())
    return invalid_argument("expected a trace with the list 'traceEvents', found none");
  return events.take();
}

// The pieces of a file, which outlives them.
NextBytes pieces_of(const InputFile& file) {
  return [&file, at = std::uint64_t{0}, piece = std::string()]() mutable {
    piece.resize(std::min<std::uint64_t>(kPieceBytes, file.size_bytes() - at));
    const Status read = file.read_at(at, piece.data(), piece.size());
    at += piece.size();
    return read.ok() ? Result<std::string_view>(piece) : Result<std::string_view>(read);
  };
}

Result<diagnosis::Kernels> parse_file(const InputFile& file) {
  if (file.size_bytes() > kMaxKernelTraceBytes)
    return resource_exhausted("expected a trace of at most ", kMaxKernelTraceBytes,
                              " bytes, found ", file.size_bytes());
  std::string head(std::min<std::uint64_t>(file.size_bytes(), 2), '\0');
  if (Status read = file.read_at(0, head.data(), head.size()); !read.ok()) return read;
  if (!is_gzip(head)) return parse_pieces(pieces_of(file));
  GzipPieces unpacked(pieces_of(file), kMaxKernelTraceBytes);
  return parse_pieces([&unpacked] { return unpacked.next(); });
}

}  // namespace

Result<diagnosis::Kernels> parse_kernel_trace(std::string_view json) {
  return parse_pieces(
      [&json] { return Result<std::string_view>(std::exchange(json, std::string_view())); });
}

Result<diagnosis::Kernels> read_kernel_trace(const std::filesystem::path& path) {
  const auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  auto kernels = parse_file(*file);
  if (!kernels.ok()) return kernels.status().with_context(path.string());
  return kernels;
}

}  // namespace cox::io
