#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {
namespace {

// Returns a bucket's memory in the shape of the gradient placed there.
at::Tensor shaped_as(const at::Tensor& parameter, const at::Tensor& place) {
  if (!parameter.is_complex()) return place.view(parameter.sizes());
  std::vector<std::int64_t> sizes = parameter.sizes().vec();
  sizes.push_back(2);
  return at::view_as_complex(place.view(sizes));
}

}  // namespace

BucketViews::BucketViews(const std::vector<at::Tensor>& its_parameters,
                         const GradientLayout& layout, const std::vector<at::Tensor>& flats)
    : parameters(its_parameters), places(parameters.size()), shaped(parameters.size()) {
  const at::NoGradGuard no_grad;
  // Hides views from autograd: zero_grad() of torch::optim refuses to detach views.
  const at::AutoDispatchBelowADInplaceOrView untracked;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto [bucket, offset] = layout.places[p];
    if (bucket == BucketPlace::kNowhere) continue;
    places[p] = flats[bucket].narrow(0, offset, numbers_in(parameters[p]));
    shape(p);
  }
}

void BucketViews::shape(std::size_t parameter) {
  const at::Tensor& place = places[parameter];
  const at::Tensor apart = at::from_blob(
      place.mutable_data_ptr(), place.sizes(), [kept = place](void*) {}, place.options());
  shaped[parameter] = shaped_as(parameters[parameter], apart);
}

void BucketViews::let_go(std::size_t parameter) {
  const at::Tensor& gradient = shaped[parameter];
  if (parameters[parameter].grad().is_same(gradient)) return;  // autograd added in place
  if (gradient.use_count() == 1 && gradient.storage().use_count() == 1) return;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView untracked;
  at::Tensor copy = places[parameter].clone();
  gradient.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      copy.storage().set_data_ptr(at::DataPtr(nullptr, copy.device())));
  shape(parameter);
}

bool BucketViews::fits(std::size_t parameter) const {
  const at::Tensor& place = places[parameter];
  return place.defined() && place.device() == parameters[parameter].device() &&
         shaped[parameter].scalar_type() == parameters[parameter].scalar_type();
}

at::Tensor BucketViews::gradient(std::size_t parameter) const {
  const at::Tensor& place = shaped[parameter];
  return fits(parameter) ? place : place.to(parameters[parameter].options());
}

}  // namespace cox::detail
