#include "tests/bench/d1_task.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "sdk/examples/gpt2/model_file.h"

namespace cox::bench {
namespace {

constexpr std::uint64_t kSeed = 11;

void require(const Status& status) {
  if (!status.ok()) throw Error(status);
}

gpt2::Config config_of(const D1Shape& shape) {
  gpt2::Config config;
  config.n_layer = shape.layers;
  config.n_embd = shape.width;
  config.n_positions = shape.length;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  return config;
}

at::Tensor tokens_of(const std::filesystem::path& text, const D1Shape& shape) {
  const ByteTextDataset whole(text, shape.length);
  const std::int64_t stride = std::max<std::int64_t>(1, whole.size() / shape.samples);
  std::vector<std::int64_t> picked(static_cast<std::size_t>(shape.samples));
  for (std::size_t i = 0; i < picked.size(); ++i) {
    picked[i] = static_cast<std::int64_t>(i) * stride % whole.size();
  }
  const Batch batch = whole.get(picked);
  return at::cat({batch.inputs, batch.targets.narrow(1, shape.length - 1, 1)}, 1);
}

}  // namespace

void write_d1_task(const std::filesystem::path& folder, const std::filesystem::path& text,
                   const D1Shape& shape) {
  torch::manual_seed(kSeed);
  const gpt2::Gpt2 model(config_of(shape));
  require(gpt2::save_model(folder, model));
  const std::array<NamedTensor, 1> tokens = {{{"tokens", tokens_of(text, shape)}}};
  require(write_safetensors(folder / "tokens.safetensors", tokens));
}

D1Task read_d1_task(const std::filesystem::path& folder) {
  auto config = gpt2::read_config(folder / "config.json");
  require(config.status());
  gpt2::Gpt2 model(*config);
  require(gpt2::load_weights(folder / "model.safetensors", model));
  auto file = read_safetensors(folder / "tokens.safetensors");
  require(file.status());
  return {model, file->tensors.at(0).tensor};
}

Batch d1_batch(const at::Tensor& tokens, const D1Slot& slot, std::int64_t step) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(slot.rows));
  std::iota(rows.begin(), rows.end(), (step * slot.world + slot.rank) * slot.rows);
  for (std::int64_t& row : rows) row %= tokens.size(0);
  const at::Tensor picked = tokens.index_select(0, torch::tensor(rows));
  const std::int64_t length = picked.size(1) - 1;
  return {picked.narrow(1, 0, length), picked.narrow(1, 1, length), slot.rows};
}

}  // namespace cox::bench
