// Measures the memory of the diagnosis of a run: every byte allocated through operator new, which
// this program replaces. A run of a gigabyte has about 1.8 million steps, and must be read within
// 256 MiB: 150 bytes a step, including all inputs of the rules.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <random>
#include <string>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/figures.h"
#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/run_view.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/run_reader.h"

#include <doctest/doctest.h>

namespace {

std::atomic<std::size_t> live_bytes{0};
std::atomic<std::size_t> most_bytes{0};

void* taken(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = live_bytes += malloc_usable_size(memory);
  if (now > most_bytes) most_bytes = now;
  return memory;
}

void give_back(void* memory) {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return taken(std::malloc(bytes));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = std::malloc(bytes);
  return memory == nullptr ? nullptr : taken(memory);
}
void operator delete(void* memory) noexcept {
  give_back(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  give_back(memory);
}

namespace cox {
namespace {

namespace fs = std::filesystem;

// Writes rows like our own writer (metrics/records/run_format.h): times in nanoseconds, losses with
// all digits; with Times::digits, times have all digits, too.
enum class Times { nanoseconds, digits };

class Folder {
 public:
  Folder(int ranks, int steps, Times times) {
    path_ = fs::temp_directory_path() / concat("cox-run-memory-", ranks, "-", steps);
    fs::remove_all(path_);
    std::mt19937_64 engine(4);
    const auto random = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
    const int decimals = times == Times::nanoseconds ? 9 : 17;
    for (int r = 0; r < ranks; ++r) {
      fs::create_directories(path_ / concat("rank", r));
      std::ofstream file(path_ / concat("rank", r) / "steps.jsonl");
      for (int s = 0; s < steps; ++s) {
        const int used = 61248 + static_cast<int>(1000 * random());
        file << fmt::format(
            "{{\"step\":{1},\"timestamp\":{2:.7f},\"phases\":{{\"data\":{3:.{0}f},\"forward\":{4:.{"
            "0}f},"
            "\"backward\":{5:.{0}f},\"comm\":{6:.{0}f},\"optimizer\":{7:.{0}f},\"other\":{8:.{0}f}}"
            "},",
            decimals, s, 1.79e9 + 0.05 * s, 7e-5 + 1e-5 * random(), 0.015 + 0.001 * random(),
            0.03 + 0.002 * random(), 0.002 + 0.001 * random(), 0.0005 + 1e-5 * random(),
            1e-4 * random());
        file << fmt::format(
            "\"scalars\":{{\"loss\":{:.17g},\"grad_norm\":{:.17g},\"lr\":0.0003}},\"memory\":{{"
            "\"alloc\":"
            "{},\"reserved\":{},\"peak_alloc\":{},\"peak_reserved\":{},\"predicted_peak\":248148}},"
            "\"round\":{},\"plan\":{},\"precision\":{{\"fp32\":9}},\"recomputed_blocks\":9,",
            3 - 1e-7 * s + 0.1 * random(), 1 + random(), used, used, used + 123000, used + 123000,
            s, s / 9000);
        file << fmt::format(
            "\"offloaded_blocks\":0,\"tiled_blocks\":0,\"headroom\":{1},\"overflow\":0,"
            "\"waiting\":{2:.{0}f},\"recompute\":{3:.{0}f}}}\n",
            decimals, 1885135202 + static_cast<int>(1e6 * random()), 0.002 * random(),
            0.003 + 1e-4 * random());
      }
    }
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct Bytes {
  double kept = 0;  // held by the record alone
  double most = 0;  // the peak
};

// Runs the steps of `cox analyze`.
Bytes analyze(const Folder& folder) {
  const std::size_t before = live_bytes;
  most_bytes = before;
  const auto run = io::read_run(folder.path());
  REQUIRE(run.ok());
  const std::size_t kept = live_bytes - before;
  const diagnosis::RunView view = diagnosis::view_of(*run, std::nullopt);
  const diagnosis::Figures figures = figures_of(*run, {view.warmup, std::nullopt, std::nullopt});
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  const auto findings = diagnosis::own_findings({&view, &budget, figures.trace});
  return {static_cast<double>(kept), static_cast<double>(most_bytes - before)};
}

// Returns the cost of each further step of a long run. Excludes open blocks and a piece of the
// file.
Bytes per_step(Times times) {
  constexpr int kFew = 20000;
  constexpr int kMany = 60000;
  const Bytes few = analyze(Folder(1, kFew, times));
  const Bytes many = analyze(Folder(1, kMany, times));
  return {(many.kept - few.kept) / (kMany - kFew), (many.most - few.most) / (kMany - kFew)};
}

TEST_SUITE("analysis.run_memory") {
  TEST_CASE("a trace is read in the memory of what its kernels leave, whatever its length") {
    const fs::path path = fs::temp_directory_path() / "cox-run-memory-trace.json";
    std::ofstream file(path);
    file << "[0";
    for (int i = 0; i < 100000; ++i)
      file << fmt::format(
          ",\n{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"{}\",\"ts\":{},\"dur\":3,\"args\":"
          "{{\"device\":0,\"stream\":7,\"grid\":[1,2,3],\"text\":\"{:060}\"}}}}",
          i % 3 == 0 ? "ncclAllReduce" : "gemm", i, i);
    file << "]";
    file.close();
    const std::size_t before = live_bytes;
    most_bytes = before;
    const auto kernels = io::read_kernel_trace(path);
    const std::size_t bytes = most_bytes - before;
    const std::size_t size = fs::file_size(path);
    fs::remove(path);
    REQUIRE(kernels.ok());
    CHECK(kernels->compute_kernels + kernels->communication_kernels == 100000);
    CHECK(size > 15'000'000);
    CHECK(bytes < 2'000'000);
  }

  TEST_CASE("a line that does not end takes the memory of a line") {
    const fs::path run = fs::temp_directory_path() / "cox-run-memory-endless";
    fs::remove_all(run);
    fs::create_directories(run / "rank0");
    std::ofstream(run / "rank0" / "steps.jsonl") << "{\"step\":1}\n";
    fs::resize_file(run / "rank0" / "steps.jsonl", std::uintmax_t{256} << 20);  // zeros
    const std::size_t before = live_bytes;
    most_bytes = before;
    const auto read = io::read_run(run);
    const std::size_t bytes = most_bytes - before;
    fs::remove_all(run);
    REQUIRE(read.ok());
    CHECK(read->lowest().size() == 1);
    CHECK(read->gaps.size() == 1);
    CHECK(bytes < 8'000'000);
  }

  TEST_CASE("a step of our own record takes 65 bytes, and 115 while rules look at it") {
    const Bytes bytes = per_step(Times::nanoseconds);
    MESSAGE(bytes.kept << " and " << bytes.most);
    CHECK(bytes.kept < 65);
    CHECK(bytes.most < 115);
  }

  TEST_CASE("times with all their digits take 100 bytes a step, and 155") {
    const Bytes bytes = per_step(Times::digits);
    MESSAGE(bytes.kept << " and " << bytes.most);
    CHECK(bytes.kept < 100);
    CHECK(bytes.most < 155);
  }

  TEST_CASE("many ranks with few steps each take about as much as one with all of them") {
    constexpr int kRanks = 64;
    constexpr int kSteps = 900;
    const Bytes bytes = analyze(Folder(kRanks, kSteps, Times::nanoseconds));
    const double kept = bytes.kept / (kRanks * kSteps);
    const double most = bytes.most / (kRanks * kSteps);
    MESSAGE(kept << " and " << most);
    CHECK(kept < 75);
    CHECK(most < 115);
  }
}

}  // namespace
}  // namespace cox
