#include "coordinator/core/host_evidence.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>

#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr double kKilohertzOfMegahertz = 1000;
constexpr double kBytesOfSector = 512;
constexpr double kBytesOfKilobyte = 1024;
constexpr double kMostCount = 0x1p63;
// Returns the text up to the next `end`, and removes that part and `end` from `text`.
std::string_view cut(std::string_view& text, char end) {
  const std::size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(start);
}

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  text = trimmed(text);
  Number value{};
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

// Returns the rest of the first line that begins with `word` and a blank; empty if there is none.
std::string_view after(std::string_view text, std::string_view word) {
  while (!text.empty()) {
    const std::string_view line = cut(text, '\n');
    if (line.size() > word.size() && line.starts_with(word) &&
        (line[word.size()] == ' ' || line[word.size()] == '\t'))
      return line.substr(word.size() + 1);
  }
  return {};
}

std::optional<double> positive_in(std::string_view text) {
  const auto value = number_in<double>(text);
  return value && std::isfinite(*value) && *value > 0 ? value : std::nullopt;
}

// Parses "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guests count in
// user.
std::optional<HostReading::Share> steal_in(std::string_view stat) {
  constexpr std::size_t kSteal = 7;
  std::string_view line = trimmed(after(stat, "cpu"));
  HostReading::Share share;
  for (std::size_t i = 0; i <= kSteal; ++i) {
    line = trimmed(line);
    const auto ticks = number_in<std::uint64_t>(cut(line, ' '));
    if (!ticks || share.whole + *ticks < share.whole) return std::nullopt;
    share.whole += *ticks;
    if (i == kSteal) share.part = *ticks;
  }
  return share;
}

std::optional<HostReading::Share> throttled_in(std::string_view group_cpu) {
  const auto periods = number_in<std::uint64_t>(after(group_cpu, "nr_periods"));
  const auto throttled = number_in<std::uint64_t>(after(group_cpu, "nr_throttled"));
  if (!periods || !throttled) return std::nullopt;
  return HostReading::Share{*throttled, *periods};
}

// Parses "some avg10=0.12 avg60=...", in percent.
std::optional<double> pressure_in(std::string_view text) {
  constexpr std::string_view kMean = "avg10=";
  const std::string_view rest = after(text, "some");
  const std::size_t at = rest.find(kMean);
  if (at == std::string_view::npos) return std::nullopt;
  const auto percent = number_in<double>(rest.substr(at + kMean.size()));
  if (!percent || !(*percent >= 0 && *percent <= 100)) return std::nullopt;
  return *percent / 100;
}

std::optional<double> mean_clock_in(std::string_view cpuinfo) {
  double sum = 0;
  double count = 0;
  while (!cpuinfo.empty()) {
    std::string_view line = cut(cpuinfo, '\n');
    if (!line.starts_with("cpu MHz")) continue;
    cut(line, ':');
    const auto clock = positive_in(line);
    if (!clock) continue;
    sum += *clock;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count * kKilohertzOfMegahertz;
}

std::optional<double> clock_ratio_in(const HostTexts& texts) {
  const auto largest = positive_in(texts.largest_clock);
  auto now = mean_clock_in(texts.cpuinfo);
  if (!now) now = positive_in(texts.clock);
  if (!now || !largest) return std::nullopt;
  return *now / *largest;
}

float known(const std::optional<double>& value) {
  const bool fits = value && std::isfinite(*value) && *value >= 0 && *value < 1e6;
  return fits ? static_cast<float>(*value) : HostEvidence::kNotKnown;
}

float share_between(const std::optional<HostReading::Share>& before,
                    const std::optional<HostReading::Share>& now) {
  if (!before || !now || now->whole <= before->whole || now->part < before->part)
    return HostEvidence::kNotKnown;
  const auto part = static_cast<double>(now->part - before->part);
  return known(std::min(1.0, part / static_cast<double>(now->whole - before->whole)));
}

bool differs(float a, float b, float by) {
  const bool is_one_known = (a == HostEvidence::kNotKnown) != (b == HostEvidence::kNotKnown);
  return is_one_known || std::abs(a - b) > by;
}

// Returns the next number behind blanks, or nothing.
std::optional<double> next_count(std::string_view& text) {
  text = trimmed(text);
  const auto count = number_in<std::uint64_t>(cut(text, ' '));
  if (!count || static_cast<double>(*count) >= kMostCount) return std::nullopt;
  return static_cast<double>(*count);
}

// Parses "cpu  user nice system idle iowait irq softirq steal guest guest_nice", in ticks; guests
// count in user. Older kernels have no steal.
void read_cpu(std::string_view stat, double ticks_per_second, NodeCounters& out) {
  std::string_view line = trimmed(after(stat, "cpu"));
  std::array<double, 8> seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const auto ticks = next_count(line);
    if (!ticks && i < 4) return;
    seconds[i] = ticks.value_or(0) / ticks_per_second;
  }
  out.user_seconds = seconds[0] + seconds[1];
  out.system_seconds = seconds[2] + seconds[5] + seconds[6];
  out.iowait_seconds = seconds[4];
  out.steal_seconds = seconds[7];
}

