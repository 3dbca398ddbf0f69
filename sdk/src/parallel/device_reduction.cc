// GatheredReduction averages gradients on one device. Buckets on the device gather the gradients,
// and .grad becomes a view of the bucket. The buckets are summed in one of two ways:
//
//   .grad --> bucket -- NCCL, on a stream of its own --> bucket, .grad
//   .grad --> bucket --> pinned memory --> exchange in host memory --> pinned --> bucket, .grad
//
// Over NCCL a bucket starts in the backward pass, once its gradients and the buckets before it are
// complete. The training stream fills the bucket right after its last gradient; NCCL's stream sums
// it beside the rest of the backward pass. The host waits for no sum. The training stream waits for
// none before the step's ballot, so a sum that never ends blocks only other sums. NCCL chooses the
// order of ranks in a sum.
//
// Through host memory, buckets start at the end of backward. The host waits once a step, in
// flush(), for this rank's gradients. Sums, norm and counts are those of the CPU's path
// (OverlappedReduction), bit for bit. In both ways the step's ballot goes through host memory.
//
// Autograd computes a device's gradients in its own thread, while the training thread waits for it.
// Autograd's thread calls NCCL and the device; only the training thread calls MPI.
#include <c10/core/Event.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "coordinator/transport/nccl/device_exchange.h"
#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {
namespace {

// Returns the exchange that sums the buckets over NCCL. Collective. Throws cox::Error.
std::unique_ptr<transport::DeviceExchange> sums_over(const ReductionSetup& setup,
                                                     const std::vector<at::Tensor>& buckets,
                                                     const DeviceLink::Ends& ends) {
  std::vector<transport::DeviceBucket> addresses;
  for (const at::Tensor& bucket : buckets) {
    const bool is_double = bucket.scalar_type() == at::kDouble;
    addresses.push_back(
        {bucket.mutable_data_ptr(), static_cast<std::size_t>(bucket.numel()),
         is_double ? transport::nccl::Type::float64 : transport::nccl::Type::float32});
  }
  transport::DeviceExchangeOptions options;
  options.wait = setup.wait;
  options.limit = std::chrono::duration_cast<std::chrono::nanoseconds>(setup.nccl_limit);
  auto made = transport::DeviceExchange::create(setup.ranks, ends.group, ends.lane,
                                                std::move(addresses), options);
  require(made.status(), "gradient buckets over NCCL");
  return *std::move(made);
}

std::vector<at::Tensor> zeros_on_device(const std::vector<at::Tensor>& parameters,
                                        const GradientLayout& layout) {
  std::vector<at::Tensor> buckets;
  for (const GradientBucket& laid : layout.buckets) {
    const auto type = laid.type == BucketType::fp64 ? at::kDouble : at::kFloat;
    const at::Device device = parameters[laid.parameters.front()].device();
    buckets.push_back(at::zeros({laid.elements}, at::TensorOptions(device).dtype(type)));
  }
  return buckets;
}

// GatheredReduction has the common parts of the two ways: the buckets on the device.
class GatheredReduction : public GradientReduction {
 public:
  explicit GatheredReduction(SharedBuckets its)
      : parameters_(its.parameters),
        layout_(std::move(its.layout)),
        exchange_(std::move(its.exchange)),
        habits_(its.habits),
        buckets_(zeros_on_device(parameters_, layout_)),
        views_(parameters_, layout_, buckets_),
        nonfinite_(parameters_.size()) {}

