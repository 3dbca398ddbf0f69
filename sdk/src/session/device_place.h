// DevicePlace is where a rank trains: the device that the ranks of the job agreed on at the start.
// The membership keeps it. Training thread.
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
  std::int32_t ranks = 1;              // that train on the device, this one included; 1 on the CPU
};

// Chooses a device for each rank (`setting`: run.device) and makes it the thread's current one. The
// ranks of one job train on devices of one kind. Collective; waits. Throws cox::Error, on all ranks
// where one has no device that `setting` asks for.
DevicePlace agree_on_device(transport::Communicator& all, DeviceSetting setting, const Log& log);

}  // namespace cox::detail
