// DeviceLink connects the devices of all ranks: an NCCL group for gradients, and a lane for its
// sums. A job has at most one, made when the first gradients on devices are averaged, because NCCL
// takes seconds to start. If it cannot be made (no NCCL, no driver, two ranks on one device),
// gradients go through host memory, and the reason is reported once.
//
// Thread rule: the training thread. Owned by the World, and shared with the exchanges on it.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <optional>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/nccl/device_lane.h"
#include "coordinator/transport/nccl/group.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

class DeviceLink {
 public:
  struct Ends {
    std::shared_ptr<transport::DeviceLane> lane;
    std::shared_ptr<transport::NcclGroup> group;
  };

  // `start_limit`: longest time for NCCL's start, and for a late rank to join.
  explicit DeviceLink(std::chrono::nanoseconds start_limit) : start_limit_(start_limit) {}

  // Returns the link of this rank's `device`, or the reason for having none, the same on every
  // rank. Collective and waiting the first time; later calls return the first result.
  const Result<Ends>& open(transport::Communicator& ranks, c10::Device device,
                           const transport::WaitPolicy& wait);
  // Returns why the link could not be made, once; ok if there is nothing new.
  Status news();

 private:
  Result<Ends> make(transport::Communicator& ranks, c10::Device device,
                    const transport::WaitPolicy& wait) const;

  const std::chrono::nanoseconds start_limit_;
  std::optional<Result<Ends>> ends_;
  Status news_;
};

}  // namespace cox::detail
