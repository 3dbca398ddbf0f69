// A hash of the bits of tensors that lie on a device, computed there: what calibrations, verified
// recompute and ranks that compare their weights look at without moving the tensors. Any thread;
// the work goes onto that thread's current stream, and nothing waits for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace cox::detail {

// Returns one int64 on `device`: the bits of each element times an odd number of its place, added
// up modulo 2^64. Any order of adding gives the same, and an element that differs alone always
// shows. Needs 8 bytes of the device for each of `at_once` elements, for a moment. REQUIRES:
// tensors are strided, lie on `device`, and have elements of 1, 2, 4 or 8 bytes.
at::Tensor bits_hash_on(at::Device device, std::span<const at::Tensor> tensors,
                        std::int64_t at_once = std::int64_t{1} << 22);

}  // namespace cox::detail
