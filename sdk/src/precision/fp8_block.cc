#include "sdk/src/precision/fp8_block.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kProductChunk = 1L << 16;  // elements that one thread takes at a time

// Returns what the loops on the CPU read: bf16 as it is, everything else as float.
at::Tensor readable(const at::Tensor& values) {
  const bool is_bf16 = values.scalar_type() == at::kBFloat16;
  return (is_bf16 ? values : values.to(at::kFloat)).contiguous();
}

// Calls body(span of values, first) for parts of a readable tensor.
template <class Body>
void with_values(const at::Tensor& readable, const Body& body) {
  const auto count = static_cast<std::size_t>(readable.numel());
  if (readable.scalar_type() == at::kBFloat16) {
    const auto* data = static_cast<const std::uint16_t*>(readable.const_data_ptr());
    body(std::span<const std::uint16_t>(data, count));
  } else {
    body(std::span<const float>(readable.const_data_ptr<float>(), count));
  }
}

std::int64_t rows_of(const at::Tensor& values) {
  return values.size(-1) == 0 ? 0 : values.numel() / values.size(-1);
}

// Runs part(first, count) over `total` elements in pieces of `piece`, on as many threads as fit.
template <class Part>
void in_parallel(std::int64_t total, std::int64_t piece, const Part& part) {
  const std::int64_t pieces = piece == 0 ? 0 : (total + piece - 1) / piece;
  const std::int64_t grain = std::max<std::int64_t>(1, piece == 0 ? 1 : kProductChunk / piece);
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      part(static_cast<std::size_t>(p), static_cast<std::size_t>(p * piece),
           static_cast<std::size_t>(std::min(piece, total - p * piece)));
    }
  });
}

at::Tensor row_scales_on_cpu(const at::Tensor& values, at::Tensor scale, FloatFormat format,
                             std::uint32_t margin) {
  auto* scales = scale.mutable_data_ptr<float>();
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), values.size(-1), [&](auto row, auto first, auto count) {
      const float amax = finite_amax(all.subspan(first, count));
      scales[row] = 1 / fp8_multiplier(format, amax, margin);
    });
  });
  return scale;
}

QuantizeCounts quantize_on_cpu(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale, const at::Tensor& codes) {
  const bool by_row = scale.numel() > 1;
  const auto* scales = scale.const_data_ptr<float>();
  auto* out = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  const std::span<std::uint8_t> all_codes(out, static_cast<std::size_t>(codes.numel()));
  std::mutex mutex;
  QuantizeCounts total;
  with_values(values, [&](auto all) {
    in_parallel(values.numel(), by_row ? values.size(-1) : kProductChunk,
                [&](std::size_t piece, std::size_t first, std::size_t count) {
                  const QuantizeCounts counts =
                      quantize(format, all.subspan(first, count), 1 / scales[by_row ? piece : 0],
                               all_codes.subspan(first, count));
                  const std::lock_guard lock(mutex);
                  merge_into(total, counts);
                });
  });
  return total;
}

// Returns values with the strides of `codes`, which leave no holes.
at::Tensor decoded_on_cpu(const at::Tensor& codes) {
  const at::Tensor values = at::empty_like(codes, codes.options().dtype(at::kFloat));
  const auto format =
      codes.scalar_type() == at::kFloat8_e4m3fn ? FloatFormat::e4m3 : FloatFormat::e5m2;
  const auto total = static_cast<std::size_t>(codes.numel());
  const std::span from(static_cast<const std::uint8_t*>(codes.const_data_ptr()), total);
  const std::span to(values.mutable_data_ptr<float>(), total);
  in_parallel(codes.numel(), kProductChunk, [&](auto, std::size_t first, std::size_t count) {
    decode(format, from.subspan(first, count), to.subspan(first, count));
  });
  return values;
}

// Returns a mask of the magnitudes that round to more than the largest finite one.
at::Tensor is_clipped(const at::Tensor& scaled, FloatFormat format) {
  return format == FloatFormat::e4m3 ? scaled.abs() > 464.0 : scaled.abs() >= 61440.0;
}

