#include "sdk/src/precision/fp8_block.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

namespace cox::detail {
namespace {

constexpr std::size_t kCountsBefore = 4;  // next, filled, extra, clean steps

Status bad_state(const std::string& found) {
  return invalid_argument("state of FP8 scaling: " + found +
                          "; it was saved by another version or is damaged");
}

bool is_count(double value, double most) {
  return value >= 0 && value <= most && value == std::floor(value);
}

constexpr double kStateVersion = 1;
constexpr std::size_t kFiguresBefore = 3;  // version, history, products

FloatFormat format_of(Fp8Side side) {
  return side == Fp8Side::activation ? FloatFormat::e4m3 : FloatFormat::e5m2;
}

using Parts = std::vector<std::span<const double>>;  // the state of each block

Status damaged(const char* expected, double found) {
  return invalid_argument(std::string("state of FP8 scaling: expected ") + expected + ", found " +
                          std::to_string(found));
}

Result<Parts> split(std::span<const double> row, std::size_t blocks) {
  if (row.front() != static_cast<double>(blocks)) {
    return damaged("as many blocks as the model has", row.front());
  }
  row = row.subspan(1);
  Parts parts;
  for (std::size_t b = 0; b < blocks; ++b) {
    const double length = row.empty() ? -1 : row.front();
    if (!(length >= 0 && length < static_cast<double>(row.size()))) {
      return damaged("the numbers of every block", length);
    }
    parts.push_back(row.subspan(1, static_cast<std::size_t>(length)));
    row = row.subspan(1 + static_cast<std::size_t>(length));
  }
  if (!row.empty()) return damaged("nothing behind the last block", row.front());
  return parts;
}

}  // namespace

void AmaxHistory::see(const QuantizeCounts& counts) {
  merge_into(step_, counts);
}

void AmaxHistory::end_step() {
  if (step_.sampled == 0) return;
  const auto steps = static_cast<std::uint32_t>(amax_.size());
  amax_[next_] = step_.amax;
  next_ = (next_ + 1) % steps;
  filled_ = std::min(filled_ + 1, steps);
  if (step_.saturated > 0) {
    extra_ = std::min(extra_ + 1, kMostExtra);
    clean_steps_ = 0;
  } else if (++clean_steps_ == kStepsToForgive) {
    extra_ -= extra_ > 0 ? 1 : 0;
    clean_steps_ = 0;
  }
  step_ = {};
}

float AmaxHistory::amax() const {
  return *std::max_element(amax_.begin(), amax_.end());
}

void AmaxHistory::append_to(std::vector<double>& state) const {
  for (const std::uint32_t count : {next_, filled_, extra_, clean_steps_}) state.push_back(count);
  state.insert(state.end(), amax_.begin(), amax_.end());
}

Status AmaxHistory::read(std::span<const double>& state) {
  const std::size_t needed = kCountsBefore + amax_.size();
  if (state.size() < needed) {
    return bad_state("expected " + std::to_string(needed) + " more numbers, found " +
                     std::to_string(state.size()));
  }
  const auto steps = static_cast<double>(amax_.size());
  if (!is_count(state[0], steps - 1) || !is_count(state[1], steps) ||
      !is_count(state[2], kMostExtra) || !is_count(state[3], kStepsToForgive)) {
    return bad_state("a count is out of range");
  }
  const std::span<const double> amax = state.subspan(kCountsBefore, amax_.size());
  for (const double value : amax) {
    if (!(value >= 0) || !std::isfinite(static_cast<float>(value))) {
      return bad_state("a magnitude is not finite");
    }
  }
  next_ = static_cast<std::uint32_t>(state[0]);
  filled_ = static_cast<std::uint32_t>(state[1]);
  extra_ = static_cast<std::uint32_t>(state[2]);
  clean_steps_ = static_cast<std::uint32_t>(state[3]);
  std::transform(amax.begin(), amax.end(), amax_.begin(),
                 [](double value) { return static_cast<float>(value); });
  step_ = {};
  state = state.subspan(needed);
  return {};
}

Fp8Weights::Key Fp8Weights::key_of(const at::Tensor& weight) {
  return {weight.storage().unsafeGetStorageImpl(),
          weight.storage().data(),
          weight.storage_offset(),
          c10::DimVector(weight.sizes().begin(), weight.sizes().end()),
          c10::DimVector(weight.strides().begin(), weight.strides().end()),
          weight.is_inference() ? 0 : weight._version()};
}

Fp8Operand Fp8Weights::get(const at::Tensor& weight, std::uint32_t margin) {
  const Key key = key_of(weight);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) return found->operand;
  // Other versions of the same memory, and memory that is gone, will not be asked for again.
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.storage.expired() ||
           (entry.key.storage == key.storage && entry.key.version != key.version);
  });
  if (entries_.size() == kMost) entries_.pop_front();
  const at::Tensor scale = current_scale(weight, FloatFormat::e4m3, granularity_, margin);
  entries_.push_back({key, weight.storage().getWeakStorageImpl(),
                      quantize_tensor(weight, FloatFormat::e4m3, scale).operand});
  ++quantized_;
  return entries_.back().operand;
}

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
  if (state.size() < kFiguresBefore) return expects("numbers", kFiguresBefore, state.size());
  if (state[0] != kStateVersion) return expects("version", kStateVersion, state[0]);
  if (state[1] != recipe_.history) return expects("a history of", recipe_.history, state[1]);
  if (!(state[2] >= 0 && state[2] <= kMostProducts)) {
    return expects("products up to", kMostProducts, state[2]);
  }
  std::vector<Product> products;
  const auto count = static_cast<std::size_t>(state[2]);
  state = state.subspan(kFiguresBefore);
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

std::vector<double> pack_fp8(const Fp8Blocks& blocks) {
  if (std::none_of(blocks.begin(), blocks.end(),
                   [](const auto& block) { return block->remembers(); })) {
    return {};
  }
  std::vector<double> row = {static_cast<double>(blocks.size())};
  for (const auto& block : blocks) {
    const std::vector<double> state = block->state();
    row.push_back(static_cast<double>(state.size()));
    row.insert(row.end(), state.begin(), state.end());
  }
  return row;
}

Status unpack_fp8(std::span<const double> row, const Fp8Blocks& blocks) {
  if (row.empty()) {
    for (const auto& block : blocks) block->forget();
    return ok_status();
  }
  const auto parts = split(row, blocks.size());
  if (!parts.ok()) return parts.status();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    Fp8Block trial(blocks[b]->recipe());
    if (Status fits = trial.load_state((*parts)[b]); !fits.ok()) return fits;
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    static_cast<void>(blocks[b]->load_state((*parts)[b]));
  }
  return ok_status();
}

}  // namespace cox::detail
