#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "sdk/src/parallel/exact_reduction.h"
#include "sdk/src/parallel/reducer_impl.h"

namespace cox {

using detail::BucketChoice;
using detail::ExactBin;

namespace {

constexpr const char* kOrder = "reducer.order";
constexpr const char* kSizes = "reducer.bucket_bytes";
constexpr const char* kBins = "reducer.bins";

at::Tensor numbers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

Status foreign(const std::string& name, const std::string& expected) {
  return invalid_argument("reducer state: expected " + expected + " in " + name +
                          ", found something else; it belongs to another model or is damaged");
}

// The integers of an entry; nothing when it is absent or of another type.
std::optional<std::vector<std::int64_t>> find(std::span<const NamedTensor> saved,
                                              const std::string& name) {
  const auto found = std::find_if(saved.begin(), saved.end(),
                                  [&](const NamedTensor& each) { return each.name == name; });
  if (found == saved.end() || found->tensor.scalar_type() != at::kLong) return std::nullopt;
  const at::Tensor flat = found->tensor.contiguous();
  const auto* values = flat.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(values, values + flat.numel());
}

bool is_permutation(const std::vector<std::int64_t>& order, std::size_t parameters) {
  if (order.size() != parameters) return false;
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<std::int64_t>(i)) return false;
  }
  return true;
}

bool are_bins(const std::vector<std::int64_t>& values, std::size_t parameters) {
  if (values.size() != 2 * parameters) return false;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const bool is_ceiling = values[i] >= ExactBin::kLowest && values[i] <= ExactBin::kHighest;
    const bool is_count = values[i + 1] >= 1 && values[i + 1] <= ExactBin::kMostCountBits;
    if (!is_ceiling || !is_count) return false;
  }
  return true;
}

}  // namespace

std::vector<NamedTensor> Reducer::Impl::saved() const {
  std::vector<NamedTensor> saved;
  if (tuning.is_over() && reduction->exchange() != nullptr) {
    const BucketChoice& choice = tuning.choice();
    saved.push_back({kOrder, numbers({choice.order.begin(), choice.order.end()})});
    saved.push_back({kSizes, numbers({choice.sizes.first_bytes, choice.sizes.bytes})});
  }
  if (const auto* exact = dynamic_cast<const detail::ExactReduction*>(reduction.get())) {
    std::vector<std::int64_t> values;
    for (const ExactBin& bin : exact->bins()) {
      values.insert(values.end(), {bin.ceiling, bin.count_bits});
    }
    saved.push_back({kBins, numbers(values)});
  }
  return saved;
}

Status Reducer::Impl::restore(std::span<const NamedTensor> saved) {
  const auto order = find(saved, kOrder);
  const auto sizes = find(saved, kSizes);
  const auto values = find(saved, kBins);
  if (order && !is_permutation(*order, parameters.size())) {
    return foreign(kOrder, "the numbers of " + std::to_string(parameters.size()) + " parameters");
  }
  if (sizes && (sizes->size() != 2 || sizes->front() < 1 || sizes->back() < 1)) {
    return foreign(kSizes, "two sizes of buckets");
  }
  if (values && !are_bins(*values, parameters.size())) {
    return foreign(kBins,
                   "a valid bin for each of " + std::to_string(parameters.size()) + " parameters");
  }
  if (order && sizes && state.config().reduction.bucket_bytes == 0) {
    BucketChoice choice{{}, {sizes->front(), sizes->back()}};
    choice.order.assign(order->begin(), order->end());
    tuning.restore(choice);
  }
  for (std::size_t p = 0; values && p < parameters.size(); ++p) {
    bins[p] = {static_cast<std::int32_t>((*values)[2 * p]),
               static_cast<std::int32_t>((*values)[2 * p + 1])};
  }
  build();
  return ok_status();
}

}  // namespace cox