constexpr std::int64_t kHardwareMultiple = 16;

bool fits_hardware(const ProductShape& shape) {
  return shape.rows % kHardwareMultiple == 0 && shape.columns % kHardwareMultiple == 0 &&
         shape.inner % kHardwareMultiple == 0;
}

bool can_use_hardware(const Fp8Operand& a, const Fp8Operand& b) {
  return a.codes.is_cuda() && a.codes.dim() == 2 && a.has_one_scale() && b.has_one_scale() &&
         fits_hardware({a.codes.size(0), b.codes.size(1), a.codes.size(1)});
}

// The left operand has to be row-major there, the right one column-major.
at::Tensor hardware_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type) {
  return at::_scaled_mm(a.codes.contiguous(), b.codes.t().contiguous().t(), a.scale, b.scale, {},
                        {}, type, /*use_fast_accum=*/false);
}

// REQUIRES: `device` has an index, as that of a tensor has.
double seconds_of(const std::function<void()>& work, at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.index());
  const auto start = std::chrono::steady_clock::now();
  work();
  guard.synchronizeDevice(device.index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the microseconds of a product with operands of its own; the weight is ready, as it is in
// a step.
double time_on(at::Device device, const ProductShape& shape, ProductPath path) {
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor x = at::ones({shape.rows, shape.inner}, options);
  const at::Tensor w = at::ones({shape.columns, shape.inner}, options);
  if (path == ProductPath::bf16) {
    return 1e6 * seconds_of([&] { at::mm(x, w.t()); }, x.device());
  }
  const auto quantized = [](const at::Tensor& values) {
    const at::Tensor scale = current_scale(values, FloatFormat::e4m3, Fp8Granularity::tensor, 0);
    return quantize_tensor(values, FloatFormat::e4m3, scale).operand;
  };
  const Fp8Operand weight = quantized(w).transposed();
  const auto work = [&] { fp8_product(quantized(x), weight, at::kBFloat16, Fp8Means::hardware); };
  return 1e6 * seconds_of(work, x.device());
}

// Takes a number off the front of a saved state. Returns invalid_argument unless it is there and
// lies from `least` to `most`.
Result<double> take(std::span<const double>& state, double least, double most) {
  const double found = state.empty() ? std::numeric_limits<double>::quiet_NaN() : state.front();
  if (!(found >= least && found <= most)) {
    return invalid_argument(sentence(
        "state of FP8 scaling: expected a number from %g to %g, found %s; it was saved with "
        "other settings or by another version, or is damaged: continue without it",
        least, most, state.empty() ? "the end" : std::to_string(found).c_str()));
  }
  state = state.subspan(1);
  return found;
}

Status check_end(std::span<const double> state) {
  if (state.empty()) return ok_status();
  return invalid_argument("state of FP8 scaling: expected its end, found " +
                          std::to_string(state.size()) + " more numbers; it is damaged");
}

constexpr double kStateVersion = 1;

FloatFormat format_of(Fp8Side side) {
  return side == Fp8Side::activation ? FloatFormat::e4m3 : FloatFormat::e5m2;
}

}  // namespace

float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin) {
  if (amax == 0) return 1;
  int exponent = 0;
  std::frexp(static_cast<double>(largest_finite(format)) / amax, &exponent);
  return std::ldexp(1.0f, std::clamp(exponent - 1 - static_cast<int>(margin), -126, 126));
}

