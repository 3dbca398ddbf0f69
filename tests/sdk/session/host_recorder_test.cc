#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "metrics/records/host_lines.h"
#include "sdk/src/session/host_watch.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

HostRecorder::Setup setup_in(const TempFolder& folder) {
  HostRecorder::Setup setup;
  setup.file = folder / "host.jsonl";
  setup.root = folder / "";
  setup.period_seconds = 0.01;
  setup.node = 3;
  setup.mark = [] {
    RankMark mark;
    mark.activity = Activity::data;
    mark.step = StepId(17);
    return mark;
  };
  setup.nvml = "libcoxswain-has-no-such.so";
  return setup;
}

void record(HostRecorder::Setup setup, std::uint64_t looks) {
  auto recorder = HostRecorder::start(std::move(setup));
  REQUIRE(recorder.ok());
  while ((*recorder)->looks() < looks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::vector<HostSample> samples_in(const fs::path& file) {
  std::vector<HostSample> out;
  REQUIRE(io::each_host_sample(file, [&](const HostSample& s) { out.push_back(s); }).ok());
  return out;
}

}  // namespace

TEST_SUITE("host recorder") {
  TEST_CASE("what the mark and the machine say stands in the file, at multiples of the period") {
    const TempFolder folder;
    write(folder / "proc/stat", "cpu  100 0 0 0 0 0 0 0\n");
    write(folder / "proc/meminfo", "MemTotal: 10 kB\nMemAvailable: 4 kB\n");
    write(folder / "proc/self/statm", "900 500 1 1 1 1 1\n");
    write(folder / "proc/self/cgroup", "0::/job\n");
    write(folder / "sys/fs/cgroup/job/memory.max", "8192\n");
    write(folder / "sys/fs/cgroup/job/memory.current", "4096\n");
    write(folder / "sys/fs/cgroup/job/cpu.max", "50000 100000\n");
    HostRecorder::Setup setup = setup_in(folder);
    setup.has_node = true;
    record(setup, 5);
    const auto samples = samples_in(folder / "host.jsonl");
    REQUIRE(samples.size() >= 5);
    for (const HostSample& sample : samples) {
      CHECK(sample.activity == Activity::data);
      CHECK(sample.step == 17);
      CHECK(sample.cpu_seconds() > 0);
      CHECK(sample.resident_bytes == 500 * static_cast<double>(sysconf(_SC_PAGESIZE)));
      REQUIRE(sample.node);
      CHECK(sample.node->memory_used_bytes == 4096);
      CHECK(is_known(sample.node->user_seconds));
      CHECK_FALSE(is_known(sample.node->disk_read_bytes));
    }
    REQUIRE(samples[0].start);
    CHECK(samples[0].start->node == 3);
    CHECK(samples[0].start->cores == 0.5);
    CHECK(samples[0].start->gpus == -1);
    CHECK(samples[0].start->period_seconds == 0.01);
    CHECK_FALSE(samples[1].start);
  }

  TEST_CASE("another start goes on in the file, behind a line that was left torn") {
    const TempFolder folder;
    record(setup_in(folder), 2);
    const std::size_t before = samples_in(folder / "host.jsonl").size();
    std::ofstream(folder / "host.jsonl", std::ios::app) << "{\"timestamp\":1.5,\"ste";
    record(setup_in(folder), 2);
    const auto samples = samples_in(folder / "host.jsonl");
    REQUIRE(samples.size() >= before + 2);
    CHECK(samples[before].start);
    CHECK_FALSE(samples[0].node);
  }

  TEST_CASE("the process's own start is known on a machine that tells") {
    const TempFolder folder;
    HostRecorder::Setup setup = setup_in(folder);
    setup.root = "/";
    setup.has_node = true;
    record(setup, 2);
    const auto samples = samples_in(folder / "host.jsonl");
    REQUIRE(samples[0].start);
    CHECK(samples[0].start->started_seconds < samples[0].timestamp);
    CHECK(samples[0].timestamp - samples[0].start->started_seconds < 3600);
    CHECK(is_known(samples[0].node->user_seconds));
  }

  TEST_CASE("a file that has grown too large is thinned out, and grows more slowly") {
    const TempFolder folder;
    HostRecorder::Setup setup = setup_in(folder);
    setup.most_bytes = 4000;
    std::string lines;
    for (int i = 0; i < 100; ++i) {
      HostSample sample;
      sample.timestamp = 1.7e9 + 0.01 * i;
      lines += io::host_line(sample);
    }
    write(folder / "host.jsonl", lines);
    REQUIRE(lines.size() > 4000);
    record(setup, 4);
    CHECK(fs::file_size(folder / "host.jsonl") < 4000);
    CHECK(samples_in(folder / "host.jsonl").size() > 10);
  }

  TEST_CASE(
      "a link in the file's place is refused, and a file that is lost costs no more than samples") {
    const TempFolder folder;
    fs::create_symlink(folder / "elsewhere", folder / "host.jsonl");
    CHECK_FALSE(HostRecorder::start(setup_in(folder)).ok());
    fs::remove(folder / "host.jsonl");
    HostRecorder::Setup setup = setup_in(folder);
    setup.most_bytes = 1;
    std::atomic<int> troubles = 0;
    setup.on_trouble = [&](const Status&) { ++troubles; };
    write(folder / "host.jsonl", "not ours");
    record(setup, 2);
    CHECK(troubles <= 1);
  }

  TEST_CASE("looks come less often where they take longer, and more often again") {
    LookSpacing spacing(0.1);
    for (int i = 0; i < 200; ++i) spacing.note(50e-6);
    CHECK(spacing.seconds() == 0.1);
    for (int i = 0; i < 200; ++i) spacing.note(700e-6);
    CHECK(spacing.seconds() == doctest::Approx(0.4));
    for (int i = 0; i < 400; ++i) spacing.note(20e-6);
    CHECK(spacing.seconds() == doctest::Approx(0.1));
    spacing.halve();
    CHECK(spacing.seconds() == doctest::Approx(0.2));
    for (int i = 0; i < 400; ++i) spacing.note(0);
    CHECK(spacing.seconds() == doctest::Approx(0.2));
  }

  TEST_CASE("a library that is none is no NVML") {
    CHECK(Nvml::load("libcoxswain-has-no-such.so") == nullptr);
    CHECK(Nvml::load("libc.so.6") == nullptr);
  }

  TEST_CASE("NVML says how busy GPUs are and what they hold; what it refuses is not known") {
    const auto nvml = Nvml::load(COX_FAKE_NVML);
    REQUIRE(nvml);
    CHECK(nvml->gpus() == 2);
    std::vector<GpuSample> gpus;
    nvml->read(gpus);
    REQUIRE(gpus.size() == 2);
    CHECK(gpus[0].busy_ratio == 0.25);
    CHECK(gpus[0].memory_bytes == 1000);
    CHECK_FALSE(is_known(gpus[1].busy_ratio));
    CHECK(gpus[1].memory_bytes == 2000);
    const TempFolder folder;
    HostRecorder::Setup setup = setup_in(folder);
    setup.has_node = true;
    setup.nvml = COX_FAKE_NVML;
    record(setup, 2);
    const auto samples = samples_in(folder / "host.jsonl");
    CHECK(samples[0].start->gpus == 2);
    REQUIRE(samples[0].gpus.size() == 2);
    CHECK(samples[0].gpus[0].busy_ratio == 0.25);
  }
}
