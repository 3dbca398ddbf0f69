#include "sdk/src/precision/fp8_block.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cox::detail {
namespace {

constexpr double kStateVersion = 1;
constexpr std::size_t kNumbersBefore = 3;  // version, history, products

FloatFormat format_of(Fp8Side side) {
  return side == Fp8Side::activation ? FloatFormat::e4m3 : FloatFormat::e5m2;
}

}  // namespace

Fp8Block::Fp8Block(Fp8Recipe recipe, std::shared_ptr<Fp8Shapes> shapes)
    : recipe_(recipe), shapes_(std::move(shapes)), weights_(recipe.granularity) {}

bool Fp8Block::takes(const ProductShape& shape) {
  return !shapes_ || shapes_->best(shape) == ProductPath::fp8;
}

Fp8Counts Fp8Block::take_counts() {
  const std::lock_guard lock(mutex_);
  read_waiting();
  return std::exchange(counts_, {});
}

void Fp8Block::end_step() {
  const std::lock_guard lock(mutex_);
  read_waiting();
  for (Product& product : products_) {
    product.activation.end_step();
    product.gradient.end_step();
  }
  weights_.clear();
}

void Fp8Block::drop_step() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
  counts_ = {};
  for (Product& product : products_) {
    product.activation.drop_step();
    product.gradient.drop_step();
  }
  weights_.clear();
}

bool Fp8Block::remembers() const {
  const std::lock_guard lock(mutex_);
  return !products_.empty();
}

void Fp8Block::forget() {
  const std::lock_guard lock(mutex_);
  products_.clear();
  waiting_.clear();
}

std::vector<double> Fp8Block::state() const {
  const std::lock_guard lock(mutex_);
  std::vector<double> state = {kStateVersion, static_cast<double>(recipe_.history),
                               static_cast<double>(products_.size())};
  for (const Product& product : products_) {
    product.activation.append_to(state);
    product.gradient.append_to(state);
  }
  return state;
}

Status Fp8Block::load_state(std::span<const double> state) {
  const auto expects = [](const std::string& what, double expected, double found) {
    return invalid_argument("state of FP8 scaling: expected " + what + " " +
                            std::to_string(expected) + ", found " + std::to_string(found) +
                            "; continue with the settings that it was saved with, or without it");
  };
  if (state.size() < kNumbersBefore) return expects("numbers", kNumbersBefore, state.size());
  if (state[0] != kStateVersion) return expects("version", kStateVersion, state[0]);
  if (state[1] != recipe_.history) return expects("a history of", recipe_.history, state[1]);
  if (!(state[2] >= 0 && state[2] <= kMostProducts)) {
    return expects("products up to", kMostProducts, state[2]);
  }
  std::vector<Product> products;
  const auto count = static_cast<std::size_t>(state[2]);
  state = state.subspan(kNumbersBefore);
  for (std::size_t p = 0; p < count; ++p) {
    products.push_back({AmaxHistory(recipe_.history), AmaxHistory(recipe_.history)});
    for (const Fp8Side side : {Fp8Side::activation, Fp8Side::gradient}) {
      if (Status read = products.back().of(side).read(state); !read.ok()) return read;
    }
  }
  if (!state.empty()) return expects("further numbers", 0, state.size());
  const std::lock_guard lock(mutex_);
  products_ = std::move(products);
  waiting_.clear();
  return {};
}

at::Tensor Fp8Block::scale_for(Fp8Side side, std::size_t product_index, const at::Tensor& values) {
  const FloatFormat format = format_of(side);
  if (recipe_.scaling == Fp8Scaling::current) {
    return current_scale(values, format, recipe_.granularity, recipe_.margin);
  }
  const std::lock_guard lock(mutex_);
  const AmaxHistory& history = product(product_index).of(side);
  const std::uint32_t margin = recipe_.margin + history.extra_margin();
  if (history.is_empty()) return current_scale(values, format, Fp8Granularity::tensor, margin);
  return known_scale(history.amax(), format, margin, values.device());
}

void Fp8Block::see(Fp8Side side, std::size_t product_index, const Fp8Seen& seen) {
  const std::lock_guard lock(mutex_);
  if (seen.pending.defined()) {
    waiting_.push_back({side, product_index, seen});
  } else {
    add(side, product_index, seen.counts);
  }
}

Fp8Operand Fp8Block::weight(const at::Tensor& weight) {
  const std::lock_guard lock(mutex_);
  return weights_.get(weight, recipe_.margin);
}

Fp8Block::Product& Fp8Block::product(std::size_t index) {
  const std::size_t at = std::min(index, kMostProducts - 1);
  while (products_.size() <= at) {
    products_.push_back({AmaxHistory(recipe_.history), AmaxHistory(recipe_.history)});
  }
  return products_[at];
}

void Fp8Block::read_waiting() {
  if (waiting_.empty()) return;
  std::vector<Fp8Seen> seen;
  for (const Waiting& one : waiting_) seen.push_back(one.seen);
  const std::vector<QuantizeCounts> counts = read_counts(seen);
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    add(waiting_[i].side, waiting_[i].product, counts[i]);
  }
  waiting_.clear();
}

void Fp8Block::add(Fp8Side side, std::size_t product_index, const QuantizeCounts& counts) {
  counts_.sampled += counts.sampled;
  counts_.underflow += counts.underflow;
  counts_.saturated += counts.saturated;
  const bool is_gradient = side == Fp8Side::gradient;
  float& amax = is_gradient ? counts_.gradient_amax : counts_.activation_amax;
  amax = std::max(amax, counts.amax);
  if (recipe_.scaling == Fp8Scaling::delayed) product(product_index).of(side).see(counts);
}

}  // namespace cox::detail