at::ScalarType fp8_type(FloatFormat format) {
  return format == FloatFormat::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

Fp8Operand Fp8Operand::transposed() const {
  return {codes.transpose(-2, -1), has_one_scale() ? scale : scale.transpose(-2, -1)};
}

at::Tensor Fp8Operand::dequantized() const {
  const bool is_ours = codes.device().is_cpu() && codes.is_non_overlapping_and_dense();
  return (is_ours ? decoded_on_cpu(codes) : codes.to(at::kFloat)).mul_(scale);
}

at::Tensor current_scale(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                         std::uint32_t margin) {
  if (values.numel() == 0) return at::ones({1}, values.options().dtype(at::kFloat));
  if (!values.device().is_cpu()) return scales_by_torch(values, format, granularity, margin);
  const at::Tensor read = readable(values);
  if (granularity == Fp8Granularity::tensor || rows_of(read) == 1) {
    return known_scale(scan(read, ScanKind::extent).amax, format, margin, values.device());
  }
  c10::DimVector sizes(read.sizes().begin(), read.sizes().end());
  sizes.back() = 1;
  const at::Tensor scale = at::empty(sizes, read.options().dtype(at::kFloat));
  return row_scales_on_cpu(read, scale, format, margin);
}

at::Tensor known_scale(float amax, FloatFormat format, std::uint32_t margin, at::Device device) {
  return at::full({1}, 1 / fp8_multiplier(format, amax, margin),
                  at::TensorOptions(device).dtype(at::kFloat));
}

Fp8Quantized quantize_tensor(const at::Tensor& values, FloatFormat format,
                             const at::Tensor& scale) {
  if (values.numel() > 0 && !values.device().is_cpu()) {
    return quantize_by_torch(values, format, scale);
  }
  const at::Tensor codes = at::empty(values.sizes(), values.options().dtype(fp8_type(format)));
  const QuantizeCounts counts = quantize_on_cpu(readable(values), format, scale, codes);
  return {{codes, scale}, {counts, {}}};
}

at::Tensor scales_by_torch(const at::Tensor& values, FloatFormat format, Fp8Granularity granularity,
                           std::uint32_t margin) {
  const at::Tensor magnitudes = values.to(at::kFloat).abs();
  const at::Tensor finite = at::where(at::isfinite(magnitudes), magnitudes, 0.0);
  const at::Tensor amax =
      granularity == Fp8Granularity::row ? finite.amax(-1, true) : finite.amax().reshape({1});
  const at::Tensor largest = at::full_like(amax, largest_finite(format), at::kDouble);
  const at::Tensor exponent = std::get<1>(at::frexp(largest / amax));
  const at::Tensor free = (exponent - 1 - static_cast<std::int64_t>(margin)).clamp(-126, 126);
  return at::where(amax == 0, 1.0, at::exp2(-free.to(at::kDouble))).to(at::kFloat);
}

Fp8Quantized quantize_by_torch(const at::Tensor& values, FloatFormat format,
                               const at::Tensor& scale) {
  const double largest = largest_finite(format);
  const at::Tensor wide = values.to(at::kFloat);
  const at::Tensor is_finite = at::isfinite(wide);
  const at::Tensor scaled = wide * scale.reciprocal();
  const at::Tensor clipped = at::where(is_finite, scaled.clamp(-largest, largest), wide);
  const at::Tensor codes = clipped.to(fp8_type(format)).contiguous();
  const at::Tensor lost = (codes.to(at::kFloat) == 0) & (wide != 0);
  const at::Tensor amax = at::where(is_finite, wide.abs(), 0.0).amax();
  Fp8Quantized result{{codes, scale}, {}};
  result.seen.counts.sampled = static_cast<std::uint64_t>(values.numel());
  result.seen.pending = at::stack({(is_clipped(scaled, format) & is_finite).sum().to(at::kDouble),
                                   lost.sum().to(at::kDouble), amax.to(at::kDouble)});
  return result;
}

namespace {

// `numbers`: what `seen.pending` holds.
QuantizeCounts completed(const Fp8Seen& seen, const double* numbers) {
  QuantizeCounts counts = seen.counts;
  counts.saturated = static_cast<std::uint64_t>(numbers[0]);
  counts.underflow = static_cast<std::uint64_t>(numbers[1]);
  counts.amax = static_cast<float>(numbers[2]);
  return counts;
}

}  // namespace

std::vector<QuantizeCounts> read_counts(std::span<const Fp8Seen> seen) {
  std::vector<at::Tensor> waiting;
  for (const Fp8Seen& one : seen) {
    if (one.pending.defined()) waiting.push_back(one.pending);
  }
  const at::Tensor read = waiting.empty() ? at::Tensor() : at::stack(waiting).to(at::kCPU);
  const double* numbers = read.defined() ? read.const_data_ptr<double>() : nullptr;
  std::vector<QuantizeCounts> all;
  for (const Fp8Seen& one : seen) {
    all.push_back(one.pending.defined() ? completed(one, numbers) : one.counts);
    if (one.pending.defined()) numbers += 3;
  }
  return all;
}

at::Tensor fp8_product(const Fp8Operand& a, const Fp8Operand& b, at::ScalarType type,
                       Fp8Means means) {
  if (means == Fp8Means::hardware && can_use_hardware(a, b)) return hardware_product(a, b, type);
  return at::matmul(a.dequantized(), b.dequantized()).to(type);
}

bool has_fp8_hardware(at::Device device) try {
  if (!device.is_cuda()) return false;
  const torch::NoGradGuard no_grad;
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor codes = at::ones({16, 16}, options).to(at::kFloat8_e4m3fn);
  const Fp8Operand one{codes, at::ones({1}, options)};
  return hardware_product(one, one, at::kBFloat16).to(at::kFloat).sum().item<float>() == 4096;
} catch (const std::exception&) {
  return false;
}

std::shared_ptr<Fp8Shapes> Fp8Shapes::of(at::Device device) {
  if (!has_fp8_hardware(device)) return nullptr;
  return std::make_shared<Fp8Shapes>([device](const ProductShape& shape, ProductPath path) {
    return fits_hardware(shape) || path == ProductPath::bf16
               ? time_on(device, shape, path)
               : std::numeric_limits<double>::infinity();
  });
}

ProductPath Fp8Shapes::best(const ProductShape& shape) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(shape);
  if (known != known_.end()) return known->second;
  const bool is_faster = least(shape, ProductPath::fp8) < least(shape, ProductPath::bf16);
  const ProductPath path = is_faster ? ProductPath::fp8 : ProductPath::bf16;
  known_.emplace(shape, path);
  return path;
}

