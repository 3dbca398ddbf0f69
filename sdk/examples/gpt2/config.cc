#include "sdk/examples/gpt2/config.h"

#include <array>
#include <cmath>
#include <string_view>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"

namespace gpt2 {
namespace {

using cox::Status;
using cox::io::Json;
using cox::io::JsonKind;
using cox::io::JsonWriter;

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 24;

// One table for reading and writing, so that no key is forgotten on one side.
struct IntegerKey {
  std::string_view name;
  std::int64_t Config::*field;
};
struct RealKey {
  std::string_view name;
  double Config::*field;
};
struct FlagKey {
  std::string_view name;
  bool Config::*field;
};
constexpr std::array<IntegerKey, 6> kIntegers = {{{"vocab_size", &Config::vocab_size},
                                                  {"n_positions", &Config::n_positions},
                                                  {"n_embd", &Config::n_embd},
                                                  {"n_layer", &Config::n_layer},
                                                  {"n_head", &Config::n_head},
                                                  {"n_inner", &Config::n_inner}}};
constexpr std::array<RealKey, 5> kReals = {{{"embd_pdrop", &Config::embd_pdrop},
                                            {"attn_pdrop", &Config::attn_pdrop},
                                            {"resid_pdrop", &Config::resid_pdrop},
                                            {"layer_norm_epsilon", &Config::layer_norm_epsilon},
                                            {"initializer_range", &Config::initializer_range}}};
constexpr std::array<FlagKey, 2> kFlags = {
    {{"scale_attn_weights", &Config::scale_attn_weights},
     {"scale_attn_by_inverse_layer_idx", &Config::scale_attn_by_inverse_layer_idx}}};

Status wrong(std::string_view key, const std::string& expected) {
  return cox::invalid_argument("\"" + std::string(key) + "\": expected " + expected);
}

Status check_integer(std::string_view name, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kMaxWidth) return cox::ok_status();
  return wrong(name, std::to_string(least) + " to " + std::to_string(kMaxWidth) + ", found " +
                         std::to_string(value));
}

Status take_integer(const Json& value, const IntegerKey& key, Config& config) {
  if (key.name == "n_inner" && value.kind == JsonKind::null) {
    config.n_inner = 0;
    return cox::ok_status();
  }
  const bool whole = value.kind == JsonKind::number && std::floor(value.number) == value.number;
  if (!whole || std::abs(value.number) > 1e15) return wrong(key.name, "a whole number");
  config.*key.field = static_cast<std::int64_t>(value.number);
  return key.name == "n_inner" ? check_integer(key.name, config.n_inner, 1) : cox::ok_status();
}

Status take_values(const Json& json, Config& config) {
  for (const IntegerKey& key : kIntegers) {
    const Json* value = json.find(key.name);
    if (!value) continue;
    if (Status status = take_integer(*value, key, config); !status.ok()) return status;
  }
  for (const RealKey& key : kReals) {
    const Json* value = json.find(key.name);
    if (!value) continue;
    if (value->kind != JsonKind::number) return wrong(key.name, "a number");
    config.*key.field = value->number;
  }
  for (const FlagKey& key : kFlags) {
    const Json* value = json.find(key.name);
    if (!value) continue;
    if (value->kind != JsonKind::boolean) return wrong(key.name, "true or false");
    config.*key.field = value->boolean;
  }
  return cox::ok_status();
}

Status take_activation(const Json& json, Config& config) {
  const Json* value = json.find("activation_function");
  if (!value) return cox::ok_status();
  if (value->kind != JsonKind::string) return wrong("activation_function", "a text");
  config.activation_function = value->string;
  return cox::ok_status();
}

// Refuses switches of transformers that select another model.
Status refuse_variants(const Json& json) {
  const auto is = [&](std::string_view key, bool unwanted) {
    const Json* value = json.find(key);
    return value && (value->kind != JsonKind::boolean || value->boolean == unwanted);
  };
  const Json* type = json.find("model_type");
  if (type && type->string != "gpt2") return wrong("model_type", "\"gpt2\"");
  if (is("tie_word_embeddings", false)) return wrong("tie_word_embeddings", "true");
  if (is("add_cross_attention", true)) return wrong("add_cross_attention", "false");
  if (is("reorder_and_upcast_attn", true)) return wrong("reorder_and_upcast_attn", "false");
  return cox::ok_status();
}

// Returns the values that transformers assumes for absent keys.
Config hugging_face_defaults() {
  Config config;
  config.vocab_size = 50257;
  config.n_positions = 1024;
  config.n_embd = 768;
  config.n_layer = 12;
  config.n_head = 12;
  return config;
}

}  // namespace

Status validate(const Config& config) {
  for (const IntegerKey& key : kIntegers) {
    const std::int64_t least = key.name == "n_inner" ? 0 : 1;
    Status status = check_integer(key.name, config.*key.field, least);
    if (!status.ok()) return status;
  }
  if (config.n_embd % config.n_head != 0) {
    return wrong("n_embd", "a multiple of n_head = " + std::to_string(config.n_head) + ", found " +
                               std::to_string(config.n_embd));
  }
  for (const RealKey& key : kReals) {
    const double value = config.*key.field;
    if (!(value >= 0 && value < 1)) {
      return wrong(key.name, "0 or more and less than 1, found " + cox::io::json_number(value));
    }
  }
  const std::string& name = config.activation_function;
  if (name != "gelu_new" && name != "gelu_pytorch_tanh" && name != "gelu" && name != "relu") {
    return wrong("activation_function", "gelu_new, gelu_pytorch_tanh, gelu or relu");
  }
  return cox::ok_status();
}

cox::Result<Config> config_from_json(const std::string& text) {
  const cox::Result<Json> json = cox::io::parse_json(text, kMaxConfigBytes);
  if (!json.ok()) return json.status();
  if (json->kind != JsonKind::object) return cox::invalid_argument("expected a JSON object");
  Config config = hugging_face_defaults();
  Status status = refuse_variants(*json);
  if (status.ok()) status = take_values(*json, config);
  if (status.ok()) status = take_activation(*json, config);
  if (status.ok()) status = validate(config);
  if (!status.ok()) return status;
  return config;
}

cox::Result<Config> read_config(const std::filesystem::path& file) {
  const cox::Result<std::string> text = cox::io::read_file(file, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  cox::Result<Config> config = config_from_json(*text);
  if (!config.ok()) return config.status().with_context(file.string());
  return config;
}

std::string config_to_json(const Config& config) {
  JsonWriter json;
  json.begin_object().new_line(2).key("architectures").begin_array().value("GPT2LMHeadModel");
  json.end_array().new_line(2).field("model_type", "gpt2");
  for (const IntegerKey& key : kIntegers) {
    const std::int64_t value = config.*key.field;
    json.new_line(2).key(key.name);
    key.name == "n_inner" && value == 0 ? json.null() : json.value(value);
  }
  for (const RealKey& key : kReals) json.new_line(2).field(key.name, config.*key.field);
  for (const FlagKey& key : kFlags) json.new_line(2).field(key.name, config.*key.field);
  json.new_line(2).field("activation_function", config.activation_function);
  json.new_line(2).field("tie_word_embeddings", true);
  json.new_line(2).field("bos_token_id", 0).new_line(2).field("eos_token_id", 0);
  return json.new_line().end_object().take() + "\n";
}

Status write_config(const std::filesystem::path& file, const Config& config) {
  return cox::io::replace_file(file, config_to_json(config));
}

}  // namespace gpt2
