// Communication that no computation hides, from the kernels of a Chrome / Kineto trace.
//
//   trace.json (io/kernel_trace_file.h) -> Kernels -> kernel_trace_of() -> KernelTrace
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cox::diagnosis {

struct KernelInterval {
  double start_seconds = 0;
  double end_seconds = 0;
};

// The intervals are merged where they overlap, now and then, so their number is not that of the
// kernels.
struct Kernels {
  std::vector<KernelInterval> communication;
  std::vector<KernelInterval> compute;
  std::size_t communication_kernels = 0;
  std::size_t compute_kernels = 0;
  std::size_t impossible = 0;                        // kernels whose times cannot be, left out
  std::map<std::string, double> collective_seconds;  // sums of durations by kind

  // Takes one complete event; kernels only, with a duration above 0, count. Times in microseconds;
  // those beyond some thousand years cannot be.
  void add(std::string_view category, std::string_view name, double start_us, double duration_us);
};

struct KernelTrace {
  double wall_seconds = 0;
  double communication_seconds = 0;  // length of the union, like the others
  double compute_seconds = 0;
  double exposed_seconds = 0;
  std::size_t communication_kernels = 0;
  std::size_t compute_kernels = 0;
  std::size_t impossible_kernels = 0;  // left out: their times cannot be
  std::map<std::string, double> collective_seconds;

  double overlapped_seconds() const { return communication_seconds - exposed_seconds; }
  double overlap() const {
    return communication_seconds > 0 ? overlapped_seconds() / communication_seconds : 0;
  }
  double exposed_fraction() const { return wall_seconds > 0 ? exposed_seconds / wall_seconds : 0; }
};

// Nothing where there are no kernels.
std::optional<KernelTrace> kernel_trace_of(Kernels kernels);

}  // namespace cox::diagnosis