// Parses "MemTotal:       16000000 kB".
std::optional<double> kilobytes_after(std::string_view meminfo, std::string_view word) {
  const auto count = number_in<std::uint64_t>(after(meminfo, word));
  if (!count) return std::nullopt;
  return static_cast<double>(*count) * kBytesOfKilobyte;
}

void read_memory(const NodeTexts& texts, NodeCounters& out) {
  const auto total = kilobytes_after(texts.meminfo, "MemTotal:");
  const auto available = kilobytes_after(texts.meminfo, "MemAvailable:");
  if (total && available && *available <= *total) {
    out.memory_used_bytes = *total - *available;
    out.memory_available_bytes = *available;
  }
  const auto swap = kilobytes_after(texts.meminfo, "SwapTotal:");
  const auto free = kilobytes_after(texts.meminfo, "SwapFree:");
  if (swap && free && *free <= *swap) out.swap_used_bytes = *swap - *free;
  const auto limit = number_in<std::uint64_t>(texts.group_limit);  // "max": none
  const auto used = number_in<std::uint64_t>(texts.group_memory);
  const bool is_tighter = limit && used && static_cast<double>(*limit) < total.value_or(kMostCount);
  if (!is_tighter) return;
  out.memory_used_bytes = static_cast<double>(*used);
  const double room = static_cast<double>(*limit) - static_cast<double>(*used);
  out.memory_available_bytes = std::clamp(room, 0.0, available.value_or(kMostCount));
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Partitions follow their disk: sda, sda1, or nvme0n1, nvme0n1p1.
bool is_part_of(std::string_view name, std::string_view disk) {
  if (disk.empty() || name.size() <= disk.size() || !name.starts_with(disk)) return false;
  std::string_view rest = name.substr(disk.size());
  if (rest.starts_with('p')) rest.remove_prefix(1);
  return is_digits(rest);
}

// Returns whether the disk is made of other disks, of memory or of files.
bool is_made_up(std::string_view name) {
  constexpr std::array<std::string_view, 6> kPrefixes = {"dm-", "loop", "md", "ram", "sr", "zram"};
  return std::ranges::any_of(kPrefixes, [name](auto prefix) { return name.starts_with(prefix); });
}

// Parses "   8       0 sda reads merged sectors ms writes merged sectors ms ...".
void read_disks(std::string_view text, NodeCounters& out) {
  std::string_view disk;
  while (!text.empty()) {
    std::string_view line = cut(text, '\n');
    if (!next_count(line) || !next_count(line)) continue;
    line = trimmed(line);
    const std::string_view name = cut(line, ' ');
    if (name.empty() || is_made_up(name) || is_part_of(name, disk)) continue;
    std::array<std::optional<double>, 7> counts;
    for (auto& count : counts) count = next_count(line);
    if (!counts[2] || !counts[6]) continue;
    disk = name;
    const double read = is_known(out.disk_read_bytes) ? out.disk_read_bytes : 0;
    const double written = is_known(out.disk_written_bytes) ? out.disk_written_bytes : 0;
    out.disk_read_bytes = read + *counts[2] * kBytesOfSector;
    out.disk_written_bytes = written + *counts[6] * kBytesOfSector;
  }
}

// Parses "  eth0: bytes packets errs drop fifo frame compressed multicast bytes ...".
void read_network(std::string_view text, NodeCounters& out) {
  constexpr std::size_t kSent = 8;
  while (!text.empty()) {
    std::string_view line = trimmed(cut(text, '\n'));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.substr(0, colon) == "lo") continue;
    line.remove_prefix(colon + 1);
    std::array<std::optional<double>, kSent + 1> counts;
    for (auto& count : counts) count = next_count(line);
    if (!counts[0] || !counts[kSent]) continue;
    const double received = is_known(out.network_received_bytes) ? out.network_received_bytes : 0;
    const double sent = is_known(out.network_sent_bytes) ? out.network_sent_bytes : 0;
    out.network_received_bytes = received + *counts[0];
    out.network_sent_bytes = sent + *counts[kSent];
  }
}

// A group above the mount is looked for at the root.
void add_group_file(std::string_view mount, std::string_view group, std::string_view name,
                    std::vector<std::string>& files) {
  const bool is_root = group == "/" || group.find("/..") != std::string_view::npos;
  if (!is_root) files.push_back(concat(mount, group, "/", name));
  files.push_back(concat(mount, "/", name));
}

}  // namespace

