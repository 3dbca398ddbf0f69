// DeviceReduction averages gradients that lie on one device over an exchange that adds up host
// memory. Gradients are gathered on the device, cross once each way, in buckets, and .grad becomes
// a view of the bucket on the device:
//
//   .grad --> bucket on the device --> pinned memory --> exchange (sum) --> pinned --> bucket, .grad
//
// The host waits once a step, in flush(), until this rank's gradients have come; all else is given
// to the current stream and not waited for. Sums, norm and counts are those of the CPU's path
// (OverlappedReduction), bit for bit, because they are taken in host memory. Autograd computes the
// gradients of a device in a thread of its own, which does not communicate: they are gathered at
// the end of backward. Training thread.
#pragma once

#include <memory>
#include <vector>

#include "sdk/src/parallel/gradient_reduction.h"

namespace cox::detail {

// Returns the one device of all parameters that have a place in a bucket; the CPU where there are
// several.
c10::Device common_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<bool>& needed);

// REQUIRES: common_device() of the parameters is no CPU. `parameters` must outlive it.
std::unique_ptr<GradientReduction> make_device_reduction(const std::vector<at::Tensor>& parameters,
                                                         GradientLayout layout,
                                                         std::unique_ptr<StepExchange> exchange,
                                                         const transport::WaitPolicy& wait);

}  // namespace cox::detail
