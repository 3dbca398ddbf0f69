#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coxswain/adamw.h"
#include "coxswain/safetensors.h"
#include "coxswain/trainer.h"
#include "rollback_policy.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "small_training.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

std::vector<std::uint64_t> gathered(Session& session, std::uint64_t mine) {
  const auto all = cox::detail::gather_values(session.state().job().data(), mine);
  REQUIRE(all.ok());
  return *all;
}

std::uint64_t print_of(const torch::nn::Module& model) {
  std::string bytes;
  for (const auto& p : model.parameters()) {
    bytes.append(static_cast<const char*>(p.const_data_ptr()), p.nbytes());
  }
  return std::hash<std::string>()(bytes);
}

bool equal_everywhere(Session& session, std::uint64_t mine) {
  return cox::detail::ranks_that_differ(gathered(session, mine)).empty();
}

struct Trained {
  std::vector<double> losses;
  TrainingProgress progress;
  std::uint64_t print = 0;
};

Trained run(const std::vector<std::string>& flags, std::uint64_t steps, SmallData& data,
            const Distortion& distort = {}, SessionOptions options = {}) {
  auto session = solo_session(flags, std::move(options));
  SmallModel model(5 + static_cast<std::uint64_t>(session.rank()));  // rank 0's weights count
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer, {.global_batch = 8, .steps = steps});
  Trained result;
  result.losses = train(trainer, model, data, distort);
  result.progress = trainer.progress();
  result.print = print_of(*model);
  CHECK(equal_everywhere(session, result.print));
  return result;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

int own_rank() {
  auto session = solo_session();
  return session.rank();
}

// Checks how often each sample was used on all ranks together.
void check_each_used(const SmallData& data, std::uint64_t times) {
  auto session = solo_session();
  for (std::int64_t sample = 0; sample < data.size(); ++sample) {
    CAPTURE(sample);
    std::uint64_t here = 0;
    for (const auto& step : data.asked) {
      here += static_cast<std::uint64_t>(std::count(step.begin(), step.end(), sample));
    }
    std::uint64_t all = 0;
    for (const std::uint64_t count : gathered(session, here)) all += count;
    CHECK(all == times);
  }
}

int world() {
  return solo_session().world_size();
}

// A model with running statistics, which are also saved.
struct WithStatisticsImpl : torch::nn::Module {
  WithStatisticsImpl() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  at::Tensor loss(const Batch& batch) {
    return torch::mse_loss(second(torch::tanh(norm(first(batch.inputs)))), batch.targets);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(WithStatistics);

// Trains in reproducible mode to step `until` and saves there. Returns the print of the weights.
std::uint64_t run_with_statistics(std::vector<std::string> flags, const std::string& folder,
                                  std::uint64_t until, const TrainingPart& own = {}) {
  flags.insert(flags.end(),
               {"--cox.checkpoint.directory=" + folder, "--cox.reduction.reproducible=on"});
  auto session = solo_session(flags);
  WithStatistics model;
  AdamW optimizer(model->parameters(), {.lr = 0.01});
  Trainer trainer(session, *model, optimizer,
                  {.global_batch = 16, .micro_batch = 2, .steps = until});
  if (own.state) trainer.add_state("own", own);
  const SmallData data;
  for (auto& step : trainer.steps(data)) {
    step.accumulate([&](const Batch& batch) { return model->loss(batch); });
    step.update();
  }
  session.finish();
  return print_of(*model);
}

// Returns the hash of each tensor, by "model.safetensors NAME". Leaves out the ranks' measurements.
std::map<std::string, std::uint64_t> tensors_of(const io::SaveManifest& manifest) {
  std::map<std::string, std::uint64_t> hashes;
  for (const io::SavePiece& piece : manifest.pieces) {
    const std::string file = io::whole_name(piece.file);
    if (file != "numbers.safetensors") hashes[file + " " + piece.tensor] = piece.hash;
  }
  return hashes;
}

}  // namespace

TEST_SUITE("trainer over MPI") {
  TEST_CASE("each sample is used once an epoch, and all ranks end with the same weights") {
    SmallData data;
    const Trained result = run({}, 6, data);  // batches of 8, 8 and 4: two epochs
    CHECK(result.progress.consumed == 40);
    check_each_used(data, 2);
  }

  TEST_CASE("forced shares, also of nothing, drop and repeat no sample") {
    SmallData data;
    const Trained result =
        run({world() == 2 ? "--cox.force.shares=0,3" : "--cox.force.shares=0,5,1,2"}, 6, data);
    CHECK(result.progress.step == 6);
    check_each_used(data, 2);
  }

  TEST_CASE("two runs give the same bits") {
    SmallData first;
    SmallData second;
    const Trained a = run({}, 6, first);
    const Trained b = run({}, 6, second);
    CHECK(same_bits(a.losses, b.losses));
    CHECK(a.print == b.print);
  }

  TEST_CASE("mailboxes and pure MPI train to the same bits") {
    SmallData first;
    SmallData second;
    const Trained a = run({"--cox.control.path=mailbox"}, 6, first);
    const Trained b = run({"--cox.control.path=mpi"}, 6, second);
    CHECK(same_bits(a.losses, b.losses));
    CHECK(a.print == b.print);
  }

  TEST_CASE("a NaN on one rank makes all skip the step") {
    SmallData data;
    const int last = world() - 1;
    const int rank = own_rank();
    const Trained result = run({}, 6, data, [&](std::uint64_t step, at::Tensor loss) {
      const bool is_bad = step == 2 && rank == last;
      return is_bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
    });
    CHECK(result.progress.skipped == 1);
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(result.losses[i]) == (i == 2));
  }

