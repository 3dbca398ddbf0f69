#include "sdk/src/memory/memory_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/text.h"
#include "metrics/records/step_row.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/memory/counting_allocator.h"

namespace cox::detail {
namespace {

constexpr std::size_t kMostFileBytes = 1 << 20;   // longest file to read
constexpr std::uint64_t kNoLimit = 1ull << 60;    // v1 writes "no limit" as a number near 2^63
constexpr std::uint64_t kBytesOfKilobyte = 1024;  // /proc/meminfo uses kB

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto read = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

// Returns the number after a line's first word: "MemTotal:  16384 kB".
std::optional<std::uint64_t> number_of(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const bool is_it = line.starts_with(word) && line.size() > word.size() &&
                       (line[word.size()] == ' ' || line[word.size()] == '\t');
    if (is_it) return number_in(line.substr(word.size()));
  }
  return std::nullopt;
}

// A mount of control groups, from a line of /proc/self/mountinfo.
struct GroupMount {
  std::string root;  // the group shown at the folder
  std::string folder;
  std::string type;  // cgroup or cgroup2
  std::string options;
};

// Removes the first word, or the first line, from the front of a text.
std::string_view take_part(std::string_view& text, char end) {
  const std::string_view part = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

std::optional<GroupMount> mount_in(std::string_view line) {
  const std::size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  GroupMount mount;
  std::string_view before = line.substr(0, dash);
  for (int skipped = 0; skipped < 3; ++skipped) take_part(before, ' ');
  mount.root = take_part(before, ' ');
  mount.folder = take_part(before, ' ');
  std::string_view after = line.substr(dash + 3);
  mount.type = take_part(after, ' ');
  take_part(after, ' ');
  mount.options = take_part(after, ' ');
  const bool counts_memory =
      mount.type == "cgroup2" ||
      (mount.type == "cgroup" &&
       concat(",", mount.options, ",").find(",memory,") != std::string::npos);
  return counts_memory ? std::optional(std::move(mount)) : std::nullopt;
}

// Returns the group `path`'s folder below the mount; empty for the mount itself, and for a group
// outside of the mount's part.
std::string below(const GroupMount& mount, const std::string& path) {
  const std::string root = mount.root == "/" ? "" : mount.root;
  const bool is_inside = path.starts_with(root + "/") && path.find("/..") == std::string::npos;
  const std::string rest = is_inside ? path.substr(root.size()) : "";
  return rest == "/" ? "" : rest;
}

// Returns the lesser of two readings. Unknown values do not count.
NodeReading lesser(const NodeReading& a, const NodeReading& b) {
  NodeReading both;
  both.limit_bytes = a.limit_bytes == 0 || b.limit_bytes == 0
                         ? std::max(a.limit_bytes, b.limit_bytes)
                         : std::min(a.limit_bytes, b.limit_bytes);
  both.free_bytes = a.free_bytes && b.free_bytes ? std::min(*a.free_bytes, *b.free_bytes)
                    : a.free_bytes               ? a.free_bytes
                                                 : b.free_bytes;
  return both;
}

std::uint64_t not_below_zero(std::int64_t bytes) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, bytes));
}

NodeReading machine_in(std::string_view meminfo) {
  NodeReading machine;
  machine.limit_bytes = number_of(meminfo, "MemTotal:").value_or(0) * kBytesOfKilobyte;
  if (const auto free = number_of(meminfo, "MemAvailable:"))
    machine.free_bytes = *free * kBytesOfKilobyte;
  return machine;
}

}  // namespace

