#include "sdk/src/session/host_facts.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <map>
#include <span>

#include "coordinator/core/text.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

template <std::size_t N>
void copy_into(char (&target)[N], const std::string& text) {
  target[text.copy(target, N - 1)] = '\0';
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

bool same_machine_type(const HostFacts& a, const HostFacts& b) {
  return std::strcmp(a.processor, b.processor) == 0 && a.cores == b.cores &&
         a.memory_bytes == b.memory_bytes && a.threads == b.threads &&
         a.cuda_devices == b.cuda_devices;
}

std::string count_of(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string describe(const HostFacts& facts) {
  const std::string devices =
      facts.cuda_devices > 0 ? count_of(facts.cuda_devices, "CUDA device") : "no GPU";
  return std::string(facts.processor) + ", " + count_of(facts.cores, "core") + ", " +
         fixed(static_cast<double>(facts.memory_bytes) / (1ull << 30), 1) + " GiB, " + devices +
         ", " + count_of(facts.threads, "thread") + " a rank";
}

std::string describe_device(const HostFacts& facts) {
  const double gibibytes = static_cast<double>(facts.device_bytes) / (1ull << 30);
  return std::string(facts.device) +
         (facts.device_bytes > 0 ? ", " + fixed(gibibytes, 1) + " GiB" : "");
}

// DeviceKind is devices of one kind and the ranks that train on them, in the order of their first
// ranks.
struct DeviceKind {
  std::string text;
  std::vector<std::size_t> ranks;
};

std::vector<DeviceKind> device_kinds(const std::vector<HostFacts>& hosts) {
  std::vector<DeviceKind> kinds;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r].device[0] == '\0') continue;
    const std::string text = describe_device(hosts[r]);
    auto kind = std::ranges::find(kinds, text, &DeviceKind::text);
    if (kind == kinds.end()) kind = kinds.insert(kind, {text, {}});
    kind->ranks.push_back(r);
  }
  return kinds;
}

constexpr std::size_t kMostKinds = 8;

// Adds nothing on the CPU.
void add_device_lines(const std::vector<HostFacts>& hosts, std::vector<std::string>& lines) {
  const std::vector<DeviceKind> kinds = device_kinds(hosts);
  if (kinds.empty()) return;
  if (kinds.size() == 1 && kinds.front().ranks.size() == hosts.size()) {
    lines.push_back("all ranks train on " + kinds.front().text);
    return;
  }
  lines.emplace_back(
      "the ranks' devices differ, so numbers may differ in the last bit and speeds will:");
  for (const DeviceKind& kind : std::span(kinds).first(std::min(kinds.size(), kMostKinds)))
    lines.push_back(ranks_text(kind.ranks, hosts.size()) + ": " + kind.text);
}

}  // namespace

HostFacts this_host() {
  HostFacts facts;
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  copy_into(facts.host, name);
  copy_into(facts.processor, processor_name());
  facts.memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  facts.cores = transport::usable_cores();
  facts.threads = at::get_num_threads();
  facts.cuda_devices = static_cast<std::int32_t>(torch::cuda::device_count());
  return facts;
}

std::vector<std::string> summary_lines(const std::vector<HostFacts>& hosts) {
  std::map<std::string, std::size_t> ranks_on;
  for (const HostFacts& facts : hosts) ++ranks_on[facts.host];
  std::string where;
  for (const auto& [host, ranks] : ranks_on) {
    where += (where.empty() ? "" : ", ") + host + ": " + std::to_string(ranks);
    if (where.size() > 200) {
      where += ", ...";
      break;
    }
  }
  std::vector<std::string> lines = {count_of(hosts.size(), "rank") + " on " +
                                    count_of(ranks_on.size(), "host") + " (" + where + ")"};
  std::vector<std::string> kinds;
  for (std::size_t r = 0; r < hosts.size() && kinds.size() < kMostKinds; ++r) {
    const bool is_new =
        std::none_of(hosts.begin(), hosts.begin() + static_cast<long>(r),
                     [&](const HostFacts& h) { return same_machine_type(h, hosts[r]); });
    if (is_new) kinds.push_back("rank " + std::to_string(r) + ": " + describe(hosts[r]));
  }
  if (kinds.size() == 1) {
    lines.push_back("all ranks alike: " + describe(hosts.front()));
  } else {
    lines.push_back("ranks differ, so numbers may differ in the last bit and speeds will:");
    lines.insert(lines.end(), kinds.begin(), kinds.end());
  }
  add_device_lines(hosts, lines);
  return lines;
}

void log_hosts(transport::Communicator& all, const DevicePlace& place, const Log& log) {
  HostFacts mine = this_host();
  if (place.facts) {
    copy_into(mine.device, place.facts->name.empty() ? place.device.str() : place.facts->name);
    mine.device_bytes = place.facts->memory_bytes;
  }
  const auto hosts = require(gather_values(all, mine));
  if (all.rank() != kRoot) return;
  for (const std::string& line : summary_lines(hosts)) log.info(line);
}

}  // namespace cox::detail
