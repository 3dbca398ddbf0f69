#include "metrics/records/kernel_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "coordinator/core/words.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

using Intervals = std::vector<KernelInterval>;

struct CollectiveName {
  std::string_view kind;
  std::string_view part;  // substring of a kernel's name
};
constexpr std::array<CollectiveName, 9> kCollectives = {{{"all_reduce", "allreduce"},
                                                         {"all_reduce", "all_reduce"},
                                                         {"all_gather", "allgather"},
                                                         {"all_gather", "all_gather"},
                                                         {"reduce_scatter", "reducescatter"},
                                                         {"reduce_scatter", "reduce_scatter"},
                                                         {"all_to_all", "all_to_all"},
                                                         {"all_to_all", "alltoall"},
                                                         {"broadcast", "broadcast"}}};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns the kind of collective, "other" for other communication, or empty for computation.
std::string_view collective_of(std::string_view name) {
  for (const CollectiveName& each : kCollectives) {
    if (contains(name, each.part)) return each.kind;
  }
  return contains(name, "nccl") || contains(name, "c10d::") ? "other" : "";
}

// Merges before the list grows, so that memory follows the number of merged intervals.
void put(Intervals& intervals, const KernelInterval& interval) {
  constexpr std::size_t kFew = 4096;
  if (intervals.size() == intervals.capacity() && intervals.size() >= kFew) {
    unite(intervals);
    if (intervals.size() > intervals.capacity() / 2) intervals.reserve(2 * intervals.capacity());
  }
  intervals.push_back(interval);
}

double length_of(const Intervals& intervals) {
  ExactSum sum;
  for (const KernelInterval& each : intervals) sum.add(each.end_seconds - each.start_seconds);
  return sum.value();
}

// Returns the length of the parts of `a` outside `b`. REQUIRES: both are united.
double length_without(const Intervals& a, const Intervals& b) {
  ExactSum sum;
  std::size_t first = 0;
  for (const KernelInterval& each : a) {
    double at = each.start_seconds;
    while (first < b.size() && b[first].end_seconds <= at) ++first;
    for (std::size_t k = first; k < b.size() && b[k].start_seconds < each.end_seconds; ++k) {
      if (b[k].start_seconds > at) sum.add(b[k].start_seconds - at);
      at = std::max(at, b[k].end_seconds);
    }
    if (at < each.end_seconds) sum.add(each.end_seconds - at);
  }
  return sum.value();
}

// Computes a device's figures and unites its intervals.
DeviceTrace trace_of(std::int64_t number, DeviceKernels& device) {
  DeviceTrace out;
  out.device = number;
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (Intervals* list : {&device.communication, &device.compute}) {
    unite(*list);
    if (list->empty()) continue;
    first = std::min(first, list->front().start_seconds);
    last = std::max(last, list->back().end_seconds);
  }
  out.wall_seconds = std::max(0.0, last - first);
  out.communication_seconds = length_of(device.communication);
  out.compute_seconds = length_of(device.compute);
  out.exposed_seconds = length_without(device.communication, device.compute);
  return out;
}

// Appends `part` and frees its memory.
void append(Intervals& all, Intervals& part) {
  if (all.empty()) {
    all = std::move(part);
  } else {
    all.insert(all.end(), part.begin(), part.end());
  }
  part = {};
}

}  // namespace

void unite(std::vector<KernelInterval>& intervals) {
  std::ranges::sort(intervals, [](const KernelInterval& a, const KernelInterval& b) {
    return std::tie(a.start_seconds, a.end_seconds) < std::tie(b.start_seconds, b.end_seconds);
  });
  std::size_t kept = 0;
  for (const KernelInterval& next : intervals) {
    if (kept > 0 && next.start_seconds <= intervals[kept - 1].end_seconds) {
      double& end = intervals[kept - 1].end_seconds;
      end = std::max(end, next.end_seconds);
    } else {
      intervals[kept++] = next;
    }
  }
  intervals.resize(kept);
}

void Kernels::add(const KernelEvent& event) {
  const std::string kind = lower_case(event.category);
  const bool is_kernel =
      contains(kind, "kernel") || contains(kind, "gpu_memcpy") || contains(kind, "gpu_memset");
  constexpr double kMostUs = 1e17;
  if (!is_kernel || event.duration_us <= 0) return;
  if (!(std::fabs(event.start_us) <= kMostUs && event.duration_us <= kMostUs)) {
    ++impossible;
    return;
  }
  const KernelInterval interval{event.start_us / 1e6, (event.start_us + event.duration_us) / 1e6};
  const std::string_view collective = collective_of(lower_case(event.name));
  ++(collective.empty() ? compute_kernels : communication_kernels);
  DeviceKernels& device = devices[event.device];
  Intervals& list = collective.empty() ? device.compute : device.communication;
  intervals -= list.size();
  put(list, interval);
  intervals += list.size();
  if (!collective.empty())
    collective_seconds[std::string(collective)] += interval.end_seconds - interval.start_seconds;
}

double KernelTrace::exposed_of_devices() const {
  ExactSum sum;
  for (const DeviceTrace& device : devices) sum.add(device.exposed_seconds);
  const double all = wall_seconds * static_cast<double>(devices.size());
  return all > 0 ? sum.value() / all : 0;
}

std::optional<KernelTrace> kernel_trace_of(Kernels kernels) {
  if (kernels.devices.empty()) return std::nullopt;
  KernelTrace out;
  out.communication_kernels = kernels.communication_kernels;
  out.compute_kernels = kernels.compute_kernels;
  out.impossible_kernels = kernels.impossible;
  out.collective_seconds = std::move(kernels.collective_seconds);
  DeviceKernels all;
  for (auto& [number, device] : kernels.devices) {
    out.devices.push_back(trace_of(number, device));
    append(all.communication, device.communication);
    append(all.compute, device.compute);
  }
  const DeviceTrace whole = trace_of(0, all);
  out.wall_seconds = whole.wall_seconds;
  out.communication_seconds = whole.communication_seconds;
  out.compute_seconds = whole.compute_seconds;
  out.exposed_seconds = whole.exposed_seconds;
  return out;
}

}  // namespace cox::diagnosis
