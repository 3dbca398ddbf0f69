#include "sdk/src/session/host_watch.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/sdk/temp_folder.h"
#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

HostEvidence next_evidence(HostWatch& watch) {
  for (;;) {
    const Fragment fragment = watch.next_fragment();
    if (fragment.kind == FragmentKind::none) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const auto read = read_host_evidence(fragment);
    REQUIRE(read.ok());
    return *read;
  }
}

}  // namespace

TEST_SUITE("host watch") {
  TEST_CASE("files below the root are read, those of the control group where it lies") {
    const TempFolder folder;
    const std::filesystem::path root = folder / "";
    write(root / "proc/loadavg", "4.00 1 1");
    write(root / "proc/self/cgroup", "0::/job\n");
    write(root / "sys/fs/cgroup/cpu.stat", "nr_periods 1\nnr_throttled 0\n");
    CHECK(HostFiles(root).read().group_cpu == "nr_periods 1\nnr_throttled 0\n");
    write(root / "sys/fs/cgroup/job/cpu.stat", "nr_periods 2\nnr_throttled 1\n");
    const HostTexts texts = HostFiles(root).read();
    CHECK(texts.group_cpu == "nr_periods 2\nnr_throttled 1\n");
    CHECK(texts.loadavg == "4.00 1 1");
    CHECK(texts.stat.empty());
  }

  TEST_CASE("a long file is cut, and a folder in a file's place says nothing") {
    const TempFolder folder;
    const std::filesystem::path root = folder / "";
    write(root / "proc/stat", std::string(1 << 20, 'x'));
    std::filesystem::create_directories(root / "proc/loadavg");
    const HostTexts texts = HostFiles(root).read();
    CHECK(texts.stat.size() <= (64u << 10));
    CHECK(texts.loadavg.empty());
  }

  TEST_CASE("evidence is offered once, and again when it changed noticeably") {
    const TempFolder folder;
    const std::filesystem::path root = folder / "";
    write(root / "proc/loadavg", "4.00 1 1");
    HostWatch::Setup setup;
    setup.root = root;
    setup.host = "node-3";
    setup.cores = 2;
    setup.every = std::chrono::milliseconds(2);
    setup.repeat_every = Seconds(3600);
    setup.clock_error = [] { return Seconds(0.25); };
    HostWatch watch(setup);
    const HostEvidence first = next_evidence(watch);
    CHECK(std::string(first.host.data()) == "node-3");
    CHECK(first.load_per_core == doctest::Approx(2));
    CHECK(first.clock_error_seconds == doctest::Approx(0.25));
    CHECK(first.steal_ratio == HostEvidence::kNotKnown);
    write(root / "proc/loadavg.new", "9.00 1 1");
    std::filesystem::rename(root / "proc/loadavg.new", root / "proc/loadavg");
    CHECK(next_evidence(watch).load_per_core == doctest::Approx(4.5));
    CHECK(watch.next_fragment().kind == FragmentKind::none);
  }

  TEST_CASE("without a thread there is no evidence, which is told once") {
    const TempFolder folder;
    std::vector<Status> told;
    HostWatch::Setup setup;
    setup.root = folder / "";
    setup.on_trouble = [&](const Status& trouble) { told.push_back(trouble); };
    {
      const test::NoThreads none;
      HostWatch watch(setup);
      CHECK(watch.next_fragment().kind == FragmentKind::none);
    }
    REQUIRE(told.size() == 1);
    CHECK(told[0].message().starts_with("host watch: its thread could not be started: "));
  }

  TEST_CASE("what has not changed is offered again after a while") {
    const TempFolder folder;
    HostWatch::Setup setup;
    setup.root = folder / "";
    setup.every = std::chrono::milliseconds(1);
    setup.repeat_every = Seconds(0);
    HostWatch watch(setup);
    const HostEvidence first = next_evidence(watch);
    CHECK(next_evidence(watch) == first);
  }
}