  void begin(const MicroBatchFacts& facts) override { facts_ = facts; }
  void end() override {
    if (facts_.which == MicroBatch::last) gather();
  }

  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    vote_on_overflow(nonfinite_, mine);
    const StepBallot merged = exchange_->merge(mine, pump);
    filled_ = gathered_ = 0;
    facts_ = {};
    return merged;
  }

  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }
  StepExchange* exchange() override { return exchange_.get(); }

 protected:
  // Starts a bucket, which holds this rank's part.
  virtual void set_out(std::size_t bucket) = 0;

  // Fills the buckets before `end` with this rank's gradients, and starts each. After an exception
  // (the device's memory is full), the next call begins with the failed bucket: all ranks count on
  // every bucket of a step, even of a repeated one.
  void gather(std::size_t end) {
    const torch::NoGradGuard no_grad;
    if (gathered_ == 0) habits_.order.clear();
    for (; gathered_ < end; ++gathered_) {
      for (; filled_ <= gathered_; ++filled_) fill(layout_.buckets[filled_].parameters);
      set_out(gathered_);
    }
  }

  void gather() { gather(buckets_.size()); }
  std::size_t gathered() const { return gathered_; }

  // Makes .grad the contents of the buckets.
  void take_gradients() {
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!views_.places[p].defined()) continue;
      parameters_[p].mutable_grad() = has_gradient(p) ? views_.gradient(p) : at::Tensor();
    }
  }

  bool has_gradient(std::size_t p) const {
    return views_.places[p].defined() && exchange_->counts()[p] != 0;
  }
  c10::Stream current_stream() const {
    const at::Device device = buckets_.front().device();
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }
  at::Tensor part_of(const at::Tensor& flat, std::size_t parameter) const {
    return flat.narrow(0, layout_.places[parameter].offset, numbers_in(parameters_[parameter]));
  }

  const std::vector<at::Tensor>& parameters_;
  const GradientLayout layout_;
  const std::unique_ptr<StepExchange> exchange_;
  GradientHabits& habits_;
  const std::vector<at::Tensor> buckets_;
  const BucketViews views_;
  mutable std::vector<std::int64_t> nonfinite_;
  MicroBatchFacts facts_;

 private:
  void fill(const std::vector<std::size_t>& parameters) {
    std::vector<at::Tensor> to;
    std::vector<at::Tensor> from;
    std::vector<at::Tensor> missing;
    std::vector<std::uint32_t> found;
    for (const std::size_t p : parameters) {
      const at::Tensor& grad = parameters_[p].grad();
      exchange_->counts()[p] = grad.defined() ? 1 : 0;
      if (!grad.defined()) {
        missing.push_back(views_.places[p]);
        continue;
      }
      found.push_back(static_cast<std::uint32_t>(p));
      to.push_back(views_.shaped[p]);
      from.push_back(dense(grad));
    }
    if (!missing.empty()) at::_foreach_zero_(missing);
    if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
    if (!to.empty() && facts_.unit != 1) at::_foreach_mul_(to, facts_.unit);
    for (const std::uint32_t p : found) {
      if (!views_.fits(p)) continue;
      at::Tensor& grad = parameters_[p].mutable_grad();
      // The gradient may be of another stream, which must not reuse its memory before the copy.
      if (grad.layout() == at::kStrided) grad.record_stream(current_stream());
      grad = views_.shaped[p];
    }
    habits_.order.insert(habits_.order.end(), found.begin(), found.end());
  }

  // Buckets of the open step.
  std::size_t filled_ = 0;
  std::size_t gathered_ = 0;  // started buckets
};

class StagedReduction final : public GatheredReduction {
 public:
  StagedReduction(const ReductionSetup& setup, SharedBuckets its)
      : GatheredReduction(std::move(its)), wait_(setup.wait) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      staged_.push_back({at::zeros_like(exchange_->flats()[b]).pin_memory(),
                         c10::Event(buckets_[b].device().type())});
    }
  }

  void flush() override {
    gather();
    for (; next_ < buckets_.size(); ++next_) {
      wait_for(staged_[next_]);
      send(next_);
    }
  }

  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    next_ = 0;
    return GatheredReduction::merge(mine, pump);
  }

  double hand_back(double total, double loss_scale) override {
    const torch::NoGradGuard no_grad;
    const double norm = divide(total * loss_scale);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      staged_[b].host.copy_(exchange_->flats()[b]);
      buckets_[b].copy_(staged_[b].host, /*non_blocking=*/true);
    }
    take_gradients();
    return norm;
  }

 private:
  struct Staged {
    at::Tensor host;  // pinned; of a bucket
    c10::Event came;  // recorded when `host` holds this rank's part
  };

  void set_out(std::size_t b) override {
    const at::Device device = buckets_[b].device();
    staged_[b].host.copy_(buckets_[b], /*non_blocking=*/true);
    staged_[b].came.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }

  void wait_for(const Staged& staged) const {
    transport::Waiter waiter(wait_);
    while (!staged.came.query()) require(waiter.pause(), "gradients from the device");
  }

  // Forwards the arrived part, and counts non-finite values.
  void send(std::size_t b) {
    for (const std::size_t p : layout_.buckets[b].parameters) {
      nonfinite_[p] =
          put_in_place(part_of(staged_[b].host, p), part_of(exchange_->flats()[b], p), 1);
    }
    exchange_->start(b);
    exchange_->advance();
  }

  // Divides the sums in the exchange; returns the norm, in the parameters' order.
  double divide(double divisor) {
    DividedNorm divided(divisor);
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (has_gradient(p)) divided.add(part_of(exchange_->flats()[layout_.places[p].bucket], p));
    }
    return divided.norm();
  }

  const transport::WaitPolicy wait_;
  std::vector<Staged> staged_;
  std::size_t next_ = 0;  // next bucket to forward
};

