#include "sdk/src/parallel/gradient_reduction.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"

namespace cox::detail {
namespace {

using transport::BucketSpec;

template <class T>
BucketSpec numbers(std::size_t count, const transport::Reduction& reduction) {
  return {count * sizeof(T), reduction};
}

template <class T>
std::span<T> as_numbers(transport::Bytes bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

std::span<float> floats_of(const at::Tensor& place) {
  return {place.mutable_data_ptr<float>(), static_cast<std::size_t>(place.numel())};
}

// Returns whether the divisor is a power of two. Multiplying by the inverse then has the bits of
// the division, in the pass that computes the norm.
bool has_exact_inverse(double divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5 && std::abs(exponent) < 100;
}

BucketSpec spec_of(const GradientBucket& bucket) {
  const bool is_double = bucket.type == BucketType::fp64;
  return {static_cast<std::size_t>(bucket.bytes()),
          is_double ? transport::sum_f64() : transport::sum_f32()};
}

// Returns a tensor that owns the exchange's memory, because a view in a model's .grad may outlive
// the exchange.
at::Tensor tensor_of(transport::BucketExchange& exchange, std::size_t index,
                     const GradientBucket& bucket) {
  const auto type = bucket.type == BucketType::fp64 ? at::kDouble : at::kFloat;
  at::Tensor flat = torch::from_blob(
      exchange.buffer(index).data(), {bucket.elements}, [memory = exchange.memory()](void*) {},
      at::TensorOptions().dtype(type));
  return flat.zero_();  // gaps between gradients stay zero
}

// BucketQueue starts each bucket of the open step as soon as it and all before it are complete.
// Each reduction has one.
class BucketQueue {
 public:
  explicit BucketQueue(GradientLayout layout) : layout_(std::move(layout)) { reset(); }

  const GradientLayout& layout() const { return layout_; }
  // Returns whether the parameter's gradient is still missing in the open step.
  bool expects(std::size_t parameter) const { return missing_->expects(parameter); }
  // Records that the parameter's part of its bucket is written.
  void close(std::size_t parameter) { missing_->note(parameter); }
  // Starts the complete buckets, then advances those in flight.
  void start_complete(StepExchange& exchange) {
    const std::size_t complete = missing_->complete_from(started_);
    while (started_ < complete) exchange.start(started_++);
    if (started_ > 0) exchange.advance();
  }
  // Calls write(parameter) for every missing gradient, bucket by bucket, and starts each bucket at
  // once.
  template <class Write>
  void flush(StepExchange& exchange, Write write) {
    for (const GradientBucket& bucket : layout_.buckets) {
      for (const std::size_t p : bucket.parameters) {
        if (expects(p)) write(p), close(p);
      }
      start_complete(exchange);
    }
  }
  // Ends the step.
  void reset() {
    missing_.emplace(layout_);
    started_ = 0;
  }

 private:
  const GradientLayout layout_;
  std::optional<MissingGradients> missing_;
  std::size_t started_ = 0;
};

Status check_exact(const std::vector<at::Tensor>& parameters) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool is_double = c10::toRealValueType(parameters[p].scalar_type()) == at::kDouble;
    if (parameters[p].is_cpu() && !is_double) continue;
    return invalid_argument(
        "reduction.reproducible: expected parameters in fp32, bf16 or fp16 on the CPU, found "
        "parameter " +
        std::to_string(p) + (is_double ? " in fp64" : " on a device") +
        "; convert it or switch the mode off");
  }
  return ok_status();
}

// BucketedReduction has the common parts of the two ways that send buckets: the queue of unsent
// gradients of the open step, and the exchange.
class BucketedReduction : public GradientReduction {
 public:
  explicit BucketedReduction(SharedBuckets its)
      : parameters_(its.parameters),
        queue_(std::move(its.layout)),
        exchange_(std::move(its.exchange)),
        habits_(its.habits),
        nonfinite_(parameters_.size()),
        marks_(parameters_.size()) {}

  void begin(const MicroBatchFacts& facts) override {
    facts_ = facts;
    is_open_ = true;
    if (is_last()) habits_.order.clear();
  }

