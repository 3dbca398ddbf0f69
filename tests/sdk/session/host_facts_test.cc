#include "sdk/src/session/host_facts.h"

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

HostFacts host(const char* name, std::int32_t cores = 8, std::int32_t threads = 4) {
  HostFacts facts;
  std::strcpy(facts.host, name);
  std::strcpy(facts.processor, "Fast Processor");
  facts.memory_bytes = 64ull << 30;
  facts.cores = cores;
  facts.threads = threads;
  return facts;
}

HostFacts on_device(const char* name, std::uint64_t gibibytes) {
  HostFacts facts = host("a");
  facts.cuda_devices = 2;
  std::strcpy(facts.device, name);
  facts.device_bytes = gibibytes << 30;
  return facts;
}

}  // namespace

TEST_SUITE("start-up summary") {
  TEST_CASE("a job of one rank is summed up in two lines") {
    const auto lines = summary_lines({host("node-a")});
    REQUIRE(lines.size() == 2);
    CHECK(lines[0] == "1 rank on 1 host (node-a: 1)");
    CHECK(lines[1] ==
          "all ranks alike: Fast Processor, 8 cores, 64.0 GiB, no GPU, 4 threads a rank");
  }

  TEST_CASE("hosts are counted and sorted by name") {
    const auto lines = summary_lines({host("b"), host("a"), host("b")});
    CHECK(lines[0] == "3 ranks on 2 hosts (a: 1, b: 2)");
    CHECK(lines.size() == 2);
  }

  TEST_CASE("ranks that differ are shown, one line for each kind with the first rank of it") {
    const auto lines = summary_lines({host("a"), host("a", 4), host("b"), host("b", 4)});
    REQUIRE(lines.size() == 4);
    CHECK(lines[1].starts_with("ranks differ"));
    CHECK(lines[2].starts_with("rank 0: Fast Processor, 8 cores"));
    CHECK(lines[3].starts_with("rank 1: Fast Processor, 4 cores"));
  }

  TEST_CASE("another number of threads or devices is a difference") {
    CHECK(summary_lines({host("a", 8, 1), host("a", 8, 2)}).size() == 4);
    HostFacts with_devices = host("b");
    with_devices.cuda_devices = 2;
    const auto lines = summary_lines({host("a"), with_devices});
    REQUIRE(lines.size() == 4);
    CHECK(lines[3] ==
          "rank 1: Fast Processor, 8 cores, 64.0 GiB, 2 CUDA devices, 4 threads a rank");
  }

  TEST_CASE("the device that all ranks train on is named with its memory") {
    const auto lines = summary_lines({on_device("Fast Device", 80), on_device("Fast Device", 80)});
    REQUIRE(lines.size() == 3);
    CHECK(lines[2] == "all ranks train on Fast Device, 80.0 GiB");
    CHECK(summary_lines({on_device("Fast Device", 0)}).at(2) == "all ranks train on Fast Device");
  }

  TEST_CASE("devices that differ, in their memory alone, too, are named with their ranks") {
    const auto fast = on_device("Fast Device", 80);
    const auto lines = summary_lines({fast, on_device("Slow Device", 16), fast,
                                      on_device("Fast Device", 40), on_device("Slow Device", 16)});
    REQUIRE(lines.size() == 6);
    CHECK(lines[1].starts_with("all ranks alike: "));
    CHECK(lines[2] ==
          "the ranks' devices differ, so numbers may differ in the last bit and speeds will:");
    CHECK(lines[3] == "ranks 0, 2: Fast Device, 80.0 GiB");
    CHECK(lines[4] == "ranks 1, 4: Slow Device, 16.0 GiB");
    CHECK(lines[5] == "rank 3: Fast Device, 40.0 GiB");
  }

  TEST_CASE("devices of many kinds still get a short summary") {
    std::vector<HostFacts> hosts;
    for (std::uint64_t i = 0; i < 2000; ++i) hosts.push_back(on_device("Device", 1 + i));
    const auto lines = summary_lines(hosts);
    CHECK(lines.size() == 11);
    for (const std::string& line : lines) CHECK(line.size() < 300);
  }

  TEST_CASE("a large job still gets a short summary") {
    std::vector<HostFacts> hosts;
    for (int i = 0; i < 2000; ++i) hosts.push_back(host(("n" + std::to_string(i)).c_str(), 1 + i));
    const auto lines = summary_lines(hosts);
    CHECK(lines.size() == 10);
    for (const std::string& line : lines) CHECK(line.size() < 300);
  }

  TEST_CASE("this machine describes itself") {
    const HostFacts facts = this_host();
    CHECK(std::strlen(facts.host) > 0);
    CHECK(facts.memory_bytes > 0);
    CHECK(facts.cores >= 1);
    CHECK(facts.threads >= 1);
  }
}
