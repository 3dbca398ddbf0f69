#include "tests/sdk/stream/models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "sdk/src/stream/block_map.h"

#include <doctest/doctest.h>

namespace {

using at::Tensor;
using stream_models::ModelCase;

std::vector<ModelCase> all_and_variants(std::uint64_t seed) {
  std::vector<ModelCase> models = stream_models::all_models(seed);
  models.push_back(stream_models::make_gpt2(seed, 0.0));
  return models;
}

Tensor generator_state() {
  return at::Generator(at::detail::getDefaultCPUGenerator()).get_state();
}

// Returns the loss, then gradients and buffers, of one step without an update.
std::vector<Tensor> step(const ModelCase& model, std::uint64_t batch_seed) {
  model.model->zero_grad();
  const Tensor loss = model.loss(batch_seed);
  loss.backward();
  std::vector<Tensor> values = {loss.detach()};
  for (const Tensor& parameter : model.model->parameters()) values.push_back(parameter.grad());
  for (const Tensor& buffer : model.model->buffers()) values.push_back(buffer.clone());
  return values;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() || !b[i].defined() || !torch::equal(a[i], b[i])) return false;
  }
  return true;
}

bool is_finite(const std::vector<Tensor>& values) {
  return std::ranges::all_of(
      values, [](const Tensor& value) { return value.isfinite().all().item<bool>(); });
}

}  // namespace

TEST_SUITE("sdk.stream.models") {
  TEST_CASE("equal seeds give equal losses, gradients and buffers, bit for bit") {
    const auto first = all_and_variants(5), second = all_and_variants(5);
    for (std::size_t m = 0; m < first.size(); ++m) {
      CAPTURE(std::string(first[m].name));
      Tensor loss;
      for (const std::uint64_t batch_seed : {1u, 2u}) {
        torch::manual_seed(11);
        const auto values = step(first[m], batch_seed);
        torch::manual_seed(11);
        CHECK(same_bits(values, step(second[m], batch_seed)));
        CHECK(is_finite(values));
        if (loss.defined()) CHECK_FALSE(torch::equal(values[0], loss));
        loss = values[0];
      }
    }
  }

  TEST_CASE("other seeds give other parameters, and no factory touches the default generator") {
    const Tensor before = generator_state();
    const auto first = all_and_variants(5), second = all_and_variants(6);
    CHECK(torch::equal(generator_state(), before));
    for (std::size_t m = 0; m < first.size(); ++m) {
      CAPTURE(std::string(first[m].name));
      CHECK_FALSE(same_bits(first[m].model->parameters(), second[m].model->parameters()));
      CHECK(first[m].model->is_training());
    }
  }

  TEST_CASE("only dropout draws from the default generator") {
    for (const ModelCase& model : all_and_variants(5)) {
      CAPTURE(std::string(model.name));
      const Tensor before = generator_state();
      step(model, 1);
      const std::string name = model.name;
      const bool draws = name == "lstm" || name == "gpt2";
      CHECK(torch::equal(generator_state(), before) != draws);
    }
  }

  TEST_CASE("five steps of SGD on one batch lower the loss") {
    for (const ModelCase& model : all_and_variants(5)) {
      CAPTURE(std::string(model.name));
      torch::optim::SGD optimizer(model.model->parameters(), torch::optim::SGDOptions(0.01));
      const auto loss_now = [&] {
        torch::manual_seed(3);
        return model.loss(7);
      };
      const double first = loss_now().item<double>();
      for (int i = 0; i < 5; ++i) {
        optimizer.zero_grad();
        loss_now().backward();
        optimizer.step();
      }
      CHECK(loss_now().item<double>() < first);
    }
  }

  TEST_CASE("the default blocks of each") {
    struct Row {
      std::string model;
      std::vector<std::string> blocks;
    };
    const std::vector<Row> rows = {
        {"resnet", {"conv1", "bn1", "layer1", "layer2.0", "layer2.1", "fc"}},
        {"dcgan", {"generator", "discriminator"}},
        {"unet", {"down", "middle", "up.0", "up.1", "head"}},
        {"lstm", {"words", "lstm", "head"}},
        {"gpt2", {"wte", "wpe", "h.0", "h.1", "h.2", "ln_f"}},
        {"scripted", {"model", "encode", "head"}},
        {"field", {"model", "closure.0", "closure.2"}},
    };
    const auto models = stream_models::all_models(5);
    REQUIRE(models.size() == rows.size());
    for (std::size_t m = 0; m < rows.size(); ++m) {
      CAPTURE(rows[m].model);
      CHECK(models[m].name == rows[m].model);
      const auto map = cox::detail::BlockMap::make(*models[m].model, {});
      REQUIRE(map.ok());
      std::vector<std::string> names;
      for (std::size_t block = 0; block < map->size(); ++block)
        names.push_back(map->name(cox::BlockId(static_cast<std::uint16_t>(block))));
      CHECK(names == rows[m].blocks);
    }
  }
}
