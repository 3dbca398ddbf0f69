#include "sdk/examples/gpt2/reference_data.h"

#include <string_view>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/json_fields.h"
#include "coxswain/safetensors.h"

namespace gpt2 {
namespace {

using cox::Result;
using cox::Status;
using cox::io::Json;
using cox::io::JsonKind;

constexpr std::size_t kMaxExpectedBytes = std::size_t{64} << 20;

// Adds lists and norms to JsonFields. Returns empty values for a null object.
class Fields : public cox::io::JsonFields {
 public:
  Fields() : JsonFields(cox::StatusCode::data_loss) {}

  const Json* object(const Json& parent, std::string_view key) {
    return member(parent, key, JsonKind::object, "expected values");
  }

  double number(const Json* object, std::string_view key) {
    return object ? JsonFields::number(*object, key, "expected values") : 0;
  }

  std::vector<double> numbers(const Json& list, const std::string& where) {
    std::vector<double> out;
    for (const Json& item : list.items) out.push_back(JsonFields::number(item, where));
    return out;
  }
  std::vector<double> numbers(const Json* object, std::string_view key) {
    const Json* list = object ? member(*object, key, JsonKind::array, "expected values") : nullptr;
    return list ? numbers(*list, std::string(key)) : std::vector<double>();
  }

