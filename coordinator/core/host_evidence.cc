#include "coordinator/core/host_evidence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "coordinator/core/proc_text.h"

namespace cox {
namespace {

using namespace proc_text;

constexpr double kKilohertzOfMegahertz = 1000;

std::optional<double> positive_in(std::string_view text) {
  const auto value = number_in<double>(text);
  return value && std::isfinite(*value) && *value > 0 ? value : std::nullopt;
}

// "cpu  user nice system idle iowait irq softirq steal guest guest_nice": guests are in user.
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

// "some avg10=0.12 avg60=...", in percent.
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
  const auto add = [&files](std::string_view folder, std::string_view path) {
    if (path == "/" || path.find("/..") != std::string_view::npos) path = "";
    files.push_back(std::string(folder) + std::string(path) + "/cpu.stat");
    if (!path.empty()) files.push_back(std::string(folder) + "/cpu.stat");
  };
  while (!own_groups.empty()) {
    std::string_view line = cut(own_groups, '\n');
    cut(line, ':');
    const std::string controllers = ',' + std::string(cut(line, ':')) + ',';
    if (!line.starts_with('/')) continue;
    if (controllers == ",,") add("/sys/fs/cgroup", line);
    if (controllers.find(",cpu,") == std::string::npos) continue;
    add("/sys/fs/cgroup/cpu", line);
    add("/sys/fs/cgroup/cpu,cpuacct", line);
  }
  return files;
}

}  // namespace cox