class NcclReduction final : public GatheredReduction {
 public:
  NcclReduction(const ReductionSetup& setup, SharedBuckets its, const DeviceLink::Ends& ends)
      : GatheredReduction(std::move(its)),
        group_(ends.group),
        sums_(sums_over(setup, buckets_, ends)),
        let_others_first_(setup.let_others_first),
        marks_(parameters_.size()),
        own_magnitudes_(buckets_.size()) {}

  // Leaks memory that an unfinished group may still write to.
  ~NcclReduction() override {
    sums_.reset();
    if (group_->may_still_write()) static_cast<void>(new std::vector<at::Tensor>(buckets_));
  }

  void begin(const MicroBatchFacts& facts) override {
    GatheredReduction::begin(facts);
    if (facts.which != MicroBatch::last) return;
    let_others_first();
    const std::lock_guard lock(mutex_);
    stream_ = current_stream();
    arrivals_.emplace(layout_);
    waits_for_end_ = habits_.come_again;
  }

  // Gradients of another stream than the caller's are ordered for the caller only after backward
  // has returned. From the first such gradient on, buckets wait for the return.
  void ready(std::size_t p) override {
    const std::lock_guard lock(mutex_);
    if (!arrivals_ || !views_.places[p].defined()) return;
    if (!parameters_[p].grad().defined()) return;  // a program's own function returned none
    if (!arrivals_->expects(p)) return look_again(p);
    arrivals_->note(p);
    marks_[p] = mark_of(parameters_[p].grad());
    if (current_stream() != stream_) waits_for_end_ = true;
    if (waits_for_end_) return;
    gather(arrivals_->complete_from(gathered()));
    need(sums_->advance());
  }

  void end() override {
    close_pass();
    GatheredReduction::end();
  }

  void flush() override {
    close_pass();
    let_others_first();
    gather();
    need(sums_->advance());
  }
  void send_off() override { need(sums_->send_off()); }

  // Merges the ballot first: ranks that differ learn so before they wait for each other's sums. The
  // host waits for the training stream only after the sums have arrived, because a sum that never
  // ends would block the stream for ever.
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override {
    std::ranges::fill(nonfinite_, 0);  // figures of an earlier step are no vote on this one
    if (std::exchange(is_torn_, false)) mine.repeat_max = 1;
    const StepBallot merged = GatheredReduction::merge(mine, [&] {
      static_cast<void>(sums_->advance());  // an error stays until wait_all()
      if (pump) pump();
    });
    try {
      require(sums_->wait_all(pump), kSums);
      const auto look = [&] {
        if (pump) pump();
        return exchange_->host().advance();  // NCCL does not report a failed rank
      };
      require(sums_->wait_for_device(look), kSums);
    } catch (const std::exception& error) {
      sums_->leave(first_line(error.what()));  // the step has no averages
      throw;
    }
    done_ = std::chrono::steady_clock::now();
    return merged;
  }

  double hand_back(double total, double loss_scale) override {
    return l2_norm(take_averages(total * loss_scale));
  }
  LateNorm hand_back_unseen(double total, double loss_scale) override {
    return LateNorm::of(take_averages(total * loss_scale));
  }

