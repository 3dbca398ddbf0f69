// Computes communication that no computation hides, from the kernels of a Chrome / Kineto trace.
// Two figures: over all devices together, as the published figures do, and for each device.
//
//   trace.json (records/kernel_trace_file.h) -> Kernels -> kernel_trace_of() -> KernelTrace
//                                 -> records/pipeline_file.h, where devices are stages
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
  std::int64_t device = 0;  // number of the event's process; 0 = none
  std::string_view category;
  std::string_view name;
  double start_us = 0;
  double duration_us = 0;
};

// The kernels of one device, which is a process of the trace. Overlapping intervals are merged from
// time to time, so there may be fewer intervals than kernels.
struct DeviceKernels {
  std::vector<KernelInterval> communication;
  std::vector<KernelInterval> compute;
};

struct Kernels {
  std::map<std::int64_t, DeviceKernels> devices;  // by the number of the process
  std::size_t intervals = 0;                      // kept, of all devices
  std::size_t communication_kernels = 0;
  std::size_t compute_kernels = 0;
  std::size_t impossible = 0;                        // kernels left out for impossible times
  std::map<std::string, double> collective_seconds;  // sums of durations by kind

  // Adds one complete event. Counts kernels with a duration above 0 only. Times are in
  // microseconds; times beyond some thousand years count as impossible.
  void add(const KernelEvent& event);
};

// The figures of one device, in a trace of several.
struct DeviceTrace {
  std::int64_t device = 0;
  double wall_seconds = 0;
  double communication_seconds = 0;
  double compute_seconds = 0;
  double exposed_seconds = 0;
};

struct KernelTrace {
  double wall_seconds = 0;
  double communication_seconds = 0;  // length of the union, like the other sums
  double compute_seconds = 0;
  double exposed_seconds = 0;
  std::size_t communication_kernels = 0;
  std::size_t compute_kernels = 0;
  std::size_t impossible_kernels = 0;  // left out for impossible times
  std::map<std::string, double> collective_seconds;
  std::vector<DeviceTrace> devices;  // ascending

  double overlapped_seconds() const { return communication_seconds - exposed_seconds; }
  double overlap() const {
    return communication_seconds > 0 ? overlapped_seconds() / communication_seconds : 0;
  }
  // Returns the exposed share of all devices' time. Each device counts by itself: computation on
  // one device hides no communication of another.
  double exposed_of_devices() const;
  double exposed_fraction() const { return wall_seconds > 0 ? exposed_seconds / wall_seconds : 0; }
};

// Sorts intervals by their start and merges those that overlap or touch.
void unite(std::vector<KernelInterval>& intervals);

// Returns nullopt if there are no kernels.
std::optional<KernelTrace> kernel_trace_of(Kernels kernels);

}  // namespace cox::diagnosis