double Fp8Shapes::least(const ProductShape& shape, ProductPath path) const {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs_; ++run) least = std::min(least, timer_(shape, path));
  return least;
}

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
  return *std::ranges::max_element(amax_);
}

void AmaxHistory::append_to(std::vector<double>& state) const {
  for (const std::uint32_t count : {next_, filled_, extra_, clean_steps_}) state.push_back(count);
  state.insert(state.end(), amax_.begin(), amax_.end());
}

Status AmaxHistory::read(std::span<const double>& state) {
  const auto steps = static_cast<std::uint32_t>(amax_.size());
  AmaxHistory loaded(steps);
  const std::pair<std::uint32_t&, std::uint32_t> counts[] = {
      {loaded.next_, steps - 1},
      {loaded.filled_, steps},
      {loaded.extra_, kMostExtra},
      {loaded.clean_steps_, kStepsToForgive}};
  for (const auto& [count, most] : counts) {
    const auto number = take(state, 0, most);
    if (!number.ok()) return number.status();
    count = static_cast<std::uint32_t>(*number);
  }
  for (float& amax : loaded.amax_) {
    const auto number = take(state, 0, std::numeric_limits<float>::max());
    if (!number.ok()) return number.status();
    amax = static_cast<float>(*number);
  }
  *this = std::move(loaded);
  return ok_status();
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
  const auto found =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.key == key; });
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
  for (const double expected : {kStateVersion, static_cast<double>(recipe_.history)}) {
    if (const auto found = take(state, expected, expected); !found.ok()) return found.status();
  }
  const auto count = take(state, 0, kMostProducts);
  if (!count.ok()) return count.status();
  std::vector<Product> products;
  for (std::size_t p = 0; p < static_cast<std::size_t>(*count); ++p) {
    products.push_back({AmaxHistory(recipe_.history), AmaxHistory(recipe_.history)});
    for (const Fp8Side side : {Fp8Side::activation, Fp8Side::gradient}) {
      if (Status read = products.back().of(side).read(state); !read.ok()) return read;
    }
  }
  if (Status end = check_end(state); !end.ok()) return end;
  const std::lock_guard lock(mutex_);
  products_ = std::move(products);
  waiting_.clear();
  return ok_status();
}