  void ready(std::size_t parameter) override {
    if (!is_open_ || std::this_thread::get_id() != thread_ || !has_place(parameter)) return;
    if (!queue_.expects(parameter)) return look_again(parameter);
    if (!parameters_[parameter].grad().defined()) return;  // a program's own function returned none
    take(parameter);
    if (!is_last() || habits_.come_again) return;
    habits_.order.push_back(static_cast<std::uint32_t>(parameter));
    put(parameter);
    marks_[parameter] = mark_of(parameters_[parameter].grad());
    queue_.close(parameter);
    queue_.start_complete(*exchange_);
  }

  void end() override {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (queue_.expects(p) && parameters_[p].grad().defined()) take(p);
    }
    is_open_ = false;
    if (is_last()) flush();
  }

  void flush() override {
    queue_.flush(*exchange_, [this](std::size_t parameter) { put(parameter); });
  }

  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    vote_on_overflow(nonfinite_, mine);
    if (std::exchange(is_torn_, false)) mine.repeat_max = 1;
    const StepBallot merged = exchange_->merge(mine, pump);
    queue_.reset();
    facts_ = {};
    is_open_ = false;  // also after a backward pass that threw
    return merged;
  }

  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }
  StepExchange* exchange() override { return exchange_.get(); }

 protected:
  // Called when a gradient of the open micro-batch is complete.
  virtual void take(std::size_t) {}
  // Writes this rank's part of the parameter's bucket, zeros if it has none.
  virtual void put(std::size_t parameter) = 0;
  // Called when a gradient changes after put(); the step will be repeated.
  virtual void drop_rest(std::size_t) {}

  const BucketPlace& place(std::size_t parameter) const {
    return queue_.layout().places[parameter];
  }
  bool has_place(std::size_t parameter) const {
    return place(parameter).bucket != BucketPlace::kNowhere;
  }

  const std::vector<at::Tensor>& parameters_;
  BucketQueue queue_;
  std::unique_ptr<StepExchange> exchange_;
  GradientHabits& habits_;
  std::vector<std::int64_t> nonfinite_;
  MicroBatchFacts facts_;

 private:
  bool is_last() const { return facts_.which == MicroBatch::last; }

  // A nested backward pass calls a parameter's hook more than once. If the gradient changed
  // meanwhile, its bucket holds only a part, and the step is repeated. From now on buckets are
  // filled at the end of backward.
  void look_again(std::size_t parameter) {
    if (!is_last() || mark_of(parameters_[parameter].grad()) == marks_[parameter]) return;
    is_torn_ = habits_.come_again = true;
    drop_rest(parameter);
  }

  std::vector<GradientMark> marks_;  // by parameter, as of put()
  std::thread::id thread_ = std::this_thread::get_id();
  bool is_open_ = false;  // in a backward pass of the reducer
  bool is_torn_ = false;  // the open step's sums are invalid
};

class OverlappedReduction final : public BucketedReduction {
 public:
  explicit OverlappedReduction(SharedBuckets its)
      : BucketedReduction(std::move(its)),
        views_(parameters_, queue_.layout(), exchange_->flats()) {}

  double hand_back(double total, double loss_scale) override {
    const torch::NoGradGuard no_grad;
    DividedNorm divided(total * loss_scale);
    // Uses the parameters' order, so that no layout of buckets changes the norm.
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!has_place(p)) continue;
      at::Tensor& grad = parameters_[p].mutable_grad();
      if (exchange_->counts()[p] == 0) {
        grad.reset();
        continue;
      }
      divided.add(views_.places[p]);
      grad = views_.gradient(p);
    }
    return divided.norm();
  }

  bool moves_when_ready(std::size_t parameter) const override { return views_.fits(parameter); }

 private:
  void put(std::size_t parameter) override {
    const torch::NoGradGuard no_grad;
    views_.let_go(parameter);
    const at::Tensor& gradient = parameters_[parameter].grad();
    exchange_->counts()[parameter] = gradient.defined() ? 1 : 0;
    if (!gradient.defined()) {
      views_.places[parameter].zero_();
      nonfinite_[parameter] = 0;
      return;
    }
    nonfinite_[parameter] = put_in_place(dense(gradient), views_.places[parameter], facts_.unit);
    if (views_.fits(parameter)) parameters_[parameter].mutable_grad() = views_.shaped[parameter];
  }

  BucketViews views_;
};

