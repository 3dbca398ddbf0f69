#include "coordinator/core/host_sample.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

namespace {

NodeTexts plain_texts() {
  NodeTexts texts;
  texts.stat = "cpu  100 20 30 700 40 5 6 50 9 9\ncpu0 1 2 3\nctxt 9\n";
  texts.meminfo =
      "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n"
      "SwapTotal:       200 kB\nSwapFree:        150 kB\n";
  texts.diskstats =
      "   7       0 loop0 1 0 9999 1 1 0 9999 1 0 1 1\n"
      "   8       0 sda 10 1 100 5 20 2 200 6 0 7 8\n"
      "   8       1 sda1 9 1 90 5 19 2 190 6 0 7 8\n"
      " 259       0 nvme0n1 1 0 1 1 1 0 2 1 0 1 1 0 0 0 0 0 0\n"
      " 259       1 nvme0n1p1 1 0 1 1 1 0 2 1 0 1 1\n"
      " 253       0 dm-0 1 0 7777 1 1 0 7777 1 0 1 1\n";
  texts.net_dev =
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
      "    lo:    5000       1    0    0    0     0          0         0     5000      1    0\n"
      "  eth0:    1000       1    0    0    0     0          0         0     2000      1    0\n"
      "  ib0:  10       1    0    0    0     0          0         0     30      1    0\n";
  return texts;
}

NodeCounters read(const NodeTexts& texts) {
  return read_node(texts, 100);
}

std::vector<double> all_of(const NodeCounters& node) {
  return {node.user_seconds,           node.system_seconds,    node.iowait_seconds,
          node.steal_seconds,          node.memory_used_bytes, node.memory_available_bytes,
          node.swap_used_bytes,        node.disk_read_bytes,   node.disk_written_bytes,
          node.network_received_bytes, node.network_sent_bytes};
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("the texts of a machine become its counters, disks and devices without their doubles") {
    const NodeCounters node = read(plain_texts());
    CHECK(node.user_seconds == doctest::Approx(1.2));
    CHECK(node.system_seconds == doctest::Approx(0.41));
    CHECK(node.iowait_seconds == doctest::Approx(0.4));
    CHECK(node.steal_seconds == doctest::Approx(0.5));
    CHECK(node.memory_used_bytes == 600 * 1024);
    CHECK(node.memory_available_bytes == 400 * 1024);
    CHECK(node.swap_used_bytes == 50 * 1024);
    CHECK(node.disk_read_bytes == 101 * 512);
    CHECK(node.disk_written_bytes == 202 * 512);
    CHECK(node.network_received_bytes == 1010);
    CHECK(node.network_sent_bytes == 2030);
  }

  TEST_CASE("the memory of a control group counts where it has a limit below the machine's") {
    NodeTexts texts = plain_texts();
    texts.group_memory = "102400\n";
    texts.group_limit = "max\n";
    CHECK(read(texts).memory_used_bytes == 600 * 1024);
    texts.group_limit = "9999999999\n";
    CHECK(read(texts).memory_used_bytes == 600 * 1024);
    texts.group_limit = "204800\n";
    CHECK(read(texts).memory_used_bytes == 102400);
    CHECK(read(texts).memory_available_bytes == 102400);
    texts.group_limit = "1024\n";  // usage above the limit
    CHECK(read(texts).memory_available_bytes == 0);
    texts.group_limit = "1000000\n";
    CHECK(read(texts).memory_available_bytes == 400 * 1024);  // limited by the machine's memory
  }

  TEST_CASE("what a machine does not tell is not known, and the rest is") {
    for (const double value : all_of(read({}))) CHECK_FALSE(is_known(value));
    NodeTexts some;
    some.meminfo = "SwapTotal: 5 kB\nSwapFree: 5 kB\n";
    CHECK(read(some).swap_used_bytes == 0);
    CHECK_FALSE(is_known(read(some).memory_used_bytes));
    some.stat = "cpu  1 2 3 4 5 6 7\n";  // a kernel without steal
    CHECK(read(some).steal_seconds == 0);
  }

  TEST_CASE("odd texts of a file are not known") {
    struct Row {
      std::string NodeTexts::*file;
      std::string text;
      double NodeCounters::*value;
    };
    const std::vector<Row> rows = {
        {&NodeTexts::stat, "cpu", &NodeCounters::user_seconds},
        {&NodeTexts::stat, "cpu  1 2 3", &NodeCounters::user_seconds},
        {&NodeTexts::stat, "cpu  -1 2 3 4", &NodeCounters::user_seconds},
        {&NodeTexts::stat, "cpu  x 2 3 4", &NodeCounters::user_seconds},
        {&NodeTexts::stat, "cpu  99999999999999999999 2 3 4", &NodeCounters::user_seconds},
        {&NodeTexts::stat, "cpu0 1 2 3 4", &NodeCounters::user_seconds},
        {&NodeTexts::meminfo, "MemTotal: 1 kB\nMemAvailable: 2 kB\n",
         &NodeCounters::memory_used_bytes},
        {&NodeTexts::meminfo, "MemTotal: 1 kB", &NodeCounters::memory_available_bytes},
        {&NodeTexts::meminfo, "SwapTotal: 1 kB\nSwapFree: 2 kB\n", &NodeCounters::swap_used_bytes},
        {&NodeTexts::diskstats, "8 0 sda 1 2 x 4 5 6 7", &NodeCounters::disk_read_bytes},
        {&NodeTexts::diskstats, "8 0 sda 1 2 3 4 5 6", &NodeCounters::disk_written_bytes},
        {&NodeTexts::diskstats, "sda 1 2 3 4 5 6 7 8", &NodeCounters::disk_read_bytes},
        {&NodeTexts::net_dev, "eth0 1 2 3", &NodeCounters::network_sent_bytes},
        {&NodeTexts::net_dev, "eth0: 1 2 3 4 5 6 7 8", &NodeCounters::network_sent_bytes},
        {&NodeTexts::net_dev, "eth0: -1 2 3 4 5 6 7 8 9", &NodeCounters::network_received_bytes}};
    for (const Row& row : rows) {
      CAPTURE(row.text);
      NodeTexts texts = plain_texts();
      texts.*row.file = row.text;
      CHECK_FALSE(is_known(read(texts).*row.value));
    }
  }

  TEST_CASE("texts that are cut or altered anywhere give sound counters") {
    std::mt19937 random(11);
    constexpr std::string NodeTexts::*kFiles[] = {
        &NodeTexts::stat,    &NodeTexts::meminfo,      &NodeTexts::diskstats,
        &NodeTexts::net_dev, &NodeTexts::group_memory, &NodeTexts::group_limit};
    NodeTexts plain = plain_texts();
    plain.group_memory = "1000";
    plain.group_limit = "2000";
    for (int trial = 0; trial < 5000; ++trial) {
      NodeTexts texts = plain;
      for (const auto file : kFiles) {
        std::string& text = texts.*file;
        if (random() % 3 == 0) text.resize(random() % (text.size() + 1));
        for (auto n = random() % 4; n > 0 && !text.empty(); --n)
          text[random() % text.size()] = static_cast<char>(random());
      }
      for (const double value : all_of(read(texts)))
        CHECK((!is_known(value) || (std::isfinite(value) && value >= 0)));
    }
  }

  TEST_CASE("a control group grants cores, or sets no limit") {
    CHECK(granted_cores("200000 100000\n") == 2);
    CHECK(granted_cores("50000 100000") == 0.5);
    for (const char* text : {"", "max 100000\n", "100000", "100000 0", "0 100000", "x y", "-1 5"})
      CHECK_FALSE(is_known(granted_cores(text)));
  }

  TEST_CASE("files of the control group are looked for where version 2 keeps them") {
    using Files = std::vector<std::string>;
    CHECK(group_files("", "cpu.max").empty());
    CHECK(group_files("4:cpu,cpuacct:/a\n", "cpu.max").empty());
    CHECK(group_files("0::/\n", "cpu.max") == Files{"/sys/fs/cgroup/cpu.max"});
    CHECK(group_files("0::/../../etc\n", "cpu.max") == Files{"/sys/fs/cgroup/cpu.max"});
    CHECK(group_files("1:name=x:/y\n0::/job/7\n", "memory.max") ==
          Files{"/sys/fs/cgroup/job/7/memory.max", "/sys/fs/cgroup/memory.max"});
  }

  TEST_CASE("a process's start is found behind any name") {
    const std::string fields = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
    CHECK(start_ticks_in("7 (a) b) (c)" + fields) == 4242);
    CHECK_FALSE(start_ticks_in("7 a b"));
    CHECK_FALSE(start_ticks_in("7 (a) S 1 2"));
    CHECK_FALSE(start_ticks_in(""));
  }
}
