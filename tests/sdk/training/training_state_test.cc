#include "sdk/src/training/training_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "sdk/src/training/optimizer_port.h"
#include "sdk/src/training/rollbacks.h"
#include "small_training.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

void one_update(SmallModel& model, OptimizerPort& optimizer, std::uint64_t step) {
  torch::manual_seed(step);
  SmallData data;
  const std::vector<std::int64_t> samples = {static_cast<std::int64_t>(step) % 20, 3, 4};
  optimizer.zero_grad();
  model->loss(data.get(samples)).backward();
  optimizer.step();
}

Snapshot numbered(std::uint64_t round) {
  return {RoundId(round), [] { return ok_status(); }};
}

// Trains 3 steps, saves, trains 3 more. Then repeats the last 3 from the saved state.
template <class Make>
void check_round_trip(const Make& make) {
  SmallModel model;
  auto optimizer = make(model);
  const auto port = make_port(*optimizer);
  for (std::uint64_t i = 0; i < 3; ++i) one_update(model, *port, i);
  const Checkpoint saved = copied(capture(*model, *port));
  for (std::uint64_t i = 3; i < 6; ++i) one_update(model, *port, i);

  SmallModel other(99);
  auto other_optimizer = make(other);
  const auto other_port = make_port(*other_optimizer);
  one_update(other, *other_port, 7);  // an earlier history must not matter
  const Status restored = restore(saved, *other, *other_port, Handover::copied);
  CAPTURE(restored.text());
  REQUIRE(restored.ok());
  for (std::uint64_t i = 3; i < 6; ++i) one_update(other, *other_port, i);
  CHECK(equal_models(*model, *other));
}

}  // namespace

TEST_SUITE("optimizer port") {
  TEST_CASE("state of cox::AdamW goes round") {
    check_round_trip(
        [](SmallModel& m) { return std::make_unique<AdamW>(m->parameters(), AdamWOptions{}); });
  }

  TEST_CASE("state of torch's SGD with momentum goes round") {
    check_round_trip([](SmallModel& m) {
      return std::make_unique<torch::optim::SGD>(
          m->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
    });
  }

  TEST_CASE("state of torch's Adam goes round") {
    check_round_trip([](SmallModel& m) {
      return std::make_unique<torch::optim::Adam>(m->parameters(), torch::optim::AdamOptions(0.01));
    });
  }

  TEST_CASE("a program's own optimizer needs neither a learning rate nor options as text") {
    struct Options final : torch::optim::OptimizerCloneableOptions<Options> {};
    struct Own final : torch::optim::Optimizer {
      explicit Own(std::vector<at::Tensor> parameters)
          : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                      std::make_unique<Options>()) {}
      at::Tensor step(LossClosure) override { return {}; }
    };
    SmallModel model;
    Own own(model->parameters());
    const auto port = make_port(own);
    CHECK(port->groups() == 1);
    CHECK(port->learning_rate(0) == 0);
    CHECK(port->options_hash() == 0);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05));
    CHECK(make_port(sgd)->learning_rate(0) == 0.05);
    CHECK(make_port(sgd)->options_hash() != 0);
  }

  TEST_CASE("restored from before its first update, torch's Adam has no moments any more") {
    SmallModel model;
    torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.01));
    const auto port = make_port(adam);
    const Checkpoint fresh = copied(capture(*model, *port));
    for (std::uint64_t i = 0; i < 3; ++i) one_update(model, *port, i);
    REQUIRE(restore(fresh, *model, *port, Handover::copied).ok());
    CHECK(adam.state().empty());
    one_update(model, *port, 5);
    SmallModel other;
    torch::optim::Adam untouched(other->parameters(), torch::optim::AdamOptions(0.01));
    one_update(other, *make_port(untouched), 5);
    for (std::size_t p = 0; p < model->parameters().size(); ++p) {
      CHECK(torch::equal(model->parameters()[p], other->parameters()[p]));
    }
  }

  TEST_CASE("the learning rate reaches every group, and a resumed optimizer's too") {
    SmallModel model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto port = make_port(sgd);
    const auto saved = port->state();
    port->set_learning_rate(0.5);
    CHECK(sgd.param_groups()[0].options().get_lr() == 0.5);
    REQUIRE(port->load_state(saved, Handover::copied).ok());
    port->set_learning_rate(0.25);
    CHECK(sgd.param_groups()[0].options().get_lr() == 0.25);
  }

  TEST_CASE("zero_grad leaves gradients undefined") {
    SmallModel model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    SmallData data;
    model->loss(data.get(std::vector<std::int64_t>{1})).backward();
    make_port(sgd)->zero_grad();
    for (const auto& p : model->parameters()) CHECK_FALSE(p.grad().defined());
  }

  TEST_CASE("state of another kind of optimizer, or damaged bytes, are errors") {
    SmallModel model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    AdamW adamw(model->parameters());
    const auto port = make_port(sgd);
    const auto ours = make_port(adamw);
    one_update(model, *ours, 0);
    CHECK(port->load_state(ours->state(), Handover::copied).code() == StatusCode::invalid_argument);
    CHECK_FALSE(ours->load_state(port->state(), Handover::copied).ok());
  }

  TEST_CASE("an archive of torch, as version 0.2 saved it, is matched by position") {
    SmallModel model;
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    one_update(model, *make_port(sgd), 0);
    torch::serialize::OutputArchive archive;
    sgd.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    const std::string bytes = stream.str();
    const at::Tensor tensor = torch::from_blob(
        const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, torch::kByte);
    const std::vector<NamedTensor> saved = {{"torch_archive", tensor}};
    CHECK(is_by_position(saved));
    torch::optim::SGD other(model->parameters(), torch::optim::SGDOptions(0.2));
    const auto port = make_port(other);
    CHECK_FALSE(is_by_position(port->state()));
    REQUIRE(port->load_state(saved, Handover::copied).ok());
    CHECK(other.state().size() == sgd.state().size());
    CHECK(port->learning_rate(0) == 0.1);
    const std::vector<NamedTensor> damaged = {{"torch_archive", tensor.narrow(0, 0, 100)}};
    CHECK(port->load_state(damaged, Handover::copied).code() == StatusCode::data_loss);
  }

  TEST_CASE("the state of cox::AdamW has the model's names, and its own from version 0.2 fit") {
    SmallModel model;
    AdamW adamw(model->parameters());  // names them 0, 1, 2 and 3
    const auto port = make_port(adamw, model_tensors(*model));
    one_update(model, *port, 0);
    const auto state = port->state();
    CHECK(std::ranges::any_of(
        state, [](const NamedTensor& n) { return n.name == "exp_avg.second.weight"; }));
    const auto own = adamw.state();
    AdamW other(model->parameters());
    const auto named = make_port(other, model_tensors(*model));
    REQUIRE(named->load_state(state, Handover::copied).ok());
    CHECK(named->unnamed().empty());
    REQUIRE(named->load_state(own, Handover::copied).ok());
    CHECK(other.state().size() == own.size());
  }
}

