// Saves of sharded loops: an interrupted adopted loop continues from its newest save, sharded or
// not, whichever mode wrote it.
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shard/sharded_loops.h"
#include "tests/sdk/shared_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using sdk_test::same_bits;

namespace {

using Flags = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

const Flags kReplicated = {};
const Flags kSharded = {"--cox.shard.mode=state", "--cox.shard.grain=16"};

struct Trained {
  std::int64_t first_batch = -1;
  std::int64_t state_elements = 0;  // on this rank
  Tensors parameters;
};

Trained train(Flags flags, const Flags& more, std::int64_t batches) {
  flags.insert(flags.end(), more.begin(), more.end());
  Session session = solo_session(flags);
  const auto model = cox::test::make_loop_model("language");
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  session.adopt(*model);
  Trained trained;
  std::int64_t epoch = 0, batch = 0;
  for (; batch < batches; ++batch) {
    session.keep(optimizer, epoch, batch);
    if (trained.first_batch < 0) trained.first_batch = batch;
    optimizer.zero_grad();
    model->loss(static_cast<int>(batch), session.rank()).backward();
    optimizer.step();
  }
  for (const auto& entry : optimizer.state())
    trained.state_elements +=
        static_cast<torch::optim::AdamWParamState&>(*entry.second).exp_avg().numel();
  for (const at::Tensor& p : model->parameters()) trained.parameters.push_back(p.detach().clone());
  session.finish();
  return trained;
}

struct Row {
  const char* name;
  Flags written_by;
  Flags resumed_by;
};

}  // namespace

TEST_SUITE("saves of sharded loops") {
  TEST_CASE(
      "a loop goes on with the bits of one that was not left, sharded or not before and after") {
    const Trained whole = train(kReplicated, {}, 8);
    const Trained divided = train(kSharded, {}, 8);
    CHECK(divided.state_elements < whole.state_elements);
    for (const Row& row : {Row{"sharded, then sharded", kSharded, kSharded},
                           Row{"sharded, then not", kSharded, kReplicated},
                           Row{"not, then sharded", kReplicated, kSharded}}) {
      CAPTURE(row.name);
      std::optional<SharedFolder> folder;
      {
        Session session = solo_session();
        folder.emplace(session);
        session.finish();
      }
      const std::string directory = "--cox.checkpoint.directory=" + folder->text();
      train(row.written_by, {directory, "--cox.checkpoint.every_steps=2"}, 5);
      const Trained resumed = train(row.resumed_by, {directory, "--cox.checkpoint.resume=on"}, 8);
      CHECK(resumed.first_batch == 4);
      CHECK(resumed.state_elements ==
            (row.resumed_by == kSharded ? divided.state_elements : whole.state_elements));
      REQUIRE(resumed.parameters.size() == whole.parameters.size());
      for (std::size_t p = 0; p < whole.parameters.size(); ++p) {
        CAPTURE(p);
        CHECK(same_bits(resumed.parameters[p], whole.parameters[p]));
      }
    }
  }

  TEST_CASE("a state of the program's own that was divided is not saved, and the end says so") {
    std::optional<SharedFolder> folder;
    {
      Session session = solo_session();
      folder.emplace(session);
      session.finish();
    }
    std::string text = "no error";
    try {
      Session session =
          solo_session({kSharded[0], kSharded[1], "--cox.checkpoint.directory=" + folder->text(),
                        "--cox.checkpoint.every_steps=2"});
      const auto model = cox::test::make_loop_model("language");
      torch::optim::SGD optimizer(model->parameters(), 0.01);
      session.adopt(*model);
      const Tensors parameters = model->parameters();
      Tensors slow;
      session.add_state("slow weights",
                        {.state =
                             [&slow] {
                               std::vector<NamedTensor> named;
                               for (const at::Tensor& each : slow)
                                 named.push_back({concat("w", named.size()), each});
                               return named;
                             },
                         .load = [](std::span<const NamedTensor>) { return Status(); }});
      std::int64_t epoch = 0, batch = 0;
      for (; batch < 4; ++batch) {
        session.keep(optimizer, epoch, batch);
        optimizer.zero_grad();
        model->loss(static_cast<int>(batch), session.rank()).backward();
        optimizer.step();
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (slow.size() == i) slow.push_back(parameters[i].detach().clone());
          slow[i].lerp_(parameters[i], 0.5);
          parameters[i].copy_(slow[i]);
        }
      }
      session.finish();
    } catch (const Error& error) {
      text = error.what();
    }
    CAPTURE(text);
    CHECK(text.find("whole tensors in the state \"slow weights\"") != text.npos);
  }
}
