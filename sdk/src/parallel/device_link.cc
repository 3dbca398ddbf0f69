#include "sdk/src/parallel/device_link.h"

#include <utility>

#include "coordinator/transport/nccl/library.h"
#include "sdk/src/device/stream_lane.h"

namespace cox::detail {

const Result<DeviceLink::Ends>& DeviceLink::open(transport::Communicator& ranks, c10::Device device,
                                                 const transport::WaitPolicy& wait) {
  if (ends_) return *ends_;
  ends_.emplace(make(ranks, device, wait));
  if (!ends_->ok()) {
    news_ = ends_->status().with_context("gradients go through host memory, not over NCCL");
  }
  return *ends_;
}

Result<DeviceLink::Ends> DeviceLink::make(transport::Communicator& ranks, c10::Device device,
                                          const transport::WaitPolicy& wait) const {
  auto lane = StreamLane::make(device);
  const Result<transport::NcclLibrary> library =
      lane.ok() ? transport::NcclLibrary::open() : Result<transport::NcclLibrary>(lane.status());
  transport::NcclGroupOptions options;
  options.start_limit = start_limit_;
  options.wait = transport::with_timeout(wait, start_limit_, "a rank at the start of NCCL");
  auto group = transport::NcclGroup::create(ranks, library, options,
                                            [&] { return (*lane)->select_device(); });
  if (!group.ok()) return group.status();
  return Ends{*std::move(lane), *std::move(group)};
}

Status DeviceLink::news() {
  return std::exchange(news_, {});
}

}  // namespace cox::detail