class ExactReduction final : public BucketedReduction {
 public:
  explicit ExactReduction(SharedBuckets its)
      : BucketedReduction(std::move(its)),
        averages_(parameters_.size()),
        seen_(parameters_.size()),
        amax_(parameters_.size()),
        has_deposit_(parameters_.size()) {}

  double factor(const MicroBatchFacts& facts) const override { return facts.loss_scale; }
  void begin(const MicroBatchFacts& facts) override {
    BucketedReduction::begin(facts);
    ++micro_batches_;
  }

  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    nonfinite_ = std::exchange(seen_, std::vector<std::int64_t>(seen_.size()));
    if (!fits_) mine.repeat_max = 1;
    std::copy(amax_.begin(), amax_.end(), exchange_->magnitudes().begin());
    exchange_->counts()[parameters_.size()] = static_cast<float>(micro_batches_);
    StepBallot merged = BucketedReduction::merge(mine, pump);
    if (merged.overflow_ranks == 0 && merged.nonfinite_ranks == 0) {
      if (!has_room()) merged.repeat_max = 1;
      learn_bins();
    } else {
      merged.repeat_max = 0;  // the step is skipped
    }
    has_deposit_.assign(has_deposit_.size(), false);
    std::ranges::fill(amax_, 0.0);
    micro_batches_ = 0;
    fits_ = true;
    return merged;
  }

  double hand_back(double total, double) override {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> averages;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!has_place(p)) continue;
      if (exchange_->counts()[p] == 0) {
        parameters_[p].mutable_grad().reset();
        continue;
      }
      if (!averages_[p].defined()) averages_[p] = at::empty_like(parameters_[p]).detach();
      withdraw(accumulator(p), total, as_reals(averages_[p]));
      parameters_[p].mutable_grad() = averages_[p];
      averages.push_back(averages_[p]);
    }
    return l2_norm(averages);
  }

 private:
  void take(std::size_t parameter) override {
    const torch::NoGradGuard no_grad;
    at::Tensor& grad = parameters_[parameter].mutable_grad();
    const std::span<double> sum = accumulator(parameter);
    if (!has_deposit_[parameter]) std::ranges::fill(sum, 0.0);
    const double weight = facts_.weight / facts_.loss_scale;
    const Deposit seen = deposit(as_reals(dense(grad)), weight, habits_.bins[parameter], sum);
    amax_[parameter] = std::max(amax_[parameter], seen.amax);
    seen_[parameter] += seen.nonfinite;
    fits_ = fits_ && seen.fits;
    has_deposit_[parameter] = true;
    grad.reset();  // the next micro-batch starts from nothing
  }

  void drop_rest(std::size_t parameter) override { parameters_[parameter].mutable_grad().reset(); }

  void put(std::size_t parameter) override {
    exchange_->counts()[parameter] = has_deposit_[parameter] ? 1 : 0;
    if (has_deposit_[parameter]) return;
    const std::span<double> sum = accumulator(parameter);
    std::ranges::fill(sum, 0.0);
  }

  std::span<double> accumulator(std::size_t parameter) {
    double* flat = exchange_->flats()[place(parameter).bucket].mutable_data_ptr<double>();
    return {flat + place(parameter).offset,
            static_cast<std::size_t>(numbers_in(parameters_[parameter]))};
  }

  // Return, for the step just merged, the micro-batches of all ranks, and whether the bins had
  // room.
  std::uint64_t deposits_of_all() const {
    return static_cast<std::uint64_t>(exchange_->counts()[parameters_.size()]);
  }

  bool has_room() const {
    return std::ranges::all_of(habits_.bins, [this](const ExactBin& bin) {
      return deposits_of_all() <= std::uint64_t{1} << bin.count_bits;
    });
  }

  void learn_bins() {
    const std::uint64_t deposits = std::max<std::uint64_t>(1, deposits_of_all());
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      ExactBin& bin = habits_.bins[p];
      bin = next_bin(bin, exchange_->magnitudes()[p], deposits);
    }
  }

  std::vector<at::Tensor> averages_;  // future .grad
  std::vector<std::int64_t> seen_;    // non-finite values of the open step
  std::vector<double> amax_;
  std::vector<bool> has_deposit_;
  std::uint64_t micro_batches_ = 0;
  bool fits_ = true;
};

