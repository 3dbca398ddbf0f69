// DeviceReduction averages gradients that lie on one device. They are gathered in buckets there,
// and .grad becomes a view of the bucket. The buckets are summed in one of two ways:
//
//   .grad --> bucket -- NCCL, on a stream of its own --> bucket, .grad
//   .grad --> bucket --> pinned memory --> exchange in host memory --> pinned --> bucket, .grad
//
// Over NCCL the host waits for no sum: they run on the device behind the gradients, and what the
// training stream is given next runs behind them. Which order NCCL adds ranks up in is its own
// choice. Through host memory the host waits once a step, in flush(), until this rank's gradients
// have come; sums, norm and counts are then those of the CPU's path (OverlappedReduction), bit for
// bit. In both, the step's ballot goes through host memory.
//
// Autograd computes the gradients of a device in a thread of its own, which does not communicate:
// they are gathered at the end of backward. Training thread.
#pragma once

#include <memory>
#include <vector>

#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {

// Returns the one device of all parameters that have a place in a bucket; the CPU where there are
// several.
c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed);

// `exchange` has the buckets of `layout`, or none where setup.devices is open: then they go over
// NCCL. Collective. Throws cox::Error. REQUIRES: common_device() of the parameters is no CPU, and
// `parameters` outlive it.
std::unique_ptr<GradientReduction> make_device_reduction(const ReductionSetup& setup,
                                                         const std::vector<at::Tensor>& parameters,
                                                         GradientLayout layout,
                                                         std::unique_ptr<StepExchange> exchange);

}  // namespace cox::detail
