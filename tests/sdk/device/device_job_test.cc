// A job on a device describes the device at its start, in run.json, in its reports and in its
// record.
#include <ATen/Context.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/reducer.h"
#include "metrics/analysis/findings/run_diff.h"
#include "metrics/records/run_reader.h"
#include "sdk/src/device/device_facts.h"
#include "sdk/src/memory/allocator_report.h"
#include "sdk/src/memory/memory_probe.h"
#include "stand_in_counts.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);
constexpr std::int64_t kMebibyte = 1 << 20;
constexpr std::uint64_t kRounds = 60;  // short steps share reports, so their number varies
constexpr int kMostSteps = 20'000;

at::Tensor bytes_on_device(std::int64_t bytes) {
  return torch::empty({bytes}, at::TensorOptions(kDevice).dtype(at::kByte));
}

// Returns tensors after freeing every second one, so that no segment is wholly free.
std::vector<at::Tensor> holes() {
  std::vector<at::Tensor> pieces;
  for (int i = 0; i < 40; ++i) pieces.push_back(bytes_on_device(6 * kMebibyte));
  for (std::size_t i = 1; i < pieces.size(); i += 2) pieces[i].reset();
  return pieces;
}

SessionReport train(const std::vector<std::string>& flags) {
  auto session = solo_session(flags);
  torch::nn::Linear model(4, 1);
  model->to(session.device());
  Reducer reducer(session, *model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int i = 0; i < kMostSteps && session.report().rounds < kRounds; ++i) {
    auto step = session.step();
    optimizer.zero_grad();
    const auto input = torch::ones({8, 4}, at::TensorOptions(session.device()));
    reducer.backward(step, model->forward(input).square().mean(), 8);
    reducer.average(step);
    optimizer.step();
  }
  session.finish();
  return session.report();
}

std::string setting(const diagnosis::RunInfo& info, const std::string& key) {
  const auto found = std::ranges::find(info.environment, key, &diagnosis::RunSetting::key);
  return found == info.environment.end() ? std::string("none") : found->json;
}

// Returns the text that `work` writes to standard error.
template <class Work>
std::string said_by(const Work& work) {
  const TempFolder folder;
  const std::string file = folder / "stderr";
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  REQUIRE(std::freopen(file.c_str(), "w", stderr) != nullptr);
  work();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  return read_bytes(file);
}

}  // namespace

TEST_CASE("the runtime says what the device is") {
  CHECK_FALSE(facts_of(c10::Device(at::kCPU)));
  const auto session = solo_session({"--cox.run.device=cuda"});
  const auto facts = facts_of(kDevice);
  REQUIRE(facts);
  CHECK_FALSE(facts->name.empty());
  CHECK(facts->memory_bytes > 0);
  CHECK(facts->devices >= 1);
  CHECK(facts->cuda.find('.') != std::string::npos);
  if (on_stand_in()) CHECK(facts->name == "stand-in for a GPU");
}

TEST_CASE("a session says at its start which device it trains on, and on the CPU nothing") {
  const auto start = [](const std::string& device) {
    return said_by([&] {
      const auto session = solo_session({"--cox.run.log=info", "--cox.run.device=" + device});
    });
  };
  const auto facts = facts_of(kDevice);
  REQUIRE(facts);
  CHECK(start("cuda").find("all ranks train on " + facts->name + ", ") != std::string::npos);
  CHECK(start("cpu").find("train on") == std::string::npos);
}

TEST_CASE("run.json says which device, which CUDA and how cuDNN chose kernels") {
  const TempFolder folder;
  const std::string run = folder / "run";
  at::globalContext().setBenchmarkCuDNN(true);
  train({"--cox.run.device=cuda", "--cox.run.directory=" + run});
  at::globalContext().setBenchmarkCuDNN(false);
  const auto record = io::read_run(run);
  REQUIRE(record.ok());
  const diagnosis::RunInfo& info = record->ranks.at(0).info;
  const auto facts = facts_of(kDevice);
  CHECK(setting(info, "gpu") == '"' + facts->name + '"');
  CHECK(setting(info, "gpu_count") == std::to_string(facts->devices));
  CHECK(setting(info, "cuda") == '"' + facts->cuda + '"');
  CHECK(setting(info, "cudnn_benchmark") == "true");
  CHECK(setting(info, "cudnn_deterministic") == "false");
  CHECK(setting(info, "cudnn_allow_tf32") ==
        (cudnn_flags().allows_tf32 ? std::string("true") : std::string("false")));
  CHECK(setting(info, "host") != "none");
}

