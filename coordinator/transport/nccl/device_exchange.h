// DeviceExchange sums buckets in device memory over all ranks by NCCL. Implements BucketExchange,
// so the reducer uses it like the host's exchange: fill a bucket, start it, continue backward.
// Counts, magnitudes and the step's ballot stay on the host path, in another BucketExchange. Bits
// and order of sums, and all failures: docs/gpu.md, "Masks and gradients over NCCL". Thread rule:
// as for the lane.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/transport/exchange/round_exchange.h"
#include "coordinator/transport/nccl/abi.h"
#include "coordinator/transport/nccl/device_lane.h"
#include "coordinator/transport/nccl/group.h"

namespace cox::transport {

struct DeviceBucket {
  // Address on the device. Valid as long as the exchange, and for ever if the exchange's group may
  // still write at the end.
  void* address = nullptr;
  std::size_t count = 0;  // elements, equal on all ranks; a bucket of 0 elements skips NCCL
  nccl::Type type = nccl::Type::float32;
};

struct DeviceExchangeOptions {
  WaitPolicy wait;  // for the start; later waits ignore the timeout
  // Limit of wait_all() and of the sums on the device afterwards. By then every rank has given its
  // part, or is about to.
  std::chrono::nanoseconds limit = std::chrono::seconds(60);
};

// Differs from a host exchange in three points, because the host never waits for the device:
//
// - start(bucket) sets an event behind all work already on the calling thread's current stream. The
//   bucket is ready behind the event. The bucket's sum runs on the lane's stream, behind the sums
//   of earlier buckets.
// - "done" means handed to the lane's stream; wait_all() then returns. wait_for_device() follows,
//   and polls until the device has all sums of the round. Work put on a stream afterwards (the
//   division, the optimizer) sees the sums. No stream waits for the lane: behind a sum that never
//   ends, a wait for such a stream would never end either.
// - buffer() is an address on the device. The caller owns the memory; memory() is empty.
//
// Errors stay: start(), advance() and the waits return the first error for good. Errors are an
// error of NCCL's, and a round that NCCL has not taken or the device has not finished within the
// limit. The buckets of the round are then lost on all ranks, even on a rank without an error so
// far. An average that did not happen must not be trained on, so the job ends as after a failure of
// the host path. Other ranks learn of the error over the host path.
//
// leave() aborts the group, which frees the stream. So does the destructor of an exchange that
// failed or is inside a round, because its buckets are about to be freed. Later work on the calling
// thread's current stream runs behind the lane's writes to the buckets. If the abort did not end
// (NcclGroup::may_still_write), no stream may wait for the lane. create() refuses a group that any
// rank has aborted.
//
// All ranks get the same bits of every sum. NCCL chooses the order of the ranks, so the bits differ
// from the host path's. Reproducible mode sums without rounding instead
// (sdk/src/parallel/exact_sum.h), so every order gives the same bits.
class DeviceExchange final : public RoundExchange {
 public:
  // Creates the exchange, at the start or after a change of the layout. Collective and blocking.
  // `group` has the ranks of `all`, and serves no other caller while this exchange has buckets in
  // flight. Exchanges may share a lane. Returns invalid_argument on every rank when buckets differ
  // between ranks, and unavailable on every rank when one has aborted its group.
  static Result<std::unique_ptr<DeviceExchange>> create(Communicator& all,
                                                        std::shared_ptr<NcclGroup> group,
                                                        std::shared_ptr<DeviceLane> lane,
                                                        std::vector<DeviceBucket> buckets,
                                                        const DeviceExchangeOptions& options);
  ~DeviceExchange() override;

  // Polls until all started buckets have been handed to the lane's stream, or the calling thread's
  // current stream is idle. Call it before the host waits for the current stream, so that the sums
  // run beside that stream's work. Waits for no other rank.
  Status send_off();

  // Polls until the device has finished the sums of the round that wait_all() closed. Calls `pump`
  // between polls; an error of `pump` ends the wait. REQUIRES: called after every wait_all().
  Status wait_for_device(const std::function<Status()>& pump);

  Bytes buffer(std::size_t bucket) override;
  SharedSegment memory() const override { return {}; }
  const char* path() const override { return "nccl"; }

 private:
  DeviceExchange(std::shared_ptr<NcclGroup> group, std::shared_ptr<DeviceLane> lane,
                 std::vector<DeviceBucket> buckets, const DeviceExchangeOptions& options);

  Status give(std::size_t bucket) override;
  Result<Moved> move() override;
  Status close() override;
  void back_off() override;
  void tell(const std::string& why) override;
  std::string holds_up(std::size_t bucket) const override;

  Status launch(std::size_t bucket);
  Status hand_over();
  void end_group(const Status& why);
  Status check_device();

  std::shared_ptr<DeviceLane> lane_;
  std::shared_ptr<NcclGroup> group_;
  std::vector<DeviceBucket> buckets_;
  // Marks of the lane. In order: per bucket behind the work that fills it, per bucket behind its
  // sum, behind the round, and behind the current stream's work at send_off().
  std::vector<DeviceLane::Mark> filled_;
  std::vector<DeviceLane::Mark> marks_;
  DeviceLane::Mark round_mark_;
  DeviceLane::Mark current_mark_;
  std::chrono::nanoseconds limit_;
  std::size_t launched_ = 0;           // buckets, in this round
  bool is_launching_ = false;          // the last launched bucket is on its way to the stream
  std::optional<WaitLimit> patience_;  // the wait for a round that the device has not finished
};

}  // namespace cox::transport
