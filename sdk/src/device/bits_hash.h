// Hashes of the bits of tensors, by which calibrations, verified recompute and ranks that compare
// their weights tell tensors apart. On the CPU the hash is that of the project's contents; on a
// device a sum is computed there, without moving the tensors. Hashes of equal bits are equal only
// on the same kind of device, and are kept in no file. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// Returns the hash of the tensor's bytes as they lie in memory. REQUIRES: dense, on the CPU.
std::uint64_t bits_hash(const at::Tensor& tensor);

// Returns one int64 on `device`: the bits of each element times an odd number of its place, added
// up modulo 2^64. Any order of adding gives the same, and an element that differs alone always
// shows. Needs 8 bytes of the device for each of `at_once` elements, for a moment. The work goes
// onto the thread's current stream, and nothing waits for it. REQUIRES: tensors are strided, lie on
// `device`, and have elements of 1, 2, 4 or 8 bytes.
at::Tensor bits_hash_on(at::Device device, std::span<const at::Tensor> tensors,
                        std::int64_t at_once = std::int64_t{1} << 22);

}  // namespace cox::detail