  Norms norms(const Json* object, std::string_view key) {
    Norms out;
    const Json* found =
        object ? member(*object, key, JsonKind::object, "expected values") : nullptr;
    if (!found) return out;
    for (const auto& [name, value] : found->members) out[name] = JsonFields::number(value, name);
    return out;
  }
};

ExpectedRun read_plain(Fields& fields, const Json& json) {
  const Json* run = fields.object(json, "fp32");
  return {.losses = fields.numbers(run, "losses"),
          .final_loss = fields.number(run, "loss_after_20_steps"),
          .first_gradient = fields.norms(run, "grad_norm"),
          .total_gradient = fields.numbers(run, "total_grad_norm"),
          .final_parameters = fields.norms(run, "parameter_l2_after_20_steps"),
          .rank_losses = {}};
}

// Returns an empty run if the document has none. Empty runs are not compared.
ExpectedRun read_fused(Fields& fields, const Json& json) {
  if (!json.find("fp32_fused_attention")) return {};
  const Json* run = fields.object(json, "fp32_fused_attention");
  return {.losses = fields.numbers(run, "losses"),
          .final_loss = fields.number(run, "loss_after_20_steps"),
          .first_gradient = {},
          .total_gradient = fields.numbers(run, "total_grad_norm"),
          .final_parameters = {},
          .rank_losses = {}};
}

ExpectedRun read_two_ranks(Fields& fields, const Json& json) {
  if (!json.find("ddp_two_ranks")) return {};
  const Json* run = fields.object(json, "ddp_two_ranks");
  ExpectedRun out{.losses = fields.numbers(run, "mean_losses"),
                  .final_loss = fields.number(run, "mean_loss_after_20_steps"),
                  .first_gradient = fields.norms(run, "grad_norm_after_average"),
                  .total_gradient = fields.numbers(run, "total_grad_norm"),
                  .final_parameters = fields.norms(run, "parameter_l2_after_20_steps"),
                  .rank_losses = {}};
  const Json* ranks =
      run ? fields.member(*run, "rank_losses", JsonKind::array, "expected values") : nullptr;
  for (std::size_t i = 0; ranks && i < ranks->items.size(); ++i) {
    out.rank_losses.push_back(fields.numbers(ranks->items[i], "rank_losses"));
  }
  return out;
}

void read_shapes(Fields& fields, const Json& json, Reference& out) {
  const Json* shapes = fields.object(json, "parameter_shapes");
  for (std::size_t i = 0; shapes && i < shapes->members.size(); ++i) {
    const auto& [name, list] = shapes->members[i];
    for (const double size : fields.numbers(list, name)) {
      out.shapes[name].push_back(static_cast<std::int64_t>(size));
    }
  }
}

Status check_steps(const Reference& reference) {
  const std::size_t steps = reference.plain.losses.size();
  if (steps == 0) return cox::data_loss("fp32.losses: expected one for each step, found none");
  for (const ExpectedRun* run : {&reference.plain, &reference.fused, &reference.two_ranks}) {
    const bool absent = run->losses.empty() && run->total_gradient.empty();
    if (absent || (run->losses.size() == steps && run->total_gradient.size() == steps)) continue;
    return cox::data_loss("expected a loss and a gradient norm for each of " +
                          std::to_string(steps) + " steps in each way of training");
  }
  return cox::ok_status();
}

Status read_expected(const std::filesystem::path& file, Reference& out) {
  const Result<std::string> text = cox::io::read_file(file, kMaxExpectedBytes);
  if (!text.ok()) return text.status();
  const Result<Json> json = cox::io::parse_json(*text, kMaxExpectedBytes);
  if (!json.ok()) return json.status().with_context(file.string());
  Fields fields;
  out.plain = read_plain(fields, *json);
  out.fused = read_fused(fields, *json);
  out.two_ranks = read_two_ranks(fields, *json);
  out.initial_parameters = fields.norms(&*json, "initial_parameter_l2");
  out.per_sample_loss = fields.numbers(&*json, "per_sample_loss");
  read_shapes(fields, *json, out);
  const Status status = fields.status().ok() ? check_steps(out) : fields.status();
  return status.with_context(file.string());
}

Status read_one_tensor(const std::filesystem::path& file, std::string_view name,
                       c10::ScalarType type, at::Tensor& out) {
  Result<cox::SafetensorsFile> read = cox::read_safetensors(file);
  if (!read.ok()) return read.status();
  for (const cox::NamedTensor& named : read->tensors) {
    if (named.name == name && named.tensor.dim() == 2 && named.tensor.scalar_type() == type) {
      out = named.tensor;
    }
  }
  if (out.defined()) return cox::ok_status();
  return cox::data_loss(file.string() + ": expected a tensor \"" + std::string(name) +
                        "\" of two dimensions and dtype " + c10::toString(type));
}

Status check_tokens(const Reference& reference) {
  const at::Tensor& tokens = reference.tokens;
  const bool fits = tokens.size(0) >= 1 && tokens.size(1) >= 2 &&
                    tokens.size(1) - 1 <= reference.config.n_positions;
  if (!fits)
    return cox::data_loss("tokens: expected 1 or more rows of 2 to " +
                          std::to_string(reference.config.n_positions + 1) + " tokens, found " +
                          std::to_string(tokens.size(0)) + " rows of " +
                          std::to_string(tokens.size(1)));
  if (tokens.min().item<std::int64_t>() >= 0 &&
      tokens.max().item<std::int64_t>() < reference.config.vocab_size) {
    return cox::ok_status();
  }
  return cox::data_loss("tokens: expected each in [0, " +
                        std::to_string(reference.config.vocab_size) + "), found different values");
}

}  // namespace

at::Tensor Reference::inputs() const {
  return tokens.narrow(1, 0, tokens.size(1) - 1);
}
at::Tensor Reference::targets() const {
  return tokens.narrow(1, 1, tokens.size(1) - 1);
}

Result<Reference> read_reference(const std::filesystem::path& folder) {
  const Result<Config> config = read_config(folder / "config.json");
  if (!config.ok()) return config.status();
  Reference out;
  out.config = *config;
  out.weights = folder / "model.safetensors";
  Status status = read_one_tensor(folder / "batch.safetensors", "tokens", at::kLong, out.tokens);
  if (status.ok()) status = check_tokens(out).with_context(folder.string());
  if (status.ok()) {
    status = read_one_tensor(folder / "logits_sample0.safetensors", "logits", at::kFloat,
                             out.logits_sample0);
  }
  if (status.ok()) status = read_expected(folder / "expected.json", out);
  if (!status.ok()) return status;
  return out;
}

}  // namespace gpt2