TEST_SUITE("snapshots") {
  TEST_CASE("restoring keeps the identity of parameters and buffers") {
    SmallModel model;
    AdamW optimizer(model->parameters());
    const auto port = make_port(optimizer);
    const Checkpoint saved = copied(capture(*model, *port));
    const void* place = model->parameters()[0].const_data_ptr();
    one_update(model, *port, 0);
    CHECK_FALSE(torch::equal(model->parameters()[0], saved.model[0].tensor));
    REQUIRE(restore(saved, *model, *port, Handover::copied).ok());
    CHECK(model->parameters()[0].const_data_ptr() == place);
    CHECK(torch::equal(model->parameters()[0], saved.model[0].tensor));
    CHECK(model->calls.item<std::int64_t>() == 0);
  }

  TEST_CASE("a rank that is slow in computing or data does less beside the steps") {
    const auto slow_in = [](std::int32_t rank, Phase phase, double slowdown_ratio) {
      SlowRank slow;
      slow.rank = RankId(rank);
      slow.phase_index =
          static_cast<std::uint32_t>(std::ranges::find(kOwnPhases, phase) - kOwnPhases.begin());
      slow.slowdown_ratio = slowdown_ratio;
      return slow;
    };
    CHECK(paces_of({}, 3) == std::vector<std::uint32_t>{1000, 1000, 1000});
    const SlowRank slow[] = {slow_in(0, Phase::forward, 2), slow_in(1, Phase::communication, 3),
                             slow_in(2, Phase::data, 4), slow_in(3, Phase::optimizer, 5),
                             slow_in(9, Phase::other, 2)};
    const std::vector<std::uint32_t> paces = paces_of(slow, 5);
    CHECK(paces == std::vector<std::uint32_t>{500, 1000, 250, 1000, 1000});
  }

  TEST_CASE("the shelf keeps the newest two and forgets those that are too new") {
    SnapshotShelf shelf;
    CHECK(shelf.newest_before(RoundId(100)) == nullptr);
    for (const std::uint64_t round : {10, 20, 30}) shelf.put(numbered(round));
    const Snapshot* found = shelf.newest_before(RoundId(30));
    REQUIRE(found != nullptr);
    CHECK(found->round == RoundId(20));
    CHECK(shelf.newest_before(RoundId(1000))->round == RoundId(20));  // 30 is forgotten
    CHECK(shelf.newest_before(RoundId(20)) == nullptr);
  }
}

TEST_SUITE("keyed random numbers") {
  TEST_CASE("the same key draws the same numbers, whatever was drawn before") {
    seed_default_generators({1, 2, 3});
    const at::Tensor first = torch::rand({8});
    torch::rand({100});
    seed_default_generators({1, 2, 3});
    CHECK(torch::equal(first, torch::rand({8})));
  }

  TEST_CASE("keys that differ in anything differ, also when parts are swapped") {
    std::set<std::uint64_t> seen;
    std::size_t keys = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      for (std::uint64_t step = 0; step < 12; ++step) {
        for (std::uint64_t sample = 0; sample < 12; ++sample, ++keys) {
          seen.insert(mix({seed, step, sample}));
        }
      }
    }
    CHECK(seen.size() == keys);
  }
}
