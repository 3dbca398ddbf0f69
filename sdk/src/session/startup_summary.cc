#include "sdk/src/session/startup_summary.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "coordinator/transport/wait.h"

namespace cox::detail {
namespace {

template <std::size_t N>
void copy_into(char (&target)[N], const std::string& text) {
  std::snprintf(target, N, "%s", text.c_str());
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

std::string count_of(std::size_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string count_of(std::int32_t count, const std::string& noun) {
  return count_of(static_cast<std::size_t>(std::max(0, count)), noun);
}

std::string describe(const HostFacts& facts) {
  char memory[32];
  std::snprintf(memory, sizeof(memory), "%.1f GiB",
                static_cast<double>(facts.memory_bytes) / (1ull << 30));
  const std::string devices =
      facts.cuda_devices > 0 ? count_of(facts.cuda_devices, "CUDA device") : "no GPU";
  return std::string(facts.processor) + ", " + count_of(facts.cores, "core") + ", " + memory +
         ", " + devices + ", " + count_of(facts.threads, "thread") + " a rank";
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

Result<std::vector<HostFacts>> gather_hosts(transport::Communicator& world,
                                            const transport::WaitPolicy& policy) {
  const HostFacts mine = this_host();
  std::vector<HostFacts> all(static_cast<std::size_t>(world.size()));
  const Status gathered =
      transport::finish(world,
                        world.start_all_gather(std::as_bytes(std::span<const HostFacts>(&mine, 1)),
                                               std::as_writable_bytes(std::span<HostFacts>(all))),
                        policy);
  if (!gathered.ok()) return gathered;
  return all;
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
  for (std::size_t r = 0; r < hosts.size() && kinds.size() < 8; ++r) {
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
  return lines;
}

}  // namespace cox::detail
