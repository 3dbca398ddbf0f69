// Which device a rank trains on. Chosen once, when a session starts, before anything else asks
// LibTorch whether there is CUDA (it remembers the first answer):
//
//   CUDA's runtime -- how many devices? --> find_cuda() --> choose_device() --> Session::device()
//
// No header of CUDA is needed: the runtime comes with LibTorch and is asked by name, and all else
// goes through c10's virtual device interface. A program is the same on machines with a driver and
// without one. Training thread only.
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
  std::int32_t devices = 0;    // that this process may use (CUDA_VISIBLE_DEVICES)
  std::string why_none{};      // empty where there are some
  std::string why_unusable{};  // there are some, but LibTorch's CUDA library could not be loaded
};

// Asks the runtime for devices and, where there are any, sees to it that LibTorch's CUDA library is
// in the process: it may be linked, and is otherwise loaded from LibTorch's own folder (some 200 MB
// of memory). `why_unusable` tells what went wrong with that.
CudaFacts find_cuda();

// Returns the device of the rank that is number `rank_on_node` of its node: device number
// `rank_on_node` modulo the devices it sees, or the CPU. Where a launcher shows every rank its own
// device, that is number 0 on each. failed_precondition for DeviceSetting::cuda without a device.
// Pure.
Result<c10::Device> choose_device(DeviceSetting setting, const CudaFacts& facts,
                                  std::int32_t rank_on_node);

// Returns where the device is on its machine, which tells ranks that train on one from ranks that a
// launcher shows one each: the address on the PCI bus, "0000:3b:00.0". Parts of one GPU (MIG) have
// one address. Empty for the CPU, and where CUDA's runtime does not say.
std::string device_address(c10::Device device);

// Returns the device of a model's parameters; the CPU only where none is elsewhere.
c10::Device device_of(const torch::nn::Module& model);

// Waits until the device has done all that the calling thread's current stream was given; for
// measurements. Not for other streams: on the lane of masks something may be that ends only when
// this host votes. Nothing to wait for on the CPU.
void wait_for_current_stream(c10::Device device);

// Makes `device` the calling thread's current one, so that tensors "on CUDA" are made there.
void make_current(c10::Device device);

}  // namespace cox::detail