  TEST_CASE("a rank that runs out of memory in backward makes all repeat the step, bit for bit") {
    const int rank = own_rank();
    const std::vector<std::string> flags = {"--cox.memory.budget=1GiB"};
    SmallData data;
    const Trained whole = run(flags, 6, data);
    bool has_failed = false;
    SmallData again;
    const Trained repeated = run(flags, 6, again, [&](std::uint64_t step, at::Tensor loss) {
      if (step != 2 || rank != world() - 1 || std::exchange(has_failed, true)) return loss;
      const at::Tensor fails = loss * 1;
      fails.register_hook([](const at::Tensor& gradient) -> at::Tensor {
        TORCH_CHECK_WITH(OutOfMemoryError, false, "no room");
        return gradient;
      });
      return fails;
    });
    CHECK(repeated.progress.repeated == 1);
    CHECK(repeated.progress.step == 6);
    CHECK(repeated.losses.back() == whole.losses.back());
    CHECK(repeated.print == whole.print);
  }

  TEST_CASE("a micro-batch that runs out of memory on a rank does so in reproducible mode, too") {
    const int rank = own_rank();
    // This mode repeats the first steps anyway, because their sums do not fit.
    const auto trained = [rank](bool with_failure) {
      auto session = solo_session({"--cox.memory.budget=1GiB", "--cox.reduction.reproducible=on"});
      SmallModel model;
      AdamW optimizer(model->parameters(), {.lr = 0.01});
      TrainerOptions options{.global_batch = 16, .micro_batch = 2, .steps = 8};
      Trainer trainer(session, *model, optimizer, options);
      const SmallData data(128);
      bool has_failed = !with_failure || rank != world() - 1;
      for (auto& step : trainer.steps(data)) {
        int micro_batch = 0;
        step.accumulate([&](const Batch& batch) {
          const bool is_due = step.number() == 7 && ++micro_batch == 2;
          if (is_due && !std::exchange(has_failed, true)) throw std::bad_alloc();
          return model->loss(batch);
        });
        step.update();
      }
      return Trained{{trainer.progress().loss}, trainer.progress(), print_of(*model)};
    };
    const Trained whole = trained(false);
    const Trained repeated = trained(true);
    CHECK(repeated.progress.repeated == whole.progress.repeated + 1);
    CHECK(repeated.losses == whole.losses);
    CHECK(repeated.print == whole.print);
  }