std::unique_ptr<StepExchange> exchange_of(const ReductionSetup& setup, const GradientLayout& layout,
                                          const StepExchange::Extent& extent) {
  transport::ExchangeOptions options;
  options.wait = setup.wait;
  if (!setup.config.shared_memory) options.shared_memory = transport::SharedMemory::avoid;
  return std::make_unique<StepExchange>(setup.ranks, layout, extent, options);
}

}  // namespace

std::vector<GradientReduction::SentBucket> GradientReduction::sent() {
  std::vector<SentBucket> all;
  for (std::size_t b = 0; exchange() != nullptr && b < exchange()->flats().size(); ++b) {
    const auto bytes = static_cast<std::int64_t>(exchange()->flats()[b].nbytes());
    all.push_back({bytes, exchange()->host().times(b)});
  }
  return all;
}

void vote_on_overflow(std::span<const std::int64_t> nonfinite, StepBallot& mine) {
  const bool is_bad = std::ranges::any_of(nonfinite, [](std::int64_t count) { return count > 0; });
  if (is_bad) mine.overflow_ranks = 1;
}

std::int64_t put_in_place(const at::Tensor& gradient, at::Tensor place, double unit) {
  if (place.scalar_type() == at::kFloat && gradient.is_cpu()) {
    const auto factor = static_cast<float>(unit);
    return copy_and_scan(as_reals(gradient).contiguous(), floats_of(place), factor).nonfinite;
  }
  place.copy_(as_reals(gradient).reshape({-1}));
  if (unit != 1) place.mul_(unit);
  return count_nonfinite(place);
}

void DividedNorm::add(at::Tensor place) {
  if (place.scalar_type() == at::kFloat && has_exact_inverse(divisor_)) {
    const auto inverse = static_cast<float>(1 / divisor_);
    squares_ += copy_and_scan(place, floats_of(place), inverse).squares;
  } else {
    place.div_(divisor_);
    others_.push_back(std::move(place));
  }
}

double DividedNorm::norm() const {
  const double plain = std::sqrt(squares_);
  return others_.empty() ? plain : std::hypot(plain, l2_norm(others_));
}

StepExchange::StepExchange(transport::Communicator& ranks, const GradientLayout& layout,
                           const Extent& extent, const transport::ExchangeOptions& options) {
  std::vector<BucketSpec> specs;
  for (const GradientBucket& bucket : layout.buckets) specs.push_back(spec_of(bucket));
  specs.push_back(numbers<float>(extent.counts, transport::sum_f32()));
  if (extent.magnitudes > 0) {
    specs.push_back(numbers<double>(extent.magnitudes, transport::max_f64()));
  }
  specs.push_back({sizeof(StepBallot), transport::merging<StepBallot>()});
  bookkeeping_ = specs.size() - layout.buckets.size();
  auto made = transport::BucketExchange::create(ranks, std::move(specs), options);
  require(made.status(), "gradient buckets");
  exchange_ = std::move(*made);
  const torch::NoGradGuard no_grad;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    flats_.push_back(tensor_of(*exchange_, b, layout.buckets[b]));
  }
  counts_ = as_numbers<float>(exchange_->buffer(flats_.size()));
  if (extent.magnitudes > 0) {
    magnitudes_ = as_numbers<double>(exchange_->buffer(flats_.size() + 1));
  }
  ballot_ = exchange_->buffer(flats_.size() + bookkeeping_ - 1);
}

void StepExchange::start(std::size_t bucket) {
  require(exchange_->start(bucket), "gradient reduction");
}

void StepExchange::advance() {
  require(exchange_->advance(), "gradient reduction");
}

StepBallot StepExchange::merge(const StepBallot& mine, const std::function<void()>& pump) {
  StepBallot merged = mine;
  std::memcpy(ballot_.data(), &merged, sizeof(merged));
  for (std::size_t b = 0; b < bookkeeping_; ++b) {
    require(exchange_->start(flats_.size() + b), "step reduction");
  }
  require(exchange_->wait_all(pump), "step reduction");
  std::memcpy(&merged, ballot_.data(), sizeof(merged));
  return merged;
}

// Makes gradients dense, as buckets do with several ranks.
double LocalReduction::hand_back(double total, double loss_scale) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& p : parameters_) {
    if (p.grad().defined()) p.mutable_grad() = dense(p.grad());
  }
  const std::vector<at::Tensor> gradients = gradients_of(parameters_);
  const double unit = std::exchange(unit_, 0.0);
  const double divisor = unit > 0 ? total / unit * loss_scale : 1;
  if (divisor != 1 && !gradients.empty()) at::_foreach_div_(gradients, divisor);
  return l2_norm(gradients);
}