HostReading read_host(const HostTexts& texts) {
  HostReading reading;
  reading.steal = steal_in(texts.stat);
  reading.throttled = throttled_in(texts.group_cpu);
  std::string_view load = texts.loadavg;
  reading.load = number_in<double>(cut(load, ' '));
  reading.clock_ratio = clock_ratio_in(texts);
  reading.cpu_pressure = pressure_in(texts.cpu_pressure);
  reading.memory_pressure = pressure_in(texts.memory_pressure);
  reading.io_pressure = pressure_in(texts.io_pressure);
  return reading;
}

HostEvidence evidence_between(const HostReading& before, const HostReading& now,
                              std::string_view host, std::int32_t cores) {
  HostEvidence evidence;
  const std::string_view name = host.substr(0, evidence.host.size() - 1);
  std::copy(name.begin(), name.end(), evidence.host.begin());
  evidence.steal_ratio = share_between(before.steal, now.steal);
  evidence.throttled_ratio = share_between(before.throttled, now.throttled);
  if (now.load) evidence.load_per_core = known(*now.load / std::max(1, cores));
  evidence.clock_ratio = known(now.clock_ratio);
  evidence.cpu_pressure = known(now.cpu_pressure);
  evidence.memory_pressure = known(now.memory_pressure);
  evidence.io_pressure = known(now.io_pressure);
  return evidence;
}

bool differs_noticeably(const HostEvidence& a, const HostEvidence& b) {
  constexpr float kRatio = 0.1F;
  constexpr float kLoad = 0.5F;
  return differs(a.load_per_core, b.load_per_core, kLoad) ||
         differs(a.steal_ratio, b.steal_ratio, kRatio) ||
         differs(a.clock_ratio, b.clock_ratio, kRatio) ||
         differs(a.throttled_ratio, b.throttled_ratio, kRatio) ||
         differs(a.cpu_pressure, b.cpu_pressure, kRatio) ||
         differs(a.memory_pressure, b.memory_pressure, kRatio) ||
         differs(a.io_pressure, b.io_pressure, kRatio);
}

// "0::/a" is the group of version 2, "4:cpu,cpuacct:/a" that of version 1.
std::vector<std::string> group_cpu_files(std::string_view own_groups) {
  std::vector<std::string> files;
  while (!own_groups.empty()) {
    std::string_view line = cut(own_groups, '\n');
    cut(line, ':');
    const std::string controllers = concat(",", cut(line, ':'), ",");
    if (!line.starts_with('/')) continue;
    if (controllers == ",,") add_group_file("/sys/fs/cgroup", line, "cpu.stat", files);
    if (controllers.find(",cpu,") == std::string::npos) continue;
    add_group_file("/sys/fs/cgroup/cpu", line, "cpu.stat", files);
    add_group_file("/sys/fs/cgroup/cpu,cpuacct", line, "cpu.stat", files);
  }
  return files;
}

NodeCounters read_node(const NodeTexts& texts, double ticks_per_second) {
  NodeCounters out;
  read_cpu(texts.stat, ticks_per_second, out);
  read_memory(texts, out);
  read_disks(texts.diskstats, out);
  read_network(texts.net_dev, out);
  return out;
}

// Parses "200000 100000": microseconds of each period; "max 100000": no limit.
double granted_cores(std::string_view cpu_max) {
  const auto quota = next_count(cpu_max);
  if (!quota) return kUnknown;
  const auto period = next_count(cpu_max);
  return period && *period > 0 && *quota > 0 ? *quota / *period : kUnknown;
}

// Parses "0::/job/7".
std::vector<std::string> group_files(std::string_view own_groups, std::string_view name) {
  std::vector<std::string> out;
  while (!own_groups.empty()) {
    std::string_view line = cut(own_groups, '\n');
    if (!line.starts_with("0::/")) continue;
    line.remove_prefix(3);
    add_group_file("/sys/fs/cgroup", line, name, out);
  }
  return out;
}

// The second field is a name in brackets, which may contain any characters.
std::optional<std::uint64_t> start_ticks_in(std::string_view stat_line) {
  constexpr int kBetween = 19;  // fields between the name and the start
  const std::size_t bracket = stat_line.rfind(')');
  if (bracket == std::string_view::npos) return std::nullopt;
  std::string_view rest = stat_line.substr(bracket + 1);
  for (int i = 0; i < kBetween; ++i) {
    rest = trimmed(rest);
    cut(rest, ' ');
  }
  return number_in<std::uint64_t>(rest);
}

}  // namespace cox
