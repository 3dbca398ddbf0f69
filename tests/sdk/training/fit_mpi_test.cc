#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/fit.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/epoch_book.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/training/rollback_policy.h"
#include "tests/sdk/training/small_training.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

// Returns the bytes of a save's files with this ending.
std::uint64_t bytes_in_files(const io::SaveManifest& manifest, const std::string& ending) {
  std::uint64_t bytes = 0;
  for (const io::SavePiece& piece : manifest.pieces) {
    if (piece.file.ends_with(ending + ".safetensors")) bytes += piece.bytes;
  }
  return bytes;
}

struct Run {
  FitResult result;
  std::vector<FitStep> steps;
  SmallModel model{SmallModel()};
};

Run run(Session& session, FitOptions options) {
  Run made;
  AdamW optimizer(made.model->parameters(), {.lr = 1e-2});
  const SmallData data(20);
  options.on_step = [&made](const FitStep& step) { made.steps.push_back(step); };
  made.result = fit(
      session, *made.model, optimizer, data,
      [&](const Batch& batch) { return made.model->loss(batch); }, options);
  return made;
}

// Returns a folder for all ranks, named after rank 0's process.
std::string shared_folder() {
  auto session = solo_session();
  const auto owners = cox::detail::gather_values(session.state().job().data(),
                                                 static_cast<std::uint64_t>(::getpid()));
  const auto folder = "cox-test-fit-" + std::to_string((*owners)[0]);
  return (std::filesystem::temp_directory_path() / folder).string();
}

// Global batches of 8, 8 and 4 samples an epoch.
FitOptions epochs(std::uint64_t count) {
  return {.epochs = count, .global_batch = 8, .micro_batch = 4};
}

double mean_loss(const std::vector<FitStep>& steps, std::uint64_t epoch) {
  double sum = 0;
  for (const FitStep& step : steps) {
    if (step.epoch == epoch) sum += step.loss * (step.step % 3 == 2 ? 4 : 8);
  }
  return sum / 20;
}

}  // namespace