// Called only in a step that went wrong, after the division, which keeps non-finite values.
const std::vector<std::int64_t>& LocalReduction::nonfinite() const {
  nonfinite_.clear();
  for (const at::Tensor& p : parameters_) nonfinite_.push_back(count_nonfinite(p.grad()));
  return nonfinite_;
}

std::int64_t numbers_in(const at::Tensor& parameter) {
  return parameter.numel() * (parameter.is_complex() ? 2 : 1);
}

GradientMark mark_of(const at::Tensor& gradient) {
  if (!gradient.defined()) return {};
  return {gradient.unsafeGetTensorImpl(), static_cast<std::uint32_t>(gradient._version())};
}

std::vector<ParameterForm> forms_of(const std::vector<at::Tensor>& parameters) {
  std::vector<ParameterForm> forms;
  for (const at::Tensor& p : parameters)
    forms.push_back({p.sizes().vec(), p.scalar_type(), p.device()});
  return forms;
}

bool have_forms(const std::vector<at::Tensor>& parameters,
                const std::vector<ParameterForm>& forms) {
  return std::ranges::equal(forms, parameters, [](const ParameterForm& form, const at::Tensor& p) {
    return form.fits(p);
  });
}

Status check_types(const std::vector<at::Tensor>& parameters) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::ScalarType type = parameters[p].scalar_type();
    const bool has_mean = c10::isFloatingType(type) || c10::isComplexType(type);
    if (!parameters[p].requires_grad() || (has_mean && !parameters[p].is_quantized())) continue;
    return invalid_argument(
        "gradients: expected parameters of real or complex floating point, ", "found parameter ", p,
        " in ", c10::toString(type),
        "; gradients of this type cannot be averaged over ranks: freeze or convert the parameter");
  }
  return ok_status();
}

std::vector<bool> required_of(const std::vector<at::Tensor>& parameters) {
  std::vector<bool> required;
  for (const at::Tensor& p : parameters) required.push_back(p.requires_grad());
  return required;
}

std::vector<GradientShape> shapes_of(const std::vector<at::Tensor>& parameters,
                                     const std::vector<bool>& needed, bool reproducible) {
  std::vector<GradientShape> shapes;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto number = c10::toRealValueType(parameters[p].scalar_type());
    const bool is_double = reproducible || number == at::kDouble;
    const auto type = is_double ? BucketType::fp64 : BucketType::fp32;
    shapes.push_back({numbers_in(parameters[p]), type, needed[p]});
  }
  return shapes;
}

std::unique_ptr<GradientReduction> make_reduction(const ReductionSetup& setup,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  GradientHabits& habits) {
  require(check_types(parameters), Error::Scope::all_ranks);
  const std::size_t count = parameters.size();
  const bool is_exact = setup.config.reproducible;
  if (!is_exact && setup.ranks.size() == 1) return std::make_unique<LocalReduction>(parameters);
  const std::vector<GradientShape> shapes = shapes_of(parameters, needed, is_exact);
  SharedBuckets buckets{parameters, lay_out(shapes, choice.order, choice.sizes), nullptr, habits};
  if (is_exact) {
    require(check_exact(parameters), Error::Scope::all_ranks);
    buckets.exchange = exchange_of(setup, buckets.layout, {count + 1, count});
    return std::make_unique<ExactReduction>(std::move(buckets));
  }
  const c10::Device device = common_device(parameters, needed);
  if (device.is_cpu()) {
    buckets.exchange = exchange_of(setup, buckets.layout, {count, 0});
    return std::make_unique<OverlappedReduction>(std::move(buckets));
  }
  const auto& link = setup.devices.open(setup.ranks, device, setup.wait);
  // No sizes are tried over NCCL; these are the usual ones there.
  if (link.ok() && setup.config.bucket_bytes == 0)
    buckets.layout = lay_out(shapes, choice.order, BucketSizes{});
  buckets.exchange = exchange_of(setup, link.ok() ? GradientLayout{} : buckets.layout, {count, 0});
  return make_device_reduction(setup, std::move(buckets));
}

}  // namespace cox::detail
