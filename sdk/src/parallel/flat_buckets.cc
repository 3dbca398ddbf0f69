#include "sdk/src/parallel/flat_buckets.h"

#include <torch/torch.h>

namespace cox::detail {
namespace {

at::ScalarType bucket_type(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool fits(const Bucket& bucket, const at::Tensor& parameter) {
  const auto bytes = (bucket.elements + parameter.numel()) * bucket.flat.element_size();
  return bucket.flat.scalar_type() == bucket_type(parameter) &&
         bucket.flat.device() == parameter.device() &&
         (bucket.elements == 0 || static_cast<std::int64_t>(bytes) <= FlatBuckets::kBucketBytes);
}

}  // namespace

FlatBuckets::FlatBuckets(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) place(i);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto bookkeeping = b == 0 ? static_cast<std::int64_t>(parameters_.size()) : 0;
    Bucket& bucket = buckets_[b];
    bucket.flat = at::zeros({bucket.elements + bookkeeping}, bucket.flat.options());
  }
}

void FlatBuckets::place(std::size_t index) {
  const at::Tensor& parameter = parameters_[index];
  if (buckets_.empty() || !fits(buckets_.back(), parameter)) {
    buckets_.emplace_back();
    buckets_.back().flat = at::empty({0}, parameter.options().dtype(bucket_type(parameter)));
  }
  Bucket& bucket = buckets_.back();
  bucket.entries.push_back({index, bucket.elements});
  bucket.elements += parameter.numel();
}

at::Tensor FlatBuckets::presence() const {
  const Bucket& first = buckets_.front();
  return first.flat.narrow(0, first.elements, static_cast<std::int64_t>(parameters_.size()));
}

void FlatBuckets::fill(double factor) {
  const torch::NoGradGuard no_grad;
  at::Tensor present = presence();
  for (Bucket& bucket : buckets_) {
    for (const BucketEntry& entry : bucket.entries) {
      const at::Tensor& parameter = parameters_[entry.parameter];
      at::Tensor place = bucket.flat.narrow(0, entry.offset, parameter.numel());
      const at::Tensor& grad = parameter.grad();
      present[static_cast<std::int64_t>(entry.parameter)].fill_(grad.defined() ? 1 : 0);
      if (grad.defined()) {
        place.copy_(grad.reshape({-1}));
      } else {
        place.zero_();
      }
    }
    if (factor != 1) bucket.gradients().mul_(factor);
  }
}

void FlatBuckets::divide(double total) {
  const torch::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) bucket.gradients().div_(total);
}

void FlatBuckets::hand_back() {
  const torch::NoGradGuard no_grad;
  // Autograd must not see views here: zero_grad() of torch::optim refuses to detach them.
  const at::AutoDispatchBelowADInplaceOrView untracked;
  const at::Tensor present = presence().to(at::kCPU, at::kDouble);
  const auto* counts = present.const_data_ptr<double>();
  for (Bucket& bucket : buckets_) {
    for (const BucketEntry& entry : bucket.entries) {
      at::Tensor& parameter = parameters_[entry.parameter];
      if (counts[entry.parameter] == 0) {
        parameter.mutable_grad().reset();
        continue;
      }
      at::Tensor view =
          bucket.flat.narrow(0, entry.offset, parameter.numel()).view(parameter.sizes());
      parameter.mutable_grad() = view.to(parameter.scalar_type());
    }
  }
}

}  // namespace cox::detail
