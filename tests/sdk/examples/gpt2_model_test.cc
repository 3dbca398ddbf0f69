#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/examples/gpt2/model_file.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

using cox::NamedTensor;
using gpt2::Attention;
using gpt2::Config;
using gpt2::Gpt2;

// Returns a small configuration unlike the recorded model: another number of heads, another inner
// width.
Config small_config() {
  return {
      .vocab_size = 50, .n_positions = 12, .n_embd = 24, .n_layer = 3, .n_head = 6, .n_inner = 40};
}

Gpt2 small_model(const Config& config, Attention attention = Attention::fused) {
  torch::manual_seed(4);
  Gpt2 model(config, attention);
  model->eval();
  return model;
}

at::Tensor tokens(std::int64_t rows, std::int64_t length) {
  torch::manual_seed(9);
  return torch::randint(0, 50, {rows, length}, torch::kLong);
}

std::vector<NamedTensor> copies(const Gpt2& model) {
  std::vector<NamedTensor> out = gpt2::named_parameters(*model);
  for (NamedTensor& named : out) named.tensor = named.tensor.detach().clone();
  return out;
}

bool same_weights(const Gpt2& a, const Gpt2& b) {
  const auto left = gpt2::named_parameters(*a);
  const auto right = gpt2::named_parameters(*b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name || !left[i].tensor.equal(right[i].tensor)) return false;
  }
  return left.size() == right.size();
}

