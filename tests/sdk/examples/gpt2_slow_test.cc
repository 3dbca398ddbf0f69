#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "sdk/examples/gpt2/extra_work.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

namespace {

using gpt2::Slowdown;

class CountingTokens final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()));
    const at::Tensor tokens = (rows.unsqueeze(1) * 7 + torch::arange(9)).remainder(32);
    return {tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8), rows.size(0)};
  }
};

struct Trained {
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
  std::vector<std::int64_t> extra;  // samples a step
};

Trained train(std::vector<Slowdown> slow, std::int64_t most_samples = 0) {
  auto session = solo_session();
  torch::manual_seed(3);
  gpt2::Config config;
  config.vocab_size = 32;
  config.n_positions = 8;
  config.n_embd = 16;
  config.n_layer = 2;
  config.n_head = 2;
  gpt2::Gpt2 model(config);
  cox::AdamW optimizer(model->parameters());
  cox::Trainer trainer(session, *model, optimizer, {.global_batch = 4, .steps = 6});
  const CountingTokens dataset;
  gpt2::ExtraWork extra(model, std::move(slow), session.rank(), most_samples);
  Trained trained;
  for (auto& step : trainer.steps(dataset)) {
    trained.extra.push_back(extra.run(step));
    const auto& batch = step.batch();
    step.backward(step.forward([&] { return model->loss(batch.inputs, batch.targets); }));
    step.update();
    trained.losses.push_back(trainer.progress().loss);
  }
  for (const at::Tensor& weight : model->parameters()) trained.weights.push_back(weight.clone());
  session.finish();
  return trained;
}

bool equal_weights(const Trained& a, const Trained& b) {
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    if (!at::equal(a.weights[i], b.weights[i])) return false;
  }
  return a.weights.size() == b.weights.size();
}

}  // namespace

TEST_SUITE("gpt2 --slow") {
  TEST_CASE("a slowdown is a rank, a factor and steps") {
    const auto whole = gpt2::parse_slowdown("2:4");
    REQUIRE(whole.ok());
    CHECK(*whole == Slowdown{.rank = 2, .factor = 4});
    const auto part = gpt2::parse_slowdown("0:1.5:10-19");
    REQUIRE(part.ok());
    CHECK(*part == Slowdown{.rank = 0, .factor = 1.5, .from_step = 10, .to_step = 19});
  }

  TEST_CASE("anything else is refused in one line that shows what is expected") {
    for (const char* text : {"",
                             ":",
                             "1",
                             "1:",
                             "1:2:",
                             "-1:2",
                             "1:0.5",
                             "1:0",
                             "1:-2",
                             "1:nan",
                             "1:inf",
                             "1:1001",
                             "x:2",
                             "1:2x",
                             "1:2:5",
                             "1:2:5-",
                             "1:2:-5",
                             "1:2:9-5",
                             "1:2:5-9:",
                             "1:2:5-9-11",
                             "1,2",
                             " 1:2",
                             "99999999999999999999:2"}) {
      CAPTURE(text);
      const auto parsed = gpt2::parse_slowdown(text);
      REQUIRE_FALSE(parsed.ok());
      CHECK(parsed.status().message().find("RANK:FACTOR") != std::string::npos);
      CHECK(parsed.status().message().find('\n') == std::string::npos);
    }
  }

  TEST_CASE("a factor holds for its rank and its steps, and the last one given counts") {
    const std::vector<Slowdown> slow = {{.rank = 1, .factor = 2},
                                        {.rank = 1, .factor = 3, .from_step = 5, .to_step = 6}};
    CHECK(gpt2::factor_of(slow, 0, 5) == 1);
    CHECK(gpt2::factor_of(slow, 1, 4) == 2);
    CHECK(gpt2::factor_of(slow, 1, 5) == 3);
    CHECK(gpt2::factor_of(slow, 1, 6) == 3);
    CHECK(gpt2::factor_of(slow, 1, 7) == 2);
  }

  TEST_CASE("a rank that the job does not have is refused") {
    const std::vector<Slowdown> slow = {{.rank = 2, .factor = 2}};
    CHECK(gpt2::check_ranks(slow, 3).ok());
    CHECK_FALSE(gpt2::check_ranks(slow, 2).ok());
  }

  TEST_CASE("extra work changes neither weights nor losses, dropout included") {
    const Trained plain = train({});
    const Trained slowed = train({{.rank = 0, .factor = 3.5}});
    const Trained in_parts = train({{.rank = 0, .factor = 3.5}}, 1);
    CHECK(plain.losses == slowed.losses);
    CHECK(equal_weights(plain, slowed));
    CHECK(plain.losses == in_parts.losses);
    CHECK(equal_weights(plain, in_parts));
    CHECK(plain.losses.front() != plain.losses.back());
  }

  TEST_CASE("the extra samples of all steps add up to the factor, fractions carried over") {
    using Counts = std::vector<std::int64_t>;
    CHECK(train({}).extra == Counts{0, 0, 0, 0, 0, 0});
    CHECK(train({{.rank = 1, .factor = 2}}).extra == Counts{0, 0, 0, 0, 0, 0});
    CHECK(train({{.rank = 0, .factor = 3}}).extra == Counts{8, 8, 8, 8, 8, 8});
    CHECK(train({{.rank = 0, .factor = 1.125}}).extra == Counts{0, 1, 0, 1, 0, 1});
    CHECK(train({{.rank = 0, .factor = 2, .from_step = 2, .to_step = 3}}).extra ==
          Counts{0, 0, 4, 4, 0, 0});
  }
}
