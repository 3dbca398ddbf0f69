// Dividing scaled gradients by the loss scale and noting whether all are finite, in one pass over
// each device's gradients, without reading the device. Pure but for the gradients; training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace cox::detail {

// The gradients that exist. Throws cox::Error for fp16 and sparse ones.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// One float32 element a device, on it: 0, or 1 when a gradient there is not finite.
using FoundInf = std::vector<at::Tensor>;

// Multiplies in place by `inverse_scale`: float32, one element; copied to each device.
FoundInf unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& inverse_scale);

// Reads the devices.
bool any_found(const FoundInf& found);

}  // namespace cox::detail