TEST_SUITE("sdk.examples") {
  TEST_CASE("parameters have the names and shapes of Hugging Face, for widths of all kinds") {
    const Gpt2 model = small_model(small_config());
    const auto named = gpt2::named_parameters(*model);
    REQUIRE(named.size() == 2 + 3 * 12 + 2);
    const auto shape = [&](const std::string& name) {
      for (const NamedTensor& n : named) {
        if (n.name == name) return n.tensor.sizes().vec();
      }
      return std::vector<std::int64_t>{-1};
    };
    using Shape = std::vector<std::int64_t>;
    CHECK(shape("transformer.wte.weight") == Shape{50, 24});
    CHECK(shape("transformer.wpe.weight") == Shape{12, 24});
    CHECK(shape("transformer.h.2.ln_1.weight") == Shape{24});
    CHECK(shape("transformer.h.2.attn.c_attn.weight") == Shape{24, 72});
    CHECK(shape("transformer.h.2.attn.c_attn.bias") == Shape{72});
    CHECK(shape("transformer.h.0.attn.c_proj.weight") == Shape{24, 24});
    CHECK(shape("transformer.h.0.mlp.c_fc.weight") == Shape{24, 40});
    CHECK(shape("transformer.h.0.mlp.c_proj.weight") == Shape{40, 24});
    CHECK(shape("transformer.ln_f.bias") == Shape{24});
    const gpt2::DecayGroups groups = gpt2::decay_groups(*model);
    CHECK(groups.decayed.size() == 2 + 3 * 4);
    CHECK(groups.plain.size() == 3 * 8 + 2);
  }

  TEST_CASE("fresh weights have the recommended spread, residual projections a smaller one") {
    const Config config{.n_embd = 128, .n_layer = 8};
    const Gpt2 model = small_model(config);
    for (const auto& [name, tensor] : gpt2::named_parameters(*model)) {
      CAPTURE(name);
      const double spread = tensor.numel() > 1 ? tensor.std().item<double>() : 0;
      const double mean = tensor.mean().item<double>();
      if (name.ends_with(".bias")) CHECK((mean == 0 && spread == 0));
      if (name.find("ln_") != std::string::npos && name.ends_with("weight")) CHECK(mean == 1);
      if (tensor.dim() < 2) continue;
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(16.0) : 0.02;
      CHECK(spread == doctest::Approx(expected).epsilon(0.05));
      CHECK(std::abs(mean) < 0.002);
    }
  }

  TEST_CASE("plain and fused attention agree, with every scaling of the scores") {
    for (const bool scale : {true, false}) {
      for (const bool inverse : {true, false}) {
        Config config = small_config();
        config.initializer_range = 0.5;
        config.scale_attn_weights = scale;
        config.scale_attn_by_inverse_layer_idx = inverse;
        const Gpt2 fused = small_model(config, Attention::fused);
        const Gpt2 plain = small_model(config, Attention::plain);
        const at::Tensor logits = fused.ptr()->forward(tokens(3, 12));
        CHECK(logits.sizes() == at::IntArrayRef{3, 12, 50});
        CHECK(logits.allclose(plain.ptr()->forward(tokens(3, 12)), 1e-4, 1e-4));
      }
    }
  }

  TEST_CASE("a position sees itself and what is before it, nothing later") {
    for (const Attention attention : {Attention::fused, Attention::plain}) {
      const Gpt2 model = small_model(small_config(), attention);
      at::Tensor changed = tokens(1, 10).clone();
      const at::Tensor before = model.ptr()->forward(changed);
      changed[0][6] = (changed[0][6] + 1) % 50;
      const at::Tensor difference = (model.ptr()->forward(changed) - before).abs().amax(-1)[0];
      CHECK(difference.slice(0, 0, 6).max().item<float>() == 0);
      CHECK(difference.slice(0, 6).min().item<float>() > 0);
    }
  }

  TEST_CASE("the parts of a forward pass called one by one give the whole") {
    const Gpt2 model = small_model(small_config());
    at::Tensor hidden = model.ptr()->embed(tokens(2, 5));
    for (const auto& layer : model->layers()) hidden = layer.ptr()->forward(hidden);
    CHECK(model.ptr()->head(hidden).equal(model.ptr()->forward(tokens(2, 5))));
  }

  TEST_CASE("each kind of dropout acts while training and only then") {
    for (double Config::*kind : {&Config::embd_pdrop, &Config::attn_pdrop, &Config::resid_pdrop}) {
      for (const Attention attention : {Attention::fused, Attention::plain}) {
        Config config = small_config();
        config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
        config.*kind = 0.5;
        const Gpt2 model = small_model(config, attention);
        const at::Tensor quiet = model.ptr()->forward(tokens(2, 8));
        CHECK(quiet.equal(model.ptr()->forward(tokens(2, 8))));
        model.ptr()->train();
        CHECK_FALSE(quiet.allclose(model.ptr()->forward(tokens(2, 8))));
      }
    }
  }

  TEST_CASE("the loss of a fresh model is that of guessing, and bf16 logits are widened for it") {
    const Gpt2 model = small_model(small_config());
    const at::Tensor batch = tokens(4, 12);
    const double loss = model.ptr()->loss(batch, (batch + 7) % 50).item<double>();
    CHECK(loss == doctest::Approx(std::log(50.0)).epsilon(0.02));
    const at::Tensor logits = model.ptr()->forward(batch).to(torch::kBFloat16);
    CHECK((gpt2::mean_loss(logits, batch).scalar_type() == torch::kFloat));
  }

  TEST_CASE("a configuration that cannot be a model is refused") {
    CHECK_THROWS_AS(Gpt2(Config{.n_embd = 10, .n_head = 3}), cox::Error);
  }

  TEST_CASE("a saved model loads again bit for bit, with its configuration") {
    const TempFolder folder;
    const Gpt2 model = small_model(small_config());
    REQUIRE(gpt2::save_model(folder / "new/model", model).ok());
    CHECK(*gpt2::read_config(folder / "new/model/config.json") == small_config());
    Gpt2 other(small_config());
    CHECK_FALSE(same_weights(model, other));
    REQUIRE(gpt2::load_weights(folder / "new/model/model.safetensors", other).ok());
    CHECK(same_weights(model, other));
    const auto file = cox::read_safetensors(folder / "new/model/model.safetensors");
    CHECK(file->metadata.at("format") == "pt");
  }

  TEST_CASE("files of the bare model, with a tied head or with stored masks load too") {
    const TempFolder folder;
    const Gpt2 model = small_model(small_config());
    std::vector<NamedTensor> old = copies(model);
    for (NamedTensor& named : old)
      named.name = named.name.substr(std::string("transformer.").size());
    old.push_back({"h.0.attn.bias", torch::ones({1, 1, 12, 12})});
    old.push_back({"h.0.attn.masked_bias", torch::ones({})});
    std::vector<NamedTensor> headed = copies(model);
    headed.push_back({"lm_head.weight", headed[0].tensor});
    for (const auto& list : {old, headed}) {
      REQUIRE(cox::write_safetensors(folder / "f", list).ok());
      Gpt2 other(small_config());
      const cox::Status status = gpt2::load_weights(folder / "f", other);
      REQUIRE_MESSAGE(status.ok(), status.text());
      CHECK(same_weights(model, other));
    }
  }

  TEST_CASE("weights that do not fit are refused, named, and leave the model alone") {
    const TempFolder folder;
    const Gpt2 model = small_model(small_config());
    std::vector<std::vector<NamedTensor>> bad(5, copies(model));
    bad[0].pop_back();
    bad[1].push_back({"transformer.extra", torch::ones({1})});
    bad[2][0].tensor = torch::ones({50, 25});
    bad[3][0].tensor = bad[3][0].tensor.to(torch::kHalf);
    bad[4].push_back({"lm_head.weight", bad[4][0].tensor + 1});
    const std::vector<std::string> complaints = {
        "missing: transformer.ln_f.bias", "unexpected: transformer.extra",
        "transformer.wte.weight (expected Float[50, 24]", "found Half[50, 24]", "a tied head"};
    for (std::size_t i = 0; i < bad.size(); ++i) {
      REQUIRE(cox::write_safetensors(folder / "f", bad[i]).ok());
      torch::manual_seed(77);
      Gpt2 other(small_config());
      torch::manual_seed(77);
      const Gpt2 untouched(small_config());
      const cox::Status status = gpt2::load_weights(folder / "f", other);
      CHECK_MESSAGE(status.message().find(complaints[i]) != std::string::npos, status.text());
      CHECK(same_weights(other, untouched));
    }
  }
}

}  // namespace