void read_system_text(const std::string& path, std::string& text) {
  text.clear();
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return;
  std::array<char, 4096> part{};
  while (text.size() < kMostFileBytes) {
    const ssize_t got = ::read(file, part.data(), part.size());
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(file);
}

NodeMemory::Group::Group(const std::string& folder, Version version) {
  const bool is_v1 = version == Version::v1;
  limit = folder + (is_v1 ? "/memory.limit_in_bytes" : "/memory.max");
  if (!is_v1) high = folder + "/memory.high";
  used = folder + (is_v1 ? "/memory.usage_in_bytes" : "/memory.current");
  statistics = folder + "/memory.stat";
  inactive_files = is_v1 ? "total_inactive_file" : "inactive_file";
}

NodeMemory::NodeMemory(ReadText read) : read_(std::move(read)) {
  find_groups();
}

void NodeMemory::find_groups() {
  std::string path_v1;
  std::string path_v2;
  const std::string own(text_of("/proc/self/cgroup"));  // "0::/a/b" and "4:cpu,memory:/a/b"
  for (std::string_view left = own; !left.empty();) {
    const std::string_view line = take_part(left, '\n');
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) path_v2 = line.substr(second + 1);
    if (concat(",", controllers, ",").find(",memory,") != std::string::npos)
      path_v1 = line.substr(second + 1);
  }
  const std::string mounts(text_of("/proc/self/mountinfo"));
  for (std::string_view left = mounts; !left.empty();) {
    const auto mount = mount_in(take_part(left, '\n'));
    if (!mount) continue;
    const bool is_v1 = mount->type == "cgroup";
    add_groups(mount->folder, below(*mount, is_v1 ? path_v1 : path_v2),
               is_v1 ? Version::v1 : Version::v2);
  }
}

// The limits of all outer groups apply to a group too.
void NodeMemory::add_groups(const std::string& mount, const std::string& path, Version version) {
  for (std::string rest = path;; rest.resize(rest.rfind('/'))) {
    groups_.emplace_back(mount + rest, version);
    if (rest.empty()) return;
  }
}

std::string_view NodeMemory::text_of(const std::string& path) {
  read_(path, text_);
  return text_;
}

NodeReading NodeMemory::look_at(const Group& group) {
  NodeReading found;
  found.limit_bytes = number_in(text_of(group.limit)).value_or(0);
  if (found.limit_bytes >= kNoLimit) found.limit_bytes = 0;
  // Above memory.high the kernel throttles a group until the group is useless.
  if (!group.high.empty()) {
    const std::uint64_t high = number_in(text_of(group.high)).value_or(0);
    if (high > 0) found = lesser(found, {high, {}});
  }
  if (found.limit_bytes == 0) return found;
  const auto used = number_in(text_of(group.used));
  if (!used) return found;
  const std::uint64_t files =
      number_of(text_of(group.statistics), group.inactive_files).value_or(0);
  const std::uint64_t held = *used - std::min(*used, files);
  found.free_bytes = found.limit_bytes - std::min(found.limit_bytes, held);
  return found;
}

NodeReading NodeMemory::look() {
  static const std::string& kMachine = never_destroyed(std::string("/proc/meminfo"));
  NodeReading all = machine_in(text_of(kMachine));
  for (const Group& group : groups_) all = lesser(all, look_at(group));
  return all;
}

std::uint64_t NodeMemory::resident_bytes() {
  static const std::string& kProcess = never_destroyed(std::string("/proc/self/statm"));
  const std::string_view text = text_of(kProcess);  // pages: total, resident, ...
  const std::size_t resident = text.find(' ');
  if (resident == std::string_view::npos) return 0;
  return number_in(text.substr(resident)).value_or(0) *
         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

MemoryProbe::MemoryProbe(MemorySharers sharers, NodeMemory node)
    : sharers_{std::max(1, sharers.of_node), std::max(1, sharers.of_device)},
      node_(std::move(node)) {
  look_around();
}

void MemoryProbe::attach(torch::nn::Module& model) {
  count_on(device_of(model));
}

void MemoryProbe::count_on(c10::Device device) {
  memory_ = TensorMemory(device);
  look_around();
}

void MemoryProbe::begin_step() {
  peak_before_part_ = 0;
  if (memory_.is_counted()) memory_.reset_peak();
}

void MemoryProbe::begin_part() {
  if (!memory_.is_counted()) return;
  peak_before_part_ = std::max(peak_before_part_, memory_.count().peak_bytes);
  memory_.reset_peak();
}

std::int64_t MemoryProbe::peak_of_part() const {
  return memory_.is_counted() ? memory_.count().peak_bytes : 0;
}

void MemoryProbe::end_step(const StepEnd&, StepOutput& output) {
  look();
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_look_around_) {
    look_around();
    next_look_around_ = now + kLimitEvery;
  }
  if (output.row == nullptr) return;
  metrics::StepRow& row = *output.row;
  row.memory_alloc_bytes = reading_.used_bytes;
  row.memory_peak_alloc_bytes = reading_.peak_bytes;
  row.memory_reserved_bytes = reading_.reserved_bytes;
  row.memory_peak_reserved_bytes = reading_.peak_reserved_bytes;
  row.allocator = reading_.allocator.value_or(AllocatorEvidence{});
  if (reading_.limit_bytes == 0) return;
  const std::uint64_t used = std::min(reading_.limit_bytes, reading_.peak_bytes);
  row.headroom_bytes = static_cast<std::int64_t>(reading_.limit_bytes - used);
}

