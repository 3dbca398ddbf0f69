// The part of SessionState that saves what every rank remembers of its numbers: histories of
// delayed FP8 scaling, one row a rank.
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/parallel/gather_rows.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {
namespace {

std::string tensor_name(std::size_t rank) {
  return "fp8.rank" + std::to_string(rank);
}

Row words_of(const std::vector<double>& numbers) {
  Row words;
  for (const double number : numbers) words.push_back(std::bit_cast<std::int64_t>(number));
  return words;
}

at::Tensor tensor_of(const Row& words) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(words.size())}, at::kDouble);
  std::transform(words.begin(), words.end(), tensor.mutable_data_ptr<double>(),
                 [](std::int64_t word) { return std::bit_cast<double>(word); });
  return tensor;
}

Result<std::span<const double>> row_of(const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kDouble || !tensor.is_contiguous()) {
    return invalid_argument(named.name + ": expected a row of F64, found another tensor");
  }
  return std::span<const double>(tensor.const_data_ptr<double>(),
                                 static_cast<std::size_t>(tensor.numel()));
}

}  // namespace

bool SessionState::remembers_numbers() const {
  return numbers_.is_attached() && loaded_.config.precision.fp8_scaling == Fp8Scaling::delayed;
}

std::vector<NamedTensor> SessionState::saved_numbers() {
  if (!remembers_numbers()) return {};
  auto rows = gather_rows(world_.all(), words_of(numbers_.fp8_state()), "all ranks to save");
  if (!rows.ok()) throw Error(rows.status());
  std::vector<NamedTensor> saved;
  for (std::size_t r = 0; r < rows->size(); ++r) {
    saved.push_back({tensor_name(r), tensor_of((*rows)[r])});
  }
  return saved;
}

void SessionState::load_numbers(std::span<const NamedTensor> saved) {
  if (!remembers_numbers() || saved.empty()) return;
  const auto mine = std::find_if(saved.begin(), saved.end(), [&](const NamedTensor& named) {
    return named.name == tensor_name(static_cast<std::size_t>(rank().value()));
  });
  if (saved.size() != static_cast<std::size_t>(world_size()) || mine == saved.end()) {
    if (rank() == kRoot) log_.info("FP8 scaling starts anew: it was saved at another world size");
    return;
  }
  const auto row = row_of(*mine);
  const Status loaded = row.ok() ? numbers_.load_fp8(*row) : row.status();
  if (!loaded.ok()) log_.warning("FP8 scaling starts anew: " + loaded.message());
}

}  // namespace cox::detail
