#include "sdk/src/parallel/tuned_reduction.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/parallel/exact_sum.h"

namespace cox::detail {
namespace {

constexpr std::uint64_t kMicroBatchesAtFirst = 64;
constexpr const char* kLayout = "layout of gradient buckets";  // for messages

std::int64_t gradient_bytes(const std::vector<GradientShape>& shapes) {
  std::int64_t bytes = 0;
  for (const GradientShape& shape : shapes) {
    if (shape.needed) bytes += shape.elements * bytes_of(shape.type);
  }
  return bytes;
}

// Returns a choice as numbers for a broadcast: the two sizes, then the order.
std::vector<std::int64_t> packed(const BucketChoice& choice) {
  std::vector<std::int64_t> numbers = {choice.sizes.first_bytes, choice.sizes.bytes};
  numbers.insert(numbers.end(), choice.order.begin(), choice.order.end());
  return numbers;
}

BucketChoice unpacked(const std::vector<std::int64_t>& numbers) {
  BucketChoice choice;
  choice.sizes = {numbers[0], numbers[1]};
  for (std::size_t i = 2; i < numbers.size(); ++i) {
    choice.order.push_back(static_cast<std::uint32_t>(numbers[i]));
  }
  return choice;
}

constexpr const char* kOrder = "reducer.order";
constexpr const char* kTriedSizes = "reducer.bucket_bytes";
constexpr const char* kBins = "reducer.bins";

at::Tensor integers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

Status foreign(const std::string& name, const std::string& expected) {
  return invalid_argument("reducer state: expected " + expected + " in " + name +
                          ", found something else; it belongs to another model or is damaged");
}

// Returns the integers of an entry; nothing if it is absent or of another type.
std::optional<std::vector<std::int64_t>> find(std::span<const NamedTensor> saved,
                                              const std::string& name) {
  const auto found =
      std::ranges::find_if(saved, [&](const NamedTensor& each) { return each.name == name; });
  if (found == saved.end() || found->tensor.scalar_type() != at::kLong) return std::nullopt;
  const at::Tensor flat = found->tensor.contiguous();
  const auto* values = flat.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(values, values + flat.numel());
}

bool is_permutation(const std::vector<std::int64_t>& order, std::size_t parameters) {
  if (order.size() != parameters) return false;
  std::vector<std::int64_t> sorted = order;
  std::ranges::sort(sorted);
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

TunedReduction::TunedReduction(const ReductionSetup& setup,
                               const std::vector<at::Tensor>& parameters, ReductionMaker maker)
    : setup_(setup),
      maker_(std::move(maker)),
      parameters_(parameters),
      required_(required_of(parameters)),
      tuning_(parameters.size(),
              gradient_bytes(shapes_of(parameters, required_, setup.config.reproducible)),
              setup.config.bucket_bytes) {
  habits_.bins.assign(parameters.size(), first_bin(kMicroBatchesAtFirst));
  build();
}

// Uses the requirements at the start: a parameter that is frozen now may be trained later, so it
// keeps its place.
void TunedReduction::build() {
  forms_ = forms_of(parameters_);
  reduction_ = maker_.make
                   ? maker_.make(parameters_, required_, habits_)
                   : make_reduction(setup_, parameters_, required_, tuning_.choice(), habits_);
}

void TunedReduction::follow_forms() {
  if (exchange() != nullptr && !have_forms(parameters_, forms_)) build();
}

std::optional<std::size_t> TunedReduction::unexpected() const {
  if (exchange() == nullptr) return std::nullopt;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!required_[p] && parameters_[p].requires_grad()) return p;
  }
  return std::nullopt;
}

void TunedReduction::share(std::span<std::byte> bytes, RankId from, const BetweenPolls& pump) {
  require(broadcast(setup_.ranks, bytes, from, pump), kLayout);
}

// Returns the order of the lowest rank that saw one, because rank 0 may have had no samples. Empty
// if no rank did.
std::vector<std::uint32_t> TunedReduction::order_seen(const BetweenPolls& pump) {
  constexpr std::uint64_t kNobody = ~std::uint64_t{0};
  const auto mine = static_cast<std::uint64_t>(setup_.ranks.rank().value());
  std::uint64_t lowest = habits_.order.empty() ? kNobody : mine;
  require(reduce_values(setup_.ranks, std::span(&lowest, 1), transport::min_u64(), pump), kLayout);
  if (lowest == kNobody) return {};
  std::vector<std::uint32_t> order = completed(habits_.order, parameters_.size());
  share(std::as_writable_bytes(std::span(order)), RankId(static_cast<std::int32_t>(lowest)), pump);
  return order;
}

void TunedReduction::tune(double cost_seconds, const BetweenPolls& pump) {
  // The host cannot measure the cost of buckets over NCCL.
  const StepExchange* sends = reduction_->exchange();
  if (maker_.make || sends == nullptr || sends->flats().empty() || tuning_.is_over()) return;
  const BucketChoice former = tuning_.choice();
  const bool is_due = tuning_.wants_order() ? tuning_.learn_order(order_seen(pump))
                                            : tuning_.learn_cost(cost_seconds);
  if (!is_due) return;
  std::vector<std::int64_t> numbers = packed(tuning_.choice());
  share(std::as_writable_bytes(std::span(numbers)), kRoot, pump);
  adopt(unpacked(numbers), former);
}

// The old buckets live on in .grad. If the folder has no room for both, new buckets would be sent
// by messages, so the old layout stays. The note is equal on all ranks.
void TunedReduction::adopt(const BucketChoice& choice, const BucketChoice& former) {
  tuning_.adopt(choice);
  auto old = std::move(reduction_);
  build();
  if (reduction_->exchange()->host().note().empty() || !old->exchange()->host().note().empty())
    return;
  reduction_ = std::move(old);
  tuning_.restore(former);
}

std::vector<NamedTensor> TunedReduction::saved() const {
  std::vector<NamedTensor> saved;
  if (tuning_.is_over() && reduction_->exchange() != nullptr) {
    const BucketChoice& choice = tuning_.choice();
    saved.push_back({kOrder, integers({choice.order.begin(), choice.order.end()})});
    saved.push_back({kTriedSizes, integers({choice.sizes.first_bytes, choice.sizes.bytes})});
  }
  if (!setup_.config.reproducible) return saved;
  std::vector<std::int64_t> values;
  for (const ExactBin& bin : habits_.bins) {
    values.insert(values.end(), {bin.ceiling, bin.count_bits});
  }
  saved.push_back({kBins, integers(values)});
  return saved;
}

Status TunedReduction::restore(std::span<const NamedTensor> saved) {
  const auto order = find(saved, kOrder);
  const auto sizes = find(saved, kTriedSizes);
  const auto values = find(saved, kBins);
  if (order && !is_permutation(*order, parameters_.size())) {
    return foreign(kOrder, "the numbers of " + std::to_string(parameters_.size()) + " parameters");
  }
  if (sizes && (sizes->size() != 2 || sizes->front() < 1 || sizes->back() < 1)) {
    return foreign(kTriedSizes, "two sizes of buckets");
  }
  if (values && !are_bins(*values, parameters_.size())) {
    return foreign(kBins,
                   "a valid bin for each of " + std::to_string(parameters_.size()) + " parameters");
  }
  if (order && sizes && setup_.config.bucket_bytes == 0) {
    BucketChoice choice{{}, {sizes->front(), sizes->back()}};
    choice.order.assign(order->begin(), order->end());
    tuning_.restore(choice);
  }
  for (std::size_t p = 0; values && p < parameters_.size(); ++p) {
    habits_.bins[p] = {static_cast<std::int32_t>((*values)[2 * p]),
                       static_cast<std::int32_t>((*values)[2 * p + 1])};
  }
  build();
  return ok_status();
}

}  // namespace cox::detail
