// TensorScan is the result of one pass over a tensor's values: the number of non-finite ones, the
// largest of the others, and the number that fp16 would lose. Two passes of every step use it: over
// the boundaries of blocks (scan) and over gradients (scan_gradient, copy_and_scan). fp32, bf16 and
// fp16 on the CPU have loops near the speed of memory (scan_loops.h); all others go through torch.
// Scans on a device do not wait: their figures stay there until read_scans() reads those of many
// tensors at once. A scan changes and keeps nothing. Any thread may call any function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sdk/src/device/transfer.h"

namespace cox::detail {

struct TensorScan {
  std::int64_t values = 0;  // number of scanned values
  // NaN or infinite. For an extent through torch only 0 or 1: whether there are any.
  std::int64_t nonfinite = 0;
  std::int64_t tiny = 0;  // not 0, magnitude below 2^-14: fp16 has few or no digits for it
  std::int64_t zeros = 0;
  // Largest finite magnitude, rounded to fp32 for fp64. For an extent through torch 0 if any value
  // is non-finite.
  float amax = 0;

  TensorScan& operator+=(const TensorScan& other);
};

enum class ScanKind {
  extent,  // values, nonfinite and amax: the cheap scan, one kernel on a device
  small,   // also tiny and zeros
};

// A scan that may still be on its way.
struct PendingScan {
  TensorScan scan;
  at::Tensor on_device;  // figures on the device; undefined: `scan` is complete
};
// A scan whose figures are read together with others.
struct ScanOnDevice {
  PendingScan* pending;
  std::int64_t figures;  // their number
};
// Returns the largest finite magnitude in each of these figures, fp64 [figures], on their device.
// REQUIRES: there are some, all on one device.
at::Tensor largest_on_device(const std::vector<at::Tensor>& figures);

// Begins to scan a tensor. Integer, boolean, undefined and empty tensors count no values.
PendingScan start_scan(const at::Tensor& tensor, ScanKind kind);

// Completes all scans with one read for each device. A scan may appear twice, such as that of a
// tensor between two blocks.
void read_scans(std::span<PendingScan* const> scans);

// PendingRead reads many scans from their devices, through pinned memory, without a wait. The scans
// keep their addresses until the read is finished or destroyed.
class PendingRead {
 public:
  PendingRead() = default;
  // Starts copying the figures of all scans, those of a device together.
  explicit PendingRead(std::span<PendingScan* const> scans);
  // Completes the scans and returns true once all figures have arrived. Never waits.
  bool finish();

 private:
  struct Part {
    HostCopy figures;  // one of `scans` after another
    std::vector<ScanOnDevice> scans;
  };
  std::vector<Part> parts_;
};

// FiniteLook finds the tensors with non-finite values among several. Tensors on devices are checked
// there, in about two kernels for all, without a wait.
class FiniteLook {
 public:
  // Undefined tensors have no values.
  explicit FiniteLook(std::span<const at::Tensor> tensors);
  // Returns whether the results have arrived. Never waits.
  bool finish();
  // Blocks until the results have arrived.
  void wait();

  // Returns for each tensor the number of non-finite values; for one on a device, 1 if there are
  // any. REQUIRES: finish() returned true, or wait().
  const std::vector<std::int64_t>& nonfinite() const { return nonfinite_; }
  bool is_bad() const;  // REQUIRES: as nonfinite()

 private:
  struct Part {
    HostCopy magnitudes;  // the largest of each of `tensors`
    std::vector<std::size_t> tensors;
  };
  void read(const Part& part);

  std::vector<std::int64_t> nonfinite_;
  std::vector<Part> parts_;  // one for each device, without the arrived ones
};

// Begins and completes a scan.
TensorScan scan(const at::Tensor& tensor, ScanKind kind);

// Returns how many non-finite values are +infinity or NaN; masks consist of -infinity.
std::int64_t count_unmasked(const at::Tensor& tensor);

struct GradientScan {
  double squares = 0;          // sum, in an order that depends on the size alone
  std::int64_t nonfinite = 0;  // counted only if `squares` is not finite
};

// Scans a gradient; the number of threads changes no bit. REQUIRES: has_own_loops(gradient).
GradientScan scan_gradient(const at::Tensor& gradient);
// Returns whether the tensor is dense fp32, bf16 or fp16 on the CPU.
bool has_own_loops(const at::Tensor& tensor);

// Writes gradient times factor to `to` and scans the written values, in one pass. Converts
// gradients without own loops first. REQUIRES: equal sizes, on the CPU.
GradientScan copy_and_scan(const at::Tensor& gradient, std::span<float> to, float factor);

// Returns the tensor, or a dense copy of a sparse one, with the sums that coalesce() makes.
at::Tensor dense(const at::Tensor& tensor);
// Returns the real numbers of a tensor. A complex tensor's real and imaginary parts are in a last
// dimension of two, in the same memory (a copy for a lazily conjugated tensor). Sums, norms and
// scans of gradients use real numbers. REQUIRES: the tensor is dense.
at::Tensor as_reals(const at::Tensor& tensor);

// Returns the L2 norm over all elements of `tensors`, finite exactly if all of them are. Undefined
// tensors count nothing. For tensors with own loops, neither threads nor the processor's vector
// width change a bit.
double l2_norm(std::span<const at::Tensor> tensors);
// LateNorm is an L2 norm that may still be on its way from a device. No caller waits.
class LateNorm {
 public:
  explicit LateNorm(double known) : known_(known) {}
  // Starts computing the norm over all elements of `tensors`, in fp64, because the tensors cannot
  // be read again if fp32 is too narrow. REQUIRES: the tensors are dense and lie on one device.
  static LateNorm of(const std::vector<at::Tensor>& tensors);

  bool has_come() const { return each_.has_come(); }
  double value() const;  // REQUIRES: has_come()

 private:
  explicit LateNorm(HostCopy each) : each_(std::move(each)) {}
  HostCopy each_;  // the tensors' norms, if there are tensors
  double known_ = 0;
};
// Returns the existing gradients of `parameters`, in order.
std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters);

// Returns how many elements are NaN or infinite.
std::int64_t count_nonfinite(const at::Tensor& tensor);

}  // namespace cox::detail
