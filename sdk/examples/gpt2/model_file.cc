#include "sdk/examples/gpt2/model_file.h"

#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "coxswain/safetensors.h"

namespace gpt2 {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kEmbedding = "transformer.wte.weight";
constexpr std::string_view kHead = "lm_head.weight";

bool is_stored_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

const at::Tensor* find(const std::vector<cox::NamedTensor>& tensors, std::string_view name) {
  for (const cox::NamedTensor& named : tensors) {
    if (named.name == name) return &named.tensor;
  }
  return nullptr;
}

cox::Status check_tied(const std::vector<cox::NamedTensor>& weights, const at::Tensor& head) {
  const at::Tensor* embedding = find(weights, kEmbedding);
  if (!embedding) return cox::ok_status();  // reported as missing, with the others
  if (head.scalar_type() == embedding->scalar_type() && head.equal(*embedding)) {
    return cox::ok_status();
  }
  return cox::invalid_argument("expected lm_head.weight to equal " + std::string(kEmbedding) +
                               " (a tied head), found other values");
}

// Returns the file's tensors under the model's own names, without tensors that are not its weights.
cox::Result<std::vector<cox::NamedTensor>> weights_of(std::vector<cox::NamedTensor> tensors) {
  std::vector<cox::NamedTensor> weights;
  at::Tensor head;
  for (cox::NamedTensor& named : tensors) {
    if (is_stored_mask(named.name)) continue;
    if (named.name == kHead) {
      head = named.tensor;
      continue;
    }
    if (!named.name.starts_with(kPrefix)) named.name.insert(0, kPrefix);
    weights.push_back(std::move(named));
  }
  if (head.defined()) {
    if (cox::Status status = check_tied(weights, head); !status.ok()) return status;
  }
  return weights;
}

}  // namespace

cox::Status save_model(const std::filesystem::path& folder, const Gpt2& model) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return cox::failed_precondition(folder.string() + ": cannot create it: " + error.message());
  }
  cox::Status status = write_config(folder / "config.json", model->config());
  if (!status.ok()) return status;
  return cox::write_safetensors(folder / "model.safetensors", named_parameters(*model),
                                {{"format", "pt"}});
}

cox::Status load_weights(const std::filesystem::path& file, Gpt2& model) {
  cox::Result<cox::SafetensorsFile> read = cox::read_safetensors(file);
  if (!read.ok()) return read.status();
  const auto weights = weights_of(std::move(read->tensors));
  if (!weights.ok()) return weights.status().with_context(file.string());
  return cox::load_into(named_parameters(*model), *weights).with_context(file.string());
}

}  // namespace gpt2