void MemoryProbe::sign(RankSignal& signal) const {
  signal.memory_used_bytes = reading_.used_bytes;
  signal.memory_peak_bytes = reading_.peak_bytes;
  signal.memory_limit_bytes = reading_.limit_bytes;
}

void MemoryProbe::look() {
  if (const auto heap = memory_.device_heap()) return look_at_heap(*heap);
  if (!memory_.is_counted()) return look_at_process();
  const MemoryCount count = memory_.count();
  reading_.used_bytes = reading_.reserved_bytes = not_below_zero(count.live_bytes);
  reading_.peak_bytes = reading_.peak_reserved_bytes =
      not_below_zero(std::max(count.peak_bytes, peak_before_part_));
}

void MemoryProbe::look_at_heap(const DeviceHeap& heap) {
  reading_.used_bytes = not_below_zero(heap.tensors.live_bytes);
  reading_.peak_bytes = not_below_zero(std::max(heap.tensors.peak_bytes, peak_before_part_));
  reading_.reserved_bytes = not_below_zero(heap.reserved.live_bytes);
  reading_.peak_reserved_bytes = not_below_zero(heap.reserved.peak_bytes);
  reading_.allocator.reset();
  if (reading_.reserved_bytes == 0) return;
  reading_.allocator = {reading_.reserved_bytes, not_below_zero(heap.active_bytes),
                        not_below_zero(heap.inactive_split_bytes), device_free_bytes_};
}

void MemoryProbe::look_at_process() {
  if (calls_++ % kEverySteps != 0) return;
  const std::uint64_t resident = node_.resident_bytes();
  if (resident == 0) return;
  reading_.used_bytes = resident;
  reading_.peak_bytes = std::max(reading_.peak_bytes, reading_.used_bytes);
  reading_.reserved_bytes = reading_.used_bytes;
  reading_.peak_reserved_bytes = reading_.peak_bytes;
}

void MemoryProbe::look_around() {
  if (const auto free = memory_.free_bytes()) {
    const auto held = not_below_zero(memory_.reserved().live_bytes);
    device_free_bytes_ = *free;
    reading_.limit_bytes = held + *free / static_cast<std::uint64_t>(sharers_.of_device);
    return;
  }
  const auto sharing = static_cast<std::uint64_t>(sharers_.of_node);
  const NodeReading node = node_.look();
  const std::uint64_t share = node.limit_bytes / sharing;
  reading_.limit_bytes = share;
  const std::uint64_t resident = node_.resident_bytes();
  if (!node.free_bytes || resident == 0) return;
  std::uint64_t uncounted = 0;
  if (counting_allocator_installed()) {
    const auto live =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, counted_memory().live_bytes));
    const std::uint64_t now = resident - std::min(resident, live);
    // Any excess over the least is tensor memory kept by the heap for reuse.
    uncounted_bytes_ = std::min(now, uncounted_bytes_.value_or(now));
    uncounted = *uncounted_bytes_;
  }
  const std::uint64_t reachable =
      resident - std::min(resident, uncounted) + *node.free_bytes / sharing;
  reading_.limit_bytes = share == 0 ? reachable : std::min(share, reachable);
}

}  // namespace cox::detail
