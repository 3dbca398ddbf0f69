// DevicePlace is the device on which a rank trains, as the ranks of the job agreed at the start.
// Owned by the membership. Training thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "coordinator/core/log.h"
#include "coordinator/core/settings/run.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/device/device_facts.h"

namespace cox::detail {

struct DevicePlace {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::optional<DeviceFacts> facts{};  // nothing on the CPU
  std::int32_t ranks = 1;              // ranks on the device, including this one; 1 on the CPU
};

// Chooses a device for each rank (`setting`: run.device) and makes it the thread's current device.
// All ranks of a job train on devices of one kind. Collective; waits. Throws cox::Error on all
// ranks if a rank has no device that `setting` asks for.
DevicePlace agree_on_device(transport::Communicator& all, DeviceSetting setting, const Log& log);

}  // namespace cox::detail
