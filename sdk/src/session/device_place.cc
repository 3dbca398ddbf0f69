#include "sdk/src/session/device_place.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

c10::Device agreed_device(transport::Communicator& all, DeviceSetting setting, const Log& log) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (setting == DeviceSetting::cpu) return cpu;
  const CudaFacts cuda = find_cuda();
  const auto node = require(all.split_by_node());
  const auto mine = choose_device(setting, cuda, node->rank().value());
  require(agree_on_status(all, mine.status()), Error::Scope::all_ranks);
  const auto kinds = require(gather_values(all, std::uint64_t{mine->is_cuda() ? 1u : 0u}));
  const bool has_all = std::ranges::count(kinds, std::uint64_t{0}) == 0;
  if (!cuda.why_unusable.empty()) log.warning("CUDA is not used: " + cuda.why_unusable);
  if (cuda.devices == 0) log.debug("no CUDA device: " + cuda.why_none);
  return has_all ? *mine : cpu;
}

std::int32_t count_ranks_on(c10::Device device, transport::Communicator& all, const Log& log) {
  if (device.is_cpu()) return 1;
  const auto node = require(all.split_by_node());
  std::string address = device_address(device);
  if (address.empty()) address = device.str();
  Fnv1a64 hash;
  hash.add(address);
  const auto addresses = require(gather_values(*node, hash.value()));
  const auto mine = addresses[static_cast<std::size_t>(node->rank().value())];
  const auto ranks = static_cast<std::int32_t>(std::ranges::count(addresses, mine));
  const auto first = std::ranges::find(addresses, mine) - addresses.begin();
  if (ranks > 1 && first == node->rank().value()) {
    log.warning(concat(ranks, " ranks of a node train on one CUDA device, ", address,
                       ": each rank plans with its part of the device's free memory; NCCL needs a "
                       "device for each rank"));
  }
  return ranks;
}

}  // namespace

DevicePlace agree_on_device(transport::Communicator& all, DeviceSetting setting, const Log& log) {
  DevicePlace place;
  place.device = agreed_device(all, setting, log);
  place.ranks = count_ranks_on(place.device, all, log);
  make_current(place.device);
  place.facts = facts_of(place.device);
  return place;
}

}  // namespace cox::detail
