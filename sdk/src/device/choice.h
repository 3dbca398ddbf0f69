// Chooses the device that a rank trains on. Done once, when a session starts, before any other
// query for CUDA, because LibTorch remembers the first answer:
//
//   CUDA's runtime -- how many devices? --> find_cuda() --> choose_device() --> Session::device()
//
// Needs no header of CUDA: the runtime comes with LibTorch and is called by name; all else goes
// through c10's virtual device interface. A program is the same on machines with and without a
// driver. Training thread only.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "coordinator/core/settings/run.h"
#include "coordinator/core/status.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

struct CudaFacts {
  std::int32_t devices = 0;    // usable by the process (CUDA_VISIBLE_DEVICES)
  std::string why_none{};      // empty if there are any
  std::string why_unusable{};  // there are some, but LibTorch's CUDA library did not load
};

// Asks the runtime for devices. If there are any, loads LibTorch's CUDA library from LibTorch's own
// folder, unless it is linked (some 200 MB of memory). `why_unusable` has the error of loading.
CudaFacts find_cuda();

// Returns the device of the node's rank number `rank_on_node`: device `rank_on_node` modulo the
// number of devices, or the CPU. If a launcher shows every rank its own device, the number is 0 on
// each. failed_precondition for DeviceSetting::cuda without a device. Pure.
Result<c10::Device> choose_device(DeviceSetting setting, const CudaFacts& facts,
                                  std::int32_t rank_on_node);

// Returns the device's address on the PCI bus, "0000:3b:00.0". The address distinguishes ranks that
// share a device from ranks that see one each. Parts of one GPU (MIG) have one address. Empty for
// the CPU, and if CUDA's runtime has no answer.
std::string device_address(c10::Device device);

// Returns the device of a model's parameters; the CPU only if all are there.
c10::Device device_of(const torch::nn::Module& model);

// Waits for all work of the calling thread's current stream; for measurements. Does not wait for
// other streams, because the lane of masks may have work that ends only when this host votes. No
// wait on the CPU.
void wait_for_current_stream(c10::Device device);

// Makes `device` the calling thread's current one, for tensors made "on CUDA".
void make_current(c10::Device device);

}  // namespace cox::detail
