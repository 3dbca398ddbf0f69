// TensorScan is what one look at a tensor tells about its values: how many are not finite, the
// largest of the others, and how many fp16 would lose. Two passes of every step use it: the one
// over the boundaries of blocks (scan) and the one over gradients (scan_gradient, copy_and_scan).
// fp32, bf16 and fp16 on the CPU have loops of their own, near the speed of memory (scan_loops.h);
// everything else goes through torch, on a device without waiting for it: the figures stay there
// until read_scans() reads those of many tensors at once. There the cheap look is one pass of one
// kernel, which tells whether values are not finite, not how many. A scan changes nothing that it
// looks at and keeps nothing. Any thread may call any function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sdk/src/device/transfer.h"

namespace cox::detail {

struct TensorScan {
  std::int64_t values = 0;  // looked at
  // NaN or infinite; of an extent without loops of its own 1 where there are some.
  std::int64_t nonfinite = 0;
  std::int64_t tiny = 0;  // not 0, magnitude below 2^-14: fp16 has few or no digits for it
  std::int64_t zeros = 0;
  // Largest finite magnitude; that of fp64 is rounded to fp32. Of such an extent 0 where values are
  // not finite.
  float amax = 0;

  TensorScan& operator+=(const TensorScan& other);
};

enum class ScanKind {
  extent,  // values, nonfinite and amax: the cheap look
  small,   // also tiny and zeros
};

// A scan that may still be on its way.
struct PendingScan {
  TensorScan scan;
  at::Tensor on_device;  // undefined: `scan` is complete; else its figures
};
// One whose figures are read together with those of others.
struct ScanOnDevice {
  PendingScan* pending;
  std::int64_t figures;  // how many
};
// Returns the largest finite magnitude that each of these figures tells, fp64 [figures], on their
// device. REQUIRES: there are some, all on one device.
at::Tensor largest_on_device(const std::vector<at::Tensor>& figures);

// Begins to scan a tensor. Integer, boolean, undefined and empty tensors have nothing to look at.
PendingScan start_scan(const at::Tensor& tensor, ScanKind kind);

// Completes all scans, with one read of each device that has any, however many they are. A scan may
// be named twice, as that of a tensor between two blocks is.
void read_scans(std::span<PendingScan* const> scans);

// PendingRead is a read of many scans that is on its way from their devices, through pinned memory.
// The scans stay where they are until it is finished or gone.
class PendingRead {
 public:
  PendingRead() = default;
  // Lets the figures of all scans set out, those of a device together.
  explicit PendingRead(std::span<PendingScan* const> scans);
  // Completes the scans and returns true once all figures have come. Never waits.
  bool finish();

 private:
  struct Part {
    HostCopy figures;  // of `scans`, one after another
    std::vector<ScanOnDevice> scans;
  };
  std::vector<Part> parts_;
};

// FiniteLook tells which of several tensors hold values that are not finite. Those on devices are
// looked at there, in two kernels or so for all of them, and nobody waits for the answer.
class FiniteLook {
 public:
  // Undefined tensors hold none.
  explicit FiniteLook(std::span<const at::Tensor> tensors);
  // Returns whether the answers are here. Never waits.
  bool finish();
  // Blocks until they are.
  void wait();

  // Returns for each tensor how many of its values are not finite; of one on a device 1 where some
  // are not. REQUIRES: finish() returned true, or wait().
  const std::vector<std::int64_t>& nonfinite() const { return nonfinite_; }
  bool is_bad() const;  // REQUIRES: as nonfinite()

 private:
  struct Part {
    HostCopy magnitudes;  // of `tensors`, each one's largest
    std::vector<std::size_t> tensors;
  };
  void read(const Part& part);

  std::vector<std::int64_t> nonfinite_;
  std::vector<Part> parts_;  // one a device, those that have not come
};

// Begins and completes a scan.
TensorScan scan(const at::Tensor& tensor, ScanKind kind);

// Returns how many of the non-finite values are +infinity or NaN; masks are made of -infinity.
std::int64_t count_unmasked(const at::Tensor& tensor);

struct GradientScan {
  double squares = 0;          // their sum, in an order that depends on the size alone
  std::int64_t nonfinite = 0;  // counted only where `squares` is not finite
};

// Scans a gradient; the number of threads changes no bit. REQUIRES: has_own_loops(gradient).
GradientScan scan_gradient(const at::Tensor& gradient);
// Returns whether the tensor is dense fp32, bf16 or fp16 on the CPU.
bool has_own_loops(const at::Tensor& tensor);

// Writes gradient times factor to `to` and scans what it wrote, in one pass; gradients without
// loops of their own are converted first. REQUIRES: equal sizes, on the CPU.
GradientScan copy_and_scan(const at::Tensor& gradient, std::span<float> to, float factor);

// Returns the tensor, or a dense copy of one that is sparse.
at::Tensor dense(const at::Tensor& tensor);
// Returns the real numbers of a tensor: of a complex one its real and imaginary parts, in a last
// dimension of two and in the same memory (a copy of one that is conjugated lazily). Sums, norms
// and scans of gradients are taken of these. REQUIRES: the tensor is dense.
at::Tensor as_reals(const at::Tensor& tensor);

// Returns the L2 norm over all elements of `tensors`, which is finite exactly if all of them are.
// Undefined tensors count nothing. Neither threads nor the processor's vector width change a bit of
// it where tensors have loops of their own.
double l2_norm(std::span<const at::Tensor> tensors);
// LateNorm is an L2 norm that may still be on its way from a device. Nobody waits for it.
class LateNorm {
 public:
  explicit LateNorm(double known) : known_(known) {}
  // Lets the norm over all elements of `tensors` set out; summed in fp64, since nobody could look
  // at them again where fp32 is too narrow. REQUIRES: they are dense and lie on one device.
  static LateNorm of(const std::vector<at::Tensor>& tensors);

  bool has_come() const { return each_.has_come(); }
  double value() const;  // REQUIRES: has_come()

 private:
  explicit LateNorm(HostCopy each) : each_(std::move(each)) {}
  HostCopy each_;  // the tensors' norms, if there are tensors
  double known_ = 0;
};
// Returns the gradients that `parameters` have, in their order.
std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters);

// Returns how many elements are NaN or infinite.
std::int64_t count_nonfinite(const at::Tensor& tensor);

}  // namespace cox::detail
