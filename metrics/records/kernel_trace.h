// Communication that no computation hides, from the kernels of a Chrome / Kineto trace. Whether
// something is hidden is asked of all devices together, as the published figures do, and of each.
//
//   trace.json (records/kernel_trace_file.h) -> Kernels -> kernel_trace_of() -> KernelTrace
//                                               -> records/pipeline_file.h, where devices are
//                                               stages
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
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

// A complete event of a trace.
struct KernelEvent {
  std::int64_t device = 0;  // number of its process; 0 where it has none
  std::string_view category;
  std::string_view name;
  double start_us = 0;
  double duration_us = 0;
};

// The kernels of one device, which a trace has as a process. The intervals are merged where they
// overlap, now and then, so their number is not that of the kernels.
struct DeviceKernels {
  std::vector<KernelInterval> communication;
  std::vector<KernelInterval> compute;
};

struct Kernels {
  std::map<std::int64_t, DeviceKernels> devices;  // by the number of the process
  std::size_t intervals = 0;                      // that are kept, of all devices
  std::size_t communication_kernels = 0;
  std::size_t compute_kernels = 0;
  std::size_t impossible = 0;                        // kernels whose times cannot be, left out
  std::map<std::string, double> collective_seconds;  // sums of durations by kind

  // Takes one complete event; kernels only, with a duration above 0, count. Times in microseconds;
  // those beyond some thousand years cannot be.
  void add(const KernelEvent& event);
};

// One device of a trace of several by itself.
struct DeviceTrace {
  std::int64_t device = 0;
  double wall_seconds = 0;
  double communication_seconds = 0;
  double compute_seconds = 0;
  double exposed_seconds = 0;
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
  std::vector<DeviceTrace> devices;  // ascending

  double overlapped_seconds() const { return communication_seconds - exposed_seconds; }
  double overlap() const {
    return communication_seconds > 0 ? overlapped_seconds() / communication_seconds : 0;
  }
  // Of all devices' time, each by itself: what one computes hides nothing of another.
  double exposed_of_devices() const;
  double exposed_fraction() const { return wall_seconds > 0 ? exposed_seconds / wall_seconds : 0; }
};

// Sorts intervals by their start and merges those that overlap or touch.
void unite(std::vector<KernelInterval>& intervals);

// Nothing where there are no kernels.
std::optional<KernelTrace> kernel_trace_of(Kernels kernels);

}  // namespace cox::diagnosis