TEST_SUITE("fit") {
  TEST_CASE("epochs are whole passes over the data, and the final state is that of the model") {
    auto session = solo_session();
    const Run made = run(session, epochs(4));
    REQUIRE(made.result.epochs.size() == 4);
    REQUIRE(made.steps.size() == 12);
    for (std::uint64_t e = 0; e < 4; ++e) {
      const FitEpoch& epoch = made.result.epochs[e];
      CHECK(epoch.epoch == e);
      CHECK(epoch.steps == 3 * (e + 1));
      CHECK(epoch.loss == doctest::Approx(mean_loss(made.steps, e)));
      CHECK_FALSE(epoch.evaluation_loss.has_value());
    }
    CHECK(made.result.epochs[3].loss < made.result.epochs[0].loss);
    CHECK(made.result.progress.consumed == 80);
    CHECK_FALSE(made.result.progress.stopped);
    const auto parameters = made.model->named_parameters();
    REQUIRE(made.result.model.size() == parameters.size() + 1);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CHECK(made.result.model[i].name == parameters[i].key());
      CHECK(torch::equal(made.result.model[i].tensor, parameters[i].value()));
      CHECK_FALSE(made.result.model[i].tensor.is_same(parameters[i].value()));
    }
  }

  TEST_CASE("an evaluation is the mean over its set, without gradients and in evaluation mode") {
    auto session = solo_session();
    const SmallData held_out(11);
    SmallModel model;
    AdamW optimizer(model->parameters(), {.lr = 1e-2});
    model->second->eval();  // stays in this mode
    bool was_training = false;
    FitOptions options = epochs(2);
    options.evaluation = &held_out;
    options.evaluation_batch = 3;
    const FitResult result = fit(
        session, *model, optimizer, SmallData(20),
        [&](const Batch& batch) {
          was_training = was_training || (model->is_training() && !at::GradMode::is_enabled());
          return model->loss(batch);
        },
        options);
    CHECK_FALSE(was_training);
    CHECK(model->is_training());
    CHECK(model->first->is_training());
    CHECK_FALSE(model->second->is_training());
    model->eval();
    std::vector<std::int64_t> all(11);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    const double expected = model->loss(held_out.get(all)).item<double>();
    CHECK(*result.epochs.back().evaluation_loss == doctest::Approx(expected).epsilon(1e-5));
  }

  // Reproducible mode gives the same weights for any shares.
  TEST_CASE("an evaluation is divided by the plan's shares, and keeps every bit of its loss") {
    std::vector<double> losses;
    for (const bool is_even : {true, false}) {
      std::vector<std::string> flags = {"--cox.reduction.reproducible=on"};
      auto session = solo_session();
      if (session.world_size() == 1) return;
      if (!is_even) flags.push_back("--cox.force.shares=1,3");
      session.finish();
      auto run = solo_session(flags);
      const SmallData held_out(19);
      SmallModel model;
      AdamW optimizer(model->parameters(), {.lr = 1e-2});
      FitOptions options = epochs(1);
      options.evaluation = &held_out;
      options.evaluation_batch = 2;
      int evaluated = 0;
      const FitResult result = fit(
          run, *model, optimizer, SmallData(20),
          [&](const Batch& batch) {
            evaluated += model->is_training() ? 0 : 1;
            return model->loss(batch);
          },
          options);
      const std::vector<int> batches = is_even ? std::vector{5, 5} : std::vector{3, 7};
      CHECK(evaluated == batches[static_cast<std::size_t>(run.rank())]);
      losses.push_back(*result.epochs.back().evaluation_loss);
    }
    CHECK(losses[0] == losses[1]);
  }

  // Here the coordinator's estimates divide the work, not the plan. The test ends once the effect
  // appears, which takes longer on a busy machine. Both ranks see it in the same evaluation.
  TEST_CASE("a slow rank evaluates less, and writes less of a save") {
    if (solo_session().world_size() == 1) return;
    const std::string folder = shared_folder();
    auto session = solo_session(
        {"--cox.checkpoint.directory=" + folder, "--cox.stragglers.persistent_seconds=0.2"});
    const bool is_slow = session.rank() == 0;
    const SmallData held_out(40);
    SmallModel model;
    AdamW optimizer(model->parameters(), {.lr = 1e-3});
    FitOptions options = epochs(400);
    options.evaluation = &held_out;
    options.evaluation_batch = 2;
    std::vector<int> evaluated(options.epochs, 0);
    std::size_t epoch = 0;
    options.on_epoch = [&](const FitEpoch&) {
      return evaluated[epoch++] == 10 ? FitNext::go_on : FitNext::stop;
    };
    fit(
        session, *model, optimizer, SmallData(24),
        [&](const Batch& batch) {
          if (!model->is_training()) ++evaluated[epoch];
          if (model->is_training())
            std::this_thread::sleep_for(std::chrono::milliseconds(is_slow ? 20 : 2));
          return model->loss(batch);
        },
        options);
    CHECK(evaluated.front() == 10);
    REQUIRE(epoch > 1);
    CHECK((evaluated[epoch - 1] < 10) == is_slow);
    const auto saved = io::read_manifest(std::filesystem::path(folder) / io::save_name(3 * epoch));
    REQUIRE(saved.ok());
    CHECK(bytes_in_files(*saved, "-00001-of-00002") < bytes_in_files(*saved, "-00002-of-00002"));
    session.finish();
    if (is_slow) std::filesystem::remove_all(folder);
  }

  TEST_CASE("on_epoch may end the training") {
    auto session = solo_session();
    FitOptions options = epochs(9);
    options.on_epoch = [](const FitEpoch& epoch) {
      return epoch.epoch == 1 ? FitNext::stop : FitNext::go_on;
    };
    const Run made = run(session, options);
    CHECK(made.result.epochs.size() == 2);
    CHECK(made.steps.size() == 6);
    CHECK_FALSE(made.result.progress.stopped);
  }

  TEST_CASE("a run that was stopped goes on from its save to the same end as one that was not") {
    const FitResult whole = [] {
      auto session = solo_session({"--cox.reduction.reproducible=on"});
      return run(session, epochs(3)).result;
    }();
    const std::string path = shared_folder();
    const std::vector<std::string> flags = {"--cox.checkpoint.directory=" + path,
                                            "--cox.reduction.reproducible=on"};
    {
      auto session = solo_session(flags);
      FitOptions options = epochs(3);
      options.learning_rate = [&](std::uint64_t step) {
        if (step == 3 && session.rank() == 0) raise(SIGTERM);
        return 1e-2;
      };
      const Run cut = run(session, options);
      CHECK(cut.result.progress.stopped);
      CHECK(cut.result.epochs.size() == 1);
      CHECK(cut.steps.size() == 4);
    }
    for (int again = 0; again < 2; ++again) {  // the second time nothing is left to do
      auto resume = flags;
      resume.push_back("--cox.checkpoint.resume=on");
      auto session = solo_session(resume);
      const Run rest = run(session, epochs(3));
      CHECK(rest.result.progress.consumed == 60);
      CHECK(rest.result.epochs.size() == (again == 0 ? 2 : 0));
      REQUIRE(rest.result.model.size() == whole.model.size());
      for (std::size_t i = 0; i + 1 < whole.model.size(); ++i) {
        CHECK(torch::equal(rest.result.model[i].tensor, whole.model[i].tensor));
      }
    }
    std::error_code ignored;  // rank 0 checks first; the others find nothing
    std::filesystem::remove_all(path, ignored);
  }

  TEST_CASE("a step that is repeated counts once in the buffers of a model") {
    auto session = solo_session({"--cox.reduction.reproducible=on"});
    const Run made = run(session, epochs(1));  // batches of 2, 2 and 1 micro-batches
    CHECK(made.result.progress.repeated > 0);
    CHECK(made.model->calls.item<std::int64_t>() == (session.world_size() == 1 ? 5 : 3));
  }

  TEST_CASE("a loss that throws on one rank in an evaluation is an error on all") {
    auto session = solo_session();
    const SmallData held_out(12);
    SmallModel model;
    torch::optim::SGD optimizer(model->parameters(), 1e-2);
    FitOptions options = epochs(1);
    options.evaluation = &held_out;
    const bool is_last = session.rank() == session.world_size() - 1;
    const auto loss = [&](const Batch& batch) {
      if (!at::GradMode::is_enabled() && is_last) throw std::runtime_error("no such sample");
      return model->loss(batch);
    };
    CHECK_THROWS_AS(fit(session, *model, optimizer, SmallData(20), loss, options), Error);
    CHECK(model->is_training());
  }

  TEST_CASE("a rollback in the last step of all makes the missing steps again") {
    SessionOptions with_rollback;
    with_rollback.policies = {std::make_shared<RollBackOnce>(25)};
    // One snapshot exists, however late the order comes. The guard would mistake the first losses
    // for a spike.
    auto session = solo_session(
        {"--cox.checkpoint.snapshot_rounds=1000000", "--cox.guard.mode=off"}, with_rollback);
    const SmallData one_batch(8);  // every step ends an epoch
    SmallModel model;
    AdamW optimizer(model->parameters(), {.lr = 1e-2});
    FitOptions options = epochs(100000);
    std::uint64_t last = 0;
    options.on_epoch = [&](const FitEpoch& epoch) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      // The end of this step carries out the order.
      const bool is_ordered = session.plan().rollback.ticket > 0;
      if (last > 0 || !is_ordered) return FitNext::go_on;
      last = epoch.steps;
      return FitNext::stop;
    };
    const FitResult result = fit(
        session, *model, optimizer, one_batch,
        [&](const Batch& batch) { return model->loss(batch); }, options);
    REQUIRE(last > 0);
    CHECK(result.progress.rollbacks == 1);
    CHECK(result.progress.step == last);
    CHECK(result.epochs.size() == last);
    CHECK_FALSE(result.progress.stopped);
  }

  TEST_CASE("the losses of epochs follow what a rollback takes back") {
    cox::detail::EpochBook book(10);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    book.add(0, 6, 1);
    book.add(6, 10, 3.5);
    CHECK(book.loss_of_epoch_before(10) == doctest::Approx(2));
    book.close({.epoch = 0});
    book.add(10, 16, 4);
    book.rewind(6);
    CHECK(book.epochs().empty());
    book.add(6, 10, 6);
    CHECK(book.loss_of_epoch_before(10) == doctest::Approx(3));
    book.close({.epoch = 0});
    book.rewind(10);
    CHECK(book.epochs().size() == 1);
    book.add(10, 20, nan);
    CHECK(std::isnan(book.loss_of_epoch_before(20)));
  }

  TEST_CASE("options that are not those of rank 0 are refused on all ranks") {
    const SmallData one(8);
    const SmallData another(12);
    const std::function<void(FitOptions&, bool)> differences[] = {
        [](FitOptions& o, bool is_root) { o.epochs = is_root ? 1 : 2; },
        [&](FitOptions& o, bool is_root) { o.evaluation = is_root ? &one : nullptr; },
        [&](FitOptions& o, bool is_root) { o.evaluation = is_root ? &one : &another; },
        [](FitOptions& o, bool is_root) { o.evaluation_batch = is_root ? 2 : 4; },
    };
    for (const auto& differ : differences) {
      auto session = solo_session();
      if (session.world_size() == 1) return;
      FitOptions options = epochs(1);
      differ(options, session.rank() == 0);
      std::string told;
      try {
        run(session, options);
      } catch (const Error& error) {
        told = error.status().message();
      }
      CHECK(told.find("FitOptions: expected the same epochs") != std::string::npos);
    }
  }
}
