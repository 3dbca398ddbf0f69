// FlatBuckets: gradients of many parameters laid end to end in few contiguous buffers (fp64 for
// fp64 parameters, else fp32), so that averaging is a handful of large operations. The layout
// depends on shapes alone, so it is the same on all ranks. Behind the gradients of the first bucket
// stands one number per parameter, 1 where this rank has a gradient: their sums tell which
// parameters got none anywhere. Owned by a Reducer; training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace cox::detail {

struct BucketEntry {
  std::size_t parameter = 0;  // index in the list given to FlatBuckets
  std::int64_t offset = 0;    // in elements of the bucket
};

struct Bucket {
  at::Tensor flat;            // 1-D, contiguous, on the CPU or the parameters' device
  std::int64_t elements = 0;  // of gradients; what follows them is bookkeeping
  std::vector<BucketEntry> entries;

  at::Tensor gradients() const { return flat.narrow(0, 0, elements); }
};

class FlatBuckets {
 public:
  static constexpr std::int64_t kBucketBytes = 25 << 20;

  explicit FlatBuckets(std::vector<at::Tensor> parameters);

  // Copies every .grad times `factor` into its place; a parameter without one contributes zeros.
  void fill(double factor);
  // After the buckets were summed over ranks: divides the gradients by `total`.
  void divide(double total);
  // Points .grad of every parameter at its place: a view, or a converted copy where types differ.
  // Parameters that had no gradient on any rank get none.
  void hand_back();

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  void place(std::size_t parameter);
  at::Tensor presence() const;

  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> buckets_;
};

}  // namespace cox::detail