  // Called only in a step that went wrong; then reads the figures that gather() left on the device.
  // The figures show only whether a gradient was finite, not how many values were not.
  const std::vector<std::int64_t>& nonfinite() const override {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!own_magnitudes_[b].defined()) continue;
      const at::Tensor here = own_magnitudes_[b].to(at::kCPU, at::kDouble);
      const auto* magnitude = here.const_data_ptr<double>();
      for (const std::size_t p : layout_.buckets[b].parameters) {
        if (has_elements(p)) nonfinite_[p] = std::isfinite(*magnitude++) ? 0 : 1;
      }
    }
    return nonfinite_;
  }

  void leave(const std::string& why) override {
    close_pass();
    GatheredReduction::leave(why);
    sums_->leave(why);
  }
  const char* path() override { return sums_->path(); }
  // The host learns of all sums of a step at once.
  std::vector<SentBucket> sent() override {
    std::vector<SentBucket> all;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      all.push_back(
          {static_cast<std::int64_t>(buckets_[b].nbytes()), {sums_->times(b).started, done_, {}}});
    }
    return all;
  }

 private:
  static constexpr const char* kSums = "gradient reduction over NCCL";

  bool has_elements(std::size_t p) const { return views_.places[p].numel() > 0; }

  // Makes .grad the divided sums; returns them, each 1-D.
  std::vector<at::Tensor> take_averages(double divisor) {
    const torch::NoGradGuard no_grad;
    at::_foreach_div_(buckets_, divisor);
    std::vector<at::Tensor> averages;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (has_gradient(p)) averages.push_back(views_.places[p]);
    }
    take_gradients();
    return averages;
  }

  // Throws, because an average that failed must not be trained on, and sums that never end hold the
  // training stream.
  void need(const Status& status) {
    if (status.ok()) return;
    sums_->leave(status.message());
    require(status, kSums);
  }

  void set_out(std::size_t b) override {
    std::vector<at::Tensor> parts;
    for (const std::size_t p : layout_.buckets[b].parameters) {
      marks_[p] = mark_of(parameters_[p].grad());
      if (has_elements(p)) parts.push_back(views_.places[p]);
    }
    if (!parts.empty()) {
      own_magnitudes_[b] =
          at::stack(at::_foreach_norm(parts, std::numeric_limits<double>::infinity()));
    }
    need(sums_->start(b));
  }

  // May call other ranks, so never runs in autograd's thread.
  void let_others_first() const {
    if (let_others_first_) let_others_first_();
  }

  // Autograd's thread may still be in ready() after another thread's exception ended backward.
  void close_pass() {
    const std::lock_guard lock(mutex_);
    arrivals_.reset();
  }

  // A nested backward pass calls a parameter's hook more than once. If the gradient changed after
  // its bucket had started, the sum lacks a part, and the step is repeated. From now on buckets
  // wait for the end of backward.
  void look_again(std::size_t parameter) {
    if (mark_of(parameters_[parameter].grad()) == marks_[parameter]) return;
    is_torn_ = is_torn_ || layout_.places[parameter].bucket < gathered();
    waits_for_end_ = habits_.come_again = true;
  }

  std::mutex mutex_;
  std::optional<MissingGradients> arrivals_;  // while buckets start in a backward pass
  std::optional<c10::Stream> stream_;         // the caller's, in the open pass
  bool waits_for_end_ = false;                // no more buckets start in the open pass
  bool is_torn_ = false;                      // the open step's sums are invalid
  const std::shared_ptr<transport::NcclGroup> group_;
  std::unique_ptr<transport::DeviceExchange> sums_;
  const std::function<void()> let_others_first_;
  std::vector<GradientMark> marks_;  // by parameter, at its arrival and at its bucket's start
  std::chrono::steady_clock::time_point done_{};  // the last step's sums
  // By bucket: magnitudes of its parameters with elements, before the sum.
  std::vector<at::Tensor> own_magnitudes_;
};

}  // namespace

c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed) {
  std::optional<c10::Device> common;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!needed[p]) continue;
    if (common && *common != parameters[p].device()) return at::kCPU;
    common = parameters[p].device();
  }
  return common.value_or(at::kCPU);
}

std::unique_ptr<GradientReduction> make_device_reduction(const ReductionSetup& setup,
                                                         SharedBuckets buckets) {
  const c10::Device device = common_device(buckets.parameters, required_of(buckets.parameters));
  const auto& link = setup.devices.open(setup.ranks, device, setup.wait);
  if (!link.ok()) return std::make_unique<StagedReduction>(setup, std::move(buckets));
  return std::make_unique<NcclReduction>(setup, std::move(buckets), *link);
}

}  // namespace cox::detail