TEST_CASE("two jobs whose cuDNN chose kernels otherwise differ in that alone, for cox diff") {
  const TempFolder folder;
  const std::vector<std::string> flags = {"--cox.run.device=cuda", "--cox.run.directory"};
  train({flags[0], flags[1], folder / "a"});
  at::globalContext().setDeterministicCuDNN(true);
  train({flags[0], flags[1], folder / "b"});
  at::globalContext().setDeterministicCuDNN(false);
  const auto a = io::read_run(folder / "a");
  const auto b = io::read_run(folder / "b");
  REQUIRE((a.ok() && b.ok()));
  const diagnosis::RunDiff diff = diagnosis::diff_of(*a, *b, {});
  REQUIRE(diff.environment.size() == 1);
  CHECK(diff.environment[0].key == "cudnn_deterministic");
}

TEST_CASE("fragmented memory of a device is reported while the job runs, and recorded") {
  const TempFolder folder;
  const std::string run = folder / "run";
  const std::vector<at::Tensor> held = holes();
  const SessionReport report = train({"--cox.run.device=cuda", "--cox.run.directory=" + run});
  const auto found =
      std::ranges::find(report.findings, "MEMORY.FRAGMENTATION", &ReportedFinding::code);
  REQUIRE(found != report.findings.end());
  CHECK(found->detail.find(" in unused pieces beside tensors") != std::string::npos);
  const auto record = io::read_run(run);
  REQUIRE(record.ok());
  const diagnosis::RankRecord& rank = record->ranks.at(0);
  const auto last = [&](const char* name) {
    return diagnosis::values_of(rank.memory, name, rank.size()).back();
  };
  CHECK(last("inactive_split") > 0.2 * last("reserved"));
  CHECK(last("active") >= last("alloc"));
  CHECK(last("active") + last("inactive_split") <= last("reserved"));
  CHECK(last("free") > 0);
}

TEST_CASE("a job on the CPU claims nothing about an allocator") {
  const TempFolder folder;
  const std::string run = folder / "run";
  const std::vector<at::Tensor> held = holes();
  const SessionReport report = train({"--cox.run.device=cpu", "--cox.run.directory=" + run});
  CHECK(std::ranges::count(report.findings, "MEMORY.FRAGMENTATION", &ReportedFinding::code) == 0);
  const auto record = io::read_run(run);
  REQUIRE(record.ok());
  const diagnosis::RankRecord& rank = record->ranks.at(0);
  CHECK(rank.memory.count("inactive_split") == 0);
  for (const char* key : {"gpu", "gpu_count", "cuda", "cudnn_benchmark", "cudnn_deterministic"})
    CHECK(setting(rank.info, key) == "none");
  CHECK(setting(rank.info, "host") != "none");
}

TEST_CASE("evidence of an allocator is sent once, and again when it changed") {
  MemoryProbe probe;
  AllocatorReport report(probe, Seconds(3600));
  probe.look();
  CHECK(report.next_fragment().kind == FragmentKind::none);  // on the CPU
  probe.count_on(kDevice);
  const at::Tensor first = bytes_on_device(8 * kMebibyte);
  probe.look();
  const auto sent = read_allocator_evidence(report.next_fragment());
  REQUIRE(sent.ok());
  const auto heap = probe.memory().device_heap();
  REQUIRE(heap);
  CHECK(sent->reserved_bytes == static_cast<std::uint64_t>(heap->reserved.live_bytes));
  CHECK(sent->active_bytes == static_cast<std::uint64_t>(heap->active_bytes));
  CHECK(sent->inactive_split_bytes == static_cast<std::uint64_t>(heap->inactive_split_bytes));
  CHECK(sent->active_bytes >= static_cast<std::uint64_t>(8 * kMebibyte));
  CHECK(sent->free_bytes > 0);
  probe.look();
  CHECK(report.next_fragment().kind == FragmentKind::none);
  const at::Tensor second = bytes_on_device(400 * kMebibyte);
  probe.look();
  CHECK(read_allocator_evidence(report.next_fragment())->reserved_bytes > sent->reserved_bytes);
  AllocatorReport impatient(probe, Seconds(0));
  CHECK(impatient.next_fragment().kind == FragmentKind::allocator_evidence);
  CHECK(impatient.next_fragment().kind == FragmentKind::allocator_evidence);
}
