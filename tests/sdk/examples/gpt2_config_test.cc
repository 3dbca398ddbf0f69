#include <string>
#include <vector>

#include "sdk/examples/gpt2/config.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

using gpt2::Config;

TEST_SUITE("sdk.examples") {
  TEST_CASE("absent keys have the values that transformers gives them") {
    const auto config = gpt2::config_from_json("{}");
    REQUIRE(config.ok());
    CHECK(config->vocab_size == 50257);
    CHECK(config->n_positions == 1024);
    CHECK(config->n_embd == 768);
    CHECK(config->n_layer == 12);
    CHECK(config->n_head == 12);
    CHECK(config->attn_pdrop == 0.1);
  }

  TEST_CASE("a configuration written is the configuration read") {
    const TempFolder folder;
    const Config config{.vocab_size = 300,
                        .n_positions = 17,
                        .n_embd = 24,
                        .n_layer = 3,
                        .n_head = 6,
                        .n_inner = 40,
                        .embd_pdrop = 0.3,
                        .attn_pdrop = 0,
                        .resid_pdrop = 0.25,
                        .layer_norm_epsilon = 1e-6,
                        .initializer_range = 0.01,
                        .activation_function = "relu",
                        .scale_attn_weights = false,
                        .scale_attn_by_inverse_layer_idx = true};
    for (const Config& written : {config, Config{}}) {
      REQUIRE(gpt2::write_config(folder / "config.json", written).ok());
      const auto read = gpt2::read_config(folder / "config.json");
      REQUIRE_MESSAGE(read.ok(), read.status().text());
      CHECK(*read == written);
    }
  }

  TEST_CASE("what is no configuration of this model is refused by the name of the key") {
    struct Case {
      std::string text;
      std::string complaint;
    };
    const std::vector<Case> cases = {
        {"", "byte 0"},
        {"[]", "JSON object"},
        {"{\"n_layer\": 1.5}", "n_layer"},
        {"{\"n_layer\": \"4\"}", "n_layer"},
        {"{\"n_layer\": 0}", "n_layer"},
        {"{\"n_embd\": 1e12}", "n_embd"},
        {"{\"n_embd\": 10, \"n_head\": 4}", "multiple of n_head"},
        {"{\"n_inner\": 0}", "n_inner"},
        {"{\"attn_pdrop\": 1}", "attn_pdrop"},
        {"{\"attn_pdrop\": null}", "attn_pdrop"},
        {"{\"activation_function\": \"tanh\"}", "activation_function"},
        {"{\"scale_attn_weights\": 1}", "scale_attn_weights"},
        {"{\"model_type\": \"llama\"}", "model_type"},
        {"{\"tie_word_embeddings\": false}", "tie_word_embeddings"},
        {"{\"add_cross_attention\": true}", "add_cross_attention"},
    };
    for (const Case& c : cases) {
      CAPTURE(c.text);
      const auto config = gpt2::config_from_json(c.text);
      REQUIRE_FALSE(config.ok());
      CHECK_MESSAGE(config.status().message().find(c.complaint) != std::string::npos,
                    config.status().text());
    }
    CHECK(gpt2::read_config("no/such/config.json").status().code() == cox::StatusCode::not_found);
  }
}

}  // namespace
