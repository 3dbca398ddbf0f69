#include "coordinator/core/host_sample.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "coordinator/core/proc_text.h"

namespace cox {
namespace {

using namespace proc_text;

constexpr double kBytesOfSector = 512;
constexpr double kBytesOfKilobyte = 1024;
constexpr double kMostCount = 0x1p63;

// The next number behind blanks; nothing where there is none.
std::optional<double> next_count(std::string_view& text) {
  text = trimmed(text);
  const auto count = number_in<std::uint64_t>(cut(text, ' '));
  if (!count || static_cast<double>(*count) >= kMostCount) return std::nullopt;
  return static_cast<double>(*count);
}

// "cpu  user nice system idle iowait irq softirq steal guest guest_nice", in ticks; guests are in
// user. Older kernels have no steal.
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

// "MemTotal:       16000000 kB".
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

// Parts of a disk follow it: sda, sda1, or nvme0n1, nvme0n1p1.
bool is_part_of(std::string_view name, std::string_view disk) {
  if (disk.empty() || name.size() <= disk.size() || !name.starts_with(disk)) return false;
  std::string_view rest = name.substr(disk.size());
  if (rest.starts_with('p')) rest.remove_prefix(1);
  return is_digits(rest);
}

// Disks that are made of others, of memory or of files.
bool is_made_up(std::string_view name) {
  constexpr std::array<std::string_view, 6> kPrefixes = {"dm-", "loop", "md", "ram", "sr", "zram"};
  return std::ranges::any_of(kPrefixes, [name](auto prefix) { return name.starts_with(prefix); });
}

// "   8       0 sda reads merged sectors ms writes merged sectors ms ...".
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

// "  eth0: bytes packets errs drop fifo frame compressed multicast bytes ...".
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

}  // namespace

NodeCounters read_node(const NodeTexts& texts, double ticks_per_second) {
  NodeCounters out;
  read_cpu(texts.stat, ticks_per_second, out);
  read_memory(texts, out);
  read_disks(texts.diskstats, out);
  read_network(texts.net_dev, out);
  return out;
}

// "200000 100000": microseconds of each period; "max 100000": no limit.
double granted_cores(std::string_view cpu_max) {
  const auto quota = next_count(cpu_max);
  if (!quota) return kUnknown;
  const auto period = next_count(cpu_max);
  return period && *period > 0 && *quota > 0 ? *quota / *period : kUnknown;
}

// "0::/job/7". A group that lies above what is mounted is looked for at the root.
std::vector<std::string> group_files(std::string_view own_groups, std::string_view name) {
  std::vector<std::string> out;
  while (!own_groups.empty()) {
    std::string_view line = cut(own_groups, '\n');
    if (!line.starts_with("0::/")) continue;
    line.remove_prefix(3);
    const bool is_root = line == "/" || line.find("/..") != std::string_view::npos;
    if (!is_root) out.push_back("/sys/fs/cgroup" + std::string(line) + "/" + std::string(name));
    out.push_back("/sys/fs/cgroup/" + std::string(name));
  }
  return out;
}

// The second field is a name in brackets, which may hold any characters.
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