  TEST_CASE("a rollback happens on all ranks in the same step and restores every bit") {
    SmallData data;
    const Trained whole = run({}, 200, data);
    std::vector<std::uint64_t> numbers;
    SessionOptions options;
    options.policies = {std::make_shared<RollBackOnce>(30)};
    SmallData again;
    const Trained rolled = run(
        // One snapshot exists, however late the order comes. The guard would mistake the first
        // losses for a spike.
        {"--cox.checkpoint.snapshot_rounds=1000000", "--cox.guard.mode=off"}, 200, again,
        [&](std::uint64_t step, at::Tensor loss) {
          numbers.push_back(step);
          if (numbers.size() < 150) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          return loss;
        },
        options);
    REQUIRE(rolled.progress.rollbacks == 1);
    REQUIRE(rolled.losses.size() > 200);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      CHECK(rolled.losses[i] == whole.losses[numbers[i]]);
    }
    CHECK(rolled.print == whole.print);
  }

  TEST_CASE("a run that was saved goes on bit for bit") {
    auto session = solo_session();
    const SharedFolder folder(session);
    const std::string flag = "--cox.checkpoint.directory=" + folder.text();
    SmallData data;
    const Trained whole = run({}, 12, data);
    Trained first = run({flag}, 5, data);
    const Trained second = run({flag, "--cox.checkpoint.resume=on"}, 12, data);
    CHECK(second.progress.resumed);
    first.losses.insert(first.losses.end(), second.losses.begin(), second.losses.end());
    CHECK(same_bits(first.losses, whole.losses));
    CHECK(second.print == whole.print);
  }

  // Reproducible mode gives the same weights for any shares.
  TEST_CASE("a save that ranks divide by their shares has the bytes of one divided evenly") {
    auto session = solo_session();
    const int ranks = session.world_size();
    if (ranks == 1) return;
    const SharedFolder folder(session);
    std::string shares = "--cox.force.shares=2";
    for (int r = 1; r < ranks; ++r) shares += r + 1 == ranks ? ",4" : ",2";
    const std::uint64_t even = run_with_statistics({}, folder.text() + "/even", 4);
    CHECK(run_with_statistics({shares}, folder.text() + "/uneven", 4) == even);
    const auto evenly = io::read_manifest(folder.text() + "/even/" + io::save_name(4));
    const auto unevenly = io::read_manifest(folder.text() + "/uneven/" + io::save_name(4));
    REQUIRE(evenly.ok());
    REQUIRE(unevenly.ok());
    CHECK(tensors_of(*evenly) == tensors_of(*unevenly));
    CHECK(tensors_of(*evenly).size() >= 8);
    const bool has_control = std::ranges::any_of(
        unevenly->files, [](const io::SaveFile& file) { return file.name == "control.state"; });
    CHECK(has_control);
    const std::uint64_t whole = run_with_statistics({}, folder.text() + "/whole", 7);
    const auto resumed =
        run_with_statistics({shares, "--cox.checkpoint.resume=on"}, folder.text() + "/uneven", 7);
    CHECK(resumed == whole);
  }

  TEST_CASE("state of the program's own is saved as rank 0 has it") {
    auto session = solo_session();
    const SharedFolder folder(session);
    const int rank = session.rank();
    run_with_statistics({}, folder.text() + "/own", 3,
                        {.state =
                             [rank] {
                               return std::vector<NamedTensor>{{"n", torch::full({1}, rank)}};
                             },
                         .load = [](std::span<const NamedTensor>) { return Status(); }});
    const auto made =
        read_safetensors(folder.text() + "/own/" + io::save_name(3) + "/parts.safetensors");
    REQUIRE(made.ok());
    const auto own = std::ranges::find_if(
        made->tensors, [](const NamedTensor& each) { return each.name.ends_with("/n"); });
    REQUIRE(own != made->tensors.end());
    CHECK(own->tensor.item<int>() == 0);
  }
}
