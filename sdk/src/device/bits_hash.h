// Hashes of tensors' bits, for comparisons by calibrations, verified recompute, and ranks that
// compare weights. On the CPU the hash is the project's content hash; on a device a sum is computed
// there, without moving the tensors. Equal bits have equal hashes only on the same kind of device,
// and no file stores the hashes. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// Returns the hash of the tensor's bytes as they lie in memory. REQUIRES: dense, on the CPU.
std::uint64_t bits_hash(const at::Tensor& tensor);

// Returns one int64 on `device`: the sum modulo 2^64 of each element's bits times an odd number of
// its place. The order of adding does not matter, and a single differing element always shows.
// Needs 8 bytes of the device for each of `at_once` elements, for a moment. The work goes onto the
// thread's current stream, and nothing waits. REQUIRES: tensors are strided, lie on `device`, and
// have elements of 1, 2, 4 or 8 bytes.
at::Tensor bits_hash_on(at::Device device, std::span<const at::Tensor> tensors,
                        std::int64_t at_once = std::int64_t{1} << 22);

}  // namespace cox::detail
