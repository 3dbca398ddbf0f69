// Trainers with divided state: each gives the bits of replicated training, with optimizers of both
// kinds, uneven shares, micro-batches, clipping and masters.
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/master_weights.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "coxswain/weight_average.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"
#include "tests/sdk/training/rollback_policy.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Flags = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;
namespace nn = torch::nn;

const Flags kSharded = {"--cox.shard.mode=state", "--cox.shard.grain=16"};

Flags both(Flags one, const Flags& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

class Waves final : public Dataset {
 public:
  std::int64_t size() const override { return 640; }
  Batch get(std::span<const std::int64_t> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    at::Tensor inputs = torch::empty({count, 12});
    for (std::int64_t i = 0; i < count; ++i)
      inputs[i] = torch::sin(torch::arange(12) * 0.1 + samples[static_cast<std::size_t>(i)]);
    return {.inputs = inputs, .targets = inputs.sum(1, true), .samples = count};
  }
};

// Returns a model with batch norm, which changes buffers, and a frozen layer.
nn::Sequential make_model() {
  torch::manual_seed(7);
  nn::Sequential model(nn::Linear(12, 24), nn::BatchNorm1d(24), nn::Tanh(), nn::Linear(24, 20),
                       nn::Tanh(), nn::Linear(20, 1));
  for (at::Tensor& p : model->ptr<nn::LinearImpl>(3)->parameters()) p.requires_grad_(false);
  return model;
}

enum class Kind { cox_adamw, adamw, momentum, masters };

struct Row {
  const char* name;
  Kind kind = Kind::cox_adamw;
  TrainerOptions options = {.global_batch = 16, .steps = 12};
  Flags flags = {};
  std::uint64_t rollback_round = 0;  // from then on a policy orders one; 0 = none
};

struct Trained {
  Tensors tensors;
  std::int64_t state_elements = 0;
  std::uint64_t first_step = ~0ull;
  std::uint64_t rollbacks = 0;
};

Trained run(Session& session, nn::Sequential& model, Trainer& trainer, const Row& row) {
  Trained trained;
  const Waves data;
  for (auto& step : trainer.steps(data)) {
    trained.first_step = std::min(trained.first_step, step.number());
    const auto loss_of = [&](const Batch& batch) {
      return torch::mse_loss(model->forward(batch.inputs.to(model->parameters()[0].scalar_type())),
                             batch.targets.to(model->parameters()[0].scalar_type()));
    };
    if (row.options.micro_batch > 0) {
      step.accumulate(loss_of);
    } else {
      step.backward(step.forward([&] { return loss_of(step.batch()); }));
    }
    step.update();
    // An order takes some rounds to come.
    if (row.rollback_round > 0 && step.number() < 150)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (const at::Tensor& p : model->parameters()) trained.tensors.push_back(p.detach().clone());
  for (const at::Tensor& b : model->buffers()) trained.tensors.push_back(b.detach().clone());
  trained.tensors.push_back(torch::tensor(trainer.progress().loss));
  trained.rollbacks = trainer.progress().rollbacks;
  session.finish();
  return trained;
}

Trained train(const Row& row, const Flags& more) {
  SessionOptions options;
  if (row.rollback_round > 0)
    options.policies = {std::make_shared<RollBackOnce>(row.rollback_round)};
  Session session = solo_session(both(row.flags, more), std::move(options));
  nn::Sequential model = make_model();
  if (row.kind == Kind::masters) {
    model->to(at::kBFloat16);
    MasterWeights masters(model->parameters());
    AdamW optimizer(masters.tensors(), {.lr = 0.01});
    Trainer trainer(session, *model, masters, optimizer, row.options);
    return run(session, model, trainer, row);
  }
  if (row.kind == Kind::cox_adamw) {
    AdamW optimizer(model->parameters(), {.lr = 0.01});
    Trainer trainer(session, *model, optimizer, row.options);
    Trained trained = run(session, model, trainer, row);
    for (const NamedTensor& each : optimizer.state()) trained.state_elements += each.tensor.numel();
    return trained;
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (row.kind == Kind::adamw) {
    optimizer = std::make_unique<torch::optim::AdamW>(model->parameters(),
                                                      torch::optim::AdamWOptions(0.01));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
  }
  Trainer trainer(session, *model, *optimizer, row.options);
  return run(session, model, trainer, row);
}

void check_same(const Trained& one, const Trained& other) {
  REQUIRE(one.tensors.size() == other.tensors.size());
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    CAPTURE(i);
    CHECK(sdk_test::same_bits(one.tensors[i], other.tensors[i]));
  }
}

}  // namespace

TEST_SUITE("sharded trainers") {
  TEST_CASE("a Trainer leaves the bits of replicated training") {
    const std::vector<Row> rows = {
        {"cox::AdamW"},
        {"torch's AdamW", Kind::adamw},
        {"momentum", Kind::momentum},
        {"clipped", Kind::cox_adamw, {.global_batch = 16, .steps = 12, .clip_norm = 0.1}},
        {"uneven shares", Kind::cox_adamw, {.global_batch = 17, .steps = 12}},
        {"micro-batches", Kind::adamw, {.global_batch = 16, .micro_batch = 2, .steps = 12}},
        {"recomputed",
         Kind::cox_adamw,
         {.global_batch = 16, .steps = 12},
         {"--cox.memory.force=*=recompute"}},
        {"masters of bf16", Kind::masters},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      check_same(train(row, kSharded), train(row, {}));
    }
  }

  TEST_CASE("the state of cox::AdamW is divided") {
    const Row row{"cox::AdamW"};
    CHECK(train(row, kSharded).state_elements < train(row, {}).state_elements * 7 / 10);
  }

  TEST_CASE("a Trainer goes on from its save, sharded or not before and after") {
    const Row row{"cox::AdamW"};
    const Trained whole = train(row, {});
    struct Pair {
      const char* name;
      Flags written_by, resumed_by;
    };
    for (const Pair& pair :
         {Pair{"sharded, then sharded", kSharded, kSharded},
          Pair{"sharded, then not", kSharded, {}}, Pair{"not, then sharded", {}, kSharded}}) {
      CAPTURE(pair.name);
      std::optional<SharedFolder> folder;
      {
        Session session = solo_session();
        folder.emplace(session);
        session.finish();
      }
      const std::string directory = "--cox.checkpoint.directory=" + folder->text();
      Row first = row;
      first.options.steps = 6;
      train(first, both(pair.written_by, {directory, "--cox.checkpoint.every_steps=2"}));
      const Trained resumed =
          train(row, both(pair.resumed_by, {directory, "--cox.checkpoint.resume=on"}));
      CHECK(resumed.first_step == 6);
      check_same(resumed, whole);
    }
  }

  TEST_CASE("a rollback goes back to every bit of its snapshot") {
    for (const Kind kind : {Kind::cox_adamw, Kind::adamw, Kind::masters}) {
      CAPTURE(static_cast<int>(kind));
      Row row{"whole", kind, {.global_batch = 16, .steps = 200}};
      const Trained whole = train(row, {});
      // One snapshot, which is there however late the order comes.
      row.flags = {"--cox.checkpoint.snapshot_rounds=1000000", "--cox.guard.mode=off"};
      row.rollback_round = 30;
      const Trained rolled = train(row, kSharded);
      CHECK(rolled.rollbacks == 1);
      check_same(rolled, whole);
    }
  }

  TEST_CASE("the model is each rank's own when the Trainer is gone") {
    Session session = solo_session(kSharded);
    nn::Sequential model = make_model();
    {
      AdamW optimizer(model->parameters(), {.lr = 0.01});
      Trainer trainer(session, *model, optimizer, {.global_batch = 16, .steps = 2});
      run(session, model, trainer, {"cox::AdamW"});
    }
    const at::NoGradGuard no_grad;
    const at::Tensor before = model->parameters()[0].clone();
    model->parameters()[0].data_ptr<float>()[0] += 1;
    CHECK_FALSE(at::equal(before, model->parameters()[0]));
  }

  TEST_CASE("what a sharded Trainer cannot do is refused on all ranks") {
    std::string text = "no error";
    try {
      train({"cox::AdamW", Kind::cox_adamw, {.global_batch = 16, .micro_batch = 4, .steps = 2}},
            both(kSharded, {"--cox.reduction.reproducible=on"}));
    } catch (const Error& error) {
      CHECK(error.scope() == Error::Scope::all_ranks);
      text = error.what();
    }
    CAPTURE(text);
    CHECK(text.find("shard.mode=state: expected") != text.npos);
  }
}
