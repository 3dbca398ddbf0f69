#include "sdk/src/precision/unscale.h"

#include <torch/torch.h>

#include <map>
#include <utility>

#include "coxswain/error.h"

namespace cox::detail {
namespace {

Error refused(std::size_t index, const at::Tensor& parameter, const std::string& found,
              const std::string& advice) {
  return Error(invalid_argument("LossScaler: expected dense gradients in fp32, found a " + found +
                                " gradient (parameter " + std::to_string(index) + ", shape " +
                                c10::str(parameter.sizes()) + "); " + advice));
}

}  // namespace

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided) {
      throw refused(i, parameters[i], "sparse", "use a dense embedding");
    }
    if (gradient.scalar_type() == at::kHalf) {
      throw refused(i, parameters[i], "fp16",
                    "keep parameters in fp32 and compute under cox::PrecisionScope, or use "
                    "cox::MasterWeights");
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

FoundInf unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& inverse_scale) {
  const at::NoGradGuard no_grad;
  using Place = std::pair<at::DeviceType, at::DeviceIndex>;
  std::map<Place, std::map<at::ScalarType, std::vector<at::Tensor>>> lists;
  for (const at::Tensor& gradient : gradients) {
    const at::Device device = gradient.device();
    lists[{device.type(), device.index()}][gradient.scalar_type()].push_back(gradient);
  }
  FoundInf found;
  for (auto& [place, by_type] : lists) {
    const auto options = at::TensorOptions(at::Device(place.first, place.second)).dtype(at::kFloat);
    at::Tensor found_here = at::zeros({}, options);
    const at::Tensor inverse = inverse_scale.to(options.device(), /*non_blocking=*/true);
    for (auto& [type, list] : by_type) {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found_here, inverse);
    }
    found.push_back(found_here);
  }
  return found;
}

bool any_found(const FoundInf& found) {
  bool any = false;
  for (const at::Tensor& one : found) any = one.item<float>() != 0 || any;
  return any;
}

}  // namespace cox::detail