std::optional<at::Tensor> Fp8Block::earlier_scale(Fp8Side side, std::size_t product_index,
                                                  at::Device device) {
  if (recipe_.scaling == Fp8Scaling::current) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const AmaxHistory& history = product(product_index).of(side);
  if (history.is_empty()) return std::nullopt;
  const std::uint32_t margin = recipe_.margin + history.extra_margin();
  return known_scale(history.amax(), format_of(side), margin, device);
}

at::Tensor Fp8Block::scale_for(Fp8Side side, std::size_t product_index, const at::Tensor& values) {
  if (const auto earlier = earlier_scale(side, product_index, values.device())) return *earlier;
  return current_scale(values, format_of(side), recipe_.own_granularity(), recipe_.margin);
}

void Fp8Block::count(Fp8Count counting) {
  const std::lock_guard lock(mutex_);
  counting_ = counting;
}

void Fp8Block::see(Fp8Side side, std::size_t product_index, const Fp8Seen& seen) {
  const std::lock_guard lock(mutex_);
  if (counting_ == Fp8Count::off) return;
  if (seen.pending.defined()) {
    waiting_.push_back({side, product_index, seen});
  } else {
    note(side, product_index, seen.counts);
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
    note(waiting_[i].side, waiting_[i].product, counts[i]);
  }
  waiting_.clear();
}

std::vector<Fp8Waiting> Fp8Block::take_waiting() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

void Fp8Block::add(const Fp8Waiting& waiting, const QuantizeCounts& counts) {
  const std::lock_guard lock(mutex_);
  note(waiting.side, waiting.product, counts);
}

void Fp8Block::note(Fp8Side side, std::size_t product_index, const QuantizeCounts& counts) {
  counts_.sampled += counts.sampled;
  counts_.underflow += counts.underflow;
  counts_.saturated += counts.saturated;
  const bool is_gradient = side == Fp8Side::gradient;
  float& amax = is_gradient ? counts_.gradient_amax : counts_.activation_amax;
  amax = std::max(amax, counts.amax);
  if (recipe_.scaling == Fp8Scaling::delayed) product(product_index).of(side).see(counts);
}

Fp8Reading::Fp8Reading(const Fp8Blocks& blocks) {
  std::vector<at::Tensor> pending;
  for (const auto& block : blocks) {
    Part part{block, block->take_waiting()};
    for (const Fp8Waiting& one : part.waiting) pending.push_back(one.seen.pending);
    if (!part.waiting.empty()) parts_.push_back(std::move(part));
  }
  if (!pending.empty()) copy_ = HostCopy(at::stack(pending));
}

bool Fp8Reading::finish() {
  if (parts_.empty()) return true;
  if (!copy_.has_come()) return false;
  const double* numbers = copy_.tensor().const_data_ptr<double>();
  for (const Part& part : std::exchange(parts_, {})) {
    for (const Fp8Waiting& one : part.waiting) {
      part.block->add(one, completed(one.seen, numbers));
      numbers += 3;
    }
  }
  copy_ = HostCopy();
  return true;
}

void Fp8Reading::wait() const {
  if (!parts_.empty()) copy_.wait();
}

std::vector<double> pack_fp8(const Fp8Blocks& blocks) {
  if (std::ranges::none_of(blocks, [](const auto& block) { return block->remembers(); })) {
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
  const auto count = static_cast<double>(blocks.size());
  if (const auto found = take(row, count, count); !found.ok()) return found.status();
  std::vector<std::span<const double>> parts;
  for (const auto& block : blocks) {
    const auto length = take(row, 0, static_cast<double>(row.size()) - 1);
    if (!length.ok()) return length.status();
    parts.push_back(row.first(static_cast<std::size_t>(*length)));
    row = row.subspan(parts.back().size());
    Fp8Block trial(block->recipe());
    if (Status fits = trial.load_state(parts.back()); !fits.ok()) return fits;
  }
  if (Status end = check_end(row); !end.ok()) return end;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    static_cast<void>(blocks[b]->load_state(parts[b]));
  }
  return ok_status();
}

}  // namespace cox::detail
