#include "coxswain/session.h"

#include <torch/torch.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "coordinator/io/folder_lock.h"
#include "coxswain/reducer.h"
#include "solo.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/ended_by.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The shortest useful program: a foreign loop, watched.
void watch_only(const std::string& run_directory) {
  auto session = solo_session({"--cox.run.directory", run_directory});
  auto model = torch::nn::Linear(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int i = 0; i < 10; ++i) {
    auto step = session.step();
    const auto input = torch::ones({8, 4});
    optimizer.zero_grad();
    at::Tensor loss;
    {
      auto forward = step.phase(Phase::forward);
      loss = model->forward(input).square().mean();
    }
    {
      auto backward = step.phase(Phase::backward);
      loss.backward();
    }
    optimizer.step();
    step.loss(loss.item<double>(), 8);
    step.log("lr", 0.1);
  }
  session.finish();
  CHECK(session.report().rounds >= 1);
}

template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.status().message();
  }
  return {};
}

}  // namespace

TEST_SUITE("session") {
  TEST_CASE("a watched loop leaves a row for every step, with its phases and scalars") {
    const TempFolder folder;
    watch_only((folder / "run").string());
    const std::string rows = read_bytes(folder / "run/rank0/steps.jsonl");
    CHECK(lines_of(rows) == 10);
    for (const char* part : {"\"forward\":", "\"backward\":", "\"loss\":", "\"lr\":0.1"}) {
      CAPTURE(part);
      CHECK(rows.find(part) != std::string::npos);
    }
    CHECK(std::filesystem::file_size(folder / "run/journal.cox") > 0);
  }

  TEST_CASE("finish is optional, and may be called twice") {
    const TempFolder folder;
    {
      auto session = solo_session({"--cox.run.directory", (folder / "a").string()});
      { auto step = session.step(); }
    }
    CHECK(lines_of(read_bytes(folder / "a/rank0/steps.jsonl")) == 1);
    auto session = solo_session();
    { auto step = session.step(); }
    session.finish();
    session.finish();
  }

  TEST_CASE("a session that never opens a step ends as well") {
    auto session = solo_session();
    CHECK(session.rank() == 0);
    CHECK(session.world_size() == 1);
    CHECK(session.status_address().empty());
    CHECK(session.report().rounds == 0);
  }

  TEST_CASE("flags of the session are taken out, the others are left in order") {
    const auto session = solo_session({"--text", "a", "--cox.run.seed=5", "b"});
    CHECK(session.arguments() == std::vector<std::string>{"--text", "a", "b"});
    CHECK(session.config().run.seed == 5);
  }

  TEST_CASE("a wrong setting is an error of all ranks that names the key") {
    try {
      solo_session({"--cox.guard.spike_ratio=0"});
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.scope() == Error::Scope::all_ranks);
      CHECK(error.status().message().find("guard.spike_ratio") != std::string::npos);
    }
  }

  TEST_CASE("together passes on our errors, and turns others into one line") {
    auto session = solo_session();
    CHECK(error_of([&] { session.together([] { throw Error(not_found("no text")); }); }) ==
          "no text");
    CHECK(error_of([&] { session.together([] { throw std::runtime_error("one\ntwo"); }); }) ==
          "one");
    int done = 0;
    session.together([&] { ++done; });
    CHECK(done == 1);
  }

  TEST_CASE("models and reducers come before the first step") {
    auto session = solo_session();
    { auto step = session.step(); }
    torch::nn::Linear model(2, 2);
    CHECK(error_of([&] { Reducer reducer(session, *model); }).find("before") != std::string::npos);
    CHECK(error_of([&] { Reducer reducer(session, model->parameters()); }).find("before") !=
          std::string::npos);
  }

  TEST_CASE("a step or plan out of turn, and a calibration that nothing follows, are errors") {
    const auto has = [](const std::string& text, const char* part) {
      return text.find(part) != std::string::npos;
    };
    auto session = solo_session({"--cox.memory.budget=1GiB"});
    CHECK(has(error_of([&] { session.plan(); }), "before its first step"));
    torch::nn::Linear model(2, 2);
    CHECK(has(error_of([&] { session.calibrate(*model, [] { return at::Tensor(); }); }),
              "expected a Reducer"));
    auto step = session.step();
    CHECK(has(error_of([&] { auto second = session.step(); }), "expected no open step"));
    CHECK(session.plan().id.number == 0);
  }

  TEST_CASE("SIGTERM is a question the loop can ask, and the next session starts without it") {
    {
      auto session = solo_session();
      CHECK_FALSE(session.stop_requested());
      ::raise(SIGTERM);
      CHECK(session.stop_requested());
      CHECK(session.stop_requested());
      CHECK(session.stop_requested_anywhere());
    }
    CHECK_FALSE(solo_session().stop_requested());
  }

  TEST_CASE("the second job of a run directory is refused with who holds it, and touches nothing") {
    const TempFolder folder;
    const std::string run = (folder / "run").string();
    // Journals elsewhere, so that only the directory's own lock protects it.
    const auto job = [&](const std::string& name) {
      return solo_session({"--cox.run.directory", run, "--cox.run.name", name,
                           "--cox.control.journal", (folder / (name + ".cox")).string()});
    };
    for (const bool first_has_ended_a_step : {false, true}) {
      CAPTURE(first_has_ended_a_step);
      std::filesystem::remove_all(folder / "run");
      auto first = job("one");
      std::optional<StepScope> step(first.step());
      if (first_has_ended_a_step) step.reset();
      const std::string lock = read_bytes(folder / "run/run.lock");
      auto second = job("two");
      const std::string refused = error_of([&] { auto its_step = second.step(); });
      for (const std::string part :
           {"run.directory", "run one on host ", "process ", ", since 20"}) {
        CAPTURE(part);
        CAPTURE(refused);
        CHECK(refused.find(part) != std::string::npos);
      }
      CHECK(read_bytes(folder / "run/run.lock") == lock);
      CHECK_FALSE(std::filesystem::exists(folder / "two.cox"));
      step.reset();
      first.finish();
      CHECK(lines_of(read_bytes(folder / "run/rank0/steps.jsonl")) == 1);
      CHECK(io::FolderLock::take(folder / "run", "run.lock", "another job", "token").ok());
    }
  }

  TEST_CASE("a job that was killed gives its run directory up") {
    const TempFolder folder;
    CHECK(ended_by([&] {
            auto session = solo_session({"--cox.run.directory", (folder / "run").string()});
            auto step = session.step();
            ::raise(SIGKILL);
          }) == SIGKILL);
    std::filesystem::remove_all(folder / "run/rank0");
    auto session = solo_session({"--cox.run.directory", (folder / "run").string()});
    { auto step = session.step(); }
    session.finish();
    CHECK(lines_of(read_bytes(folder / "run/rank0/steps.jsonl")) == 1);
  }

  TEST_CASE("an exception passes through an open step and the session") {
    const TempFolder folder;
    CHECK_THROWS_WITH_AS(
        [&] {
          auto session = solo_session({"--cox.run.directory", (folder / "run").string()});
          auto step = session.step();
          throw std::runtime_error("user code");
        }(),
        "user code", std::runtime_error);
  }
}
