#include "sdk/src/session/saved_rows.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {
namespace {

std::string tensor_name(const SavedRow& row, std::size_t rank) {
  return std::string(row.name) + ".rank" + std::to_string(rank);
}

Result<std::span<const double>> values_of(const NamedTensor& named) {
  const at::Tensor& tensor = named.tensor;
  if (tensor.dim() != 1 || tensor.scalar_type() != at::kDouble || !tensor.is_contiguous()) {
    return invalid_argument(named.name + ": expected one contiguous row of F64, found " +
                            c10::toString(tensor.scalar_type()) + " of " +
                            std::to_string(tensor.dim()) + " dimensions");
  }
  return std::span<const double>(tensor.const_data_ptr<double>(),
                                 static_cast<std::size_t>(tensor.numel()));
}

void load_row(const Membership& job, Saving& saving, std::span<const NamedTensor> saved) {
  const SavedRow& name = *saving.saved_row();
  const std::string prefix = tensor_name(name, 0).substr(0, tensor_name(name, 0).size() - 1);
  const auto ranks = std::ranges::count_if(
      saved, [&](const NamedTensor& named) { return named.name.starts_with(prefix); });
  if (ranks == 0) return;
  const std::string own = tensor_name(name, static_cast<std::size_t>(job.rank().value()));
  const auto mine =
      std::ranges::find_if(saved, [&](const NamedTensor& named) { return named.name == own; });
  const std::string anew = std::string(name.title) + " is not resumed: ";
  if (ranks != job.world_size() || mine == saved.end()) {
    if (job.is_root()) job.log().info(anew + "it was saved at another world size");
    return;
  }
  const auto row = values_of(*mine);
  const Status loaded = row.ok() ? saving.load(*row) : row.status();
  if (!loaded.ok()) job.log().warning(anew + loaded.message());
}

}  // namespace

std::vector<NamedTensor> own_rows(SessionState& state) {
  const auto rank = static_cast<std::size_t>(state.job().rank().value());
  std::vector<NamedTensor> rows;
  for (const Saving* each : state.actuators().all<Saving>()) {
    const SavedRow* name = each->saved_row();
    if (name != nullptr)
      rows.push_back({tensor_name(*name, rank), at::tensor(each->save(), at::kDouble)});
  }
  return rows;
}

void load_rows(SessionState& state, std::span<const NamedTensor> saved) {
  for (Saving* each : state.actuators().all<Saving>()) {
    if (each->saved_row() != nullptr) load_row(state.job(), *each, saved);
  }
}

}  // namespace cox::detail
