// DeviceExchange: sums buckets in device memory over all ranks by NCCL, behind the interface of
// BucketExchange, so that the reducer fills buckets, starts them in order and goes on with backward
// in the same way. Three things differ, because the host never waits for the device:
//
// - start(bucket) takes the bucket as it will be once the calling thread's current stream has done
//   all that it was given so far: that is the event behind which the bucket is ready. Its sum runs
//   on the lane's stream, behind the sums of the buckets before it.
// - "done" means that the sum has been handed to the lane's stream. wait_all() returns then;
//   wait_for_device() follows, and polls until the device has all sums of the round. What streams
//   are given afterwards (the division, the optimizer) sees them. No stream is made to wait for the
//   lane: behind a sum that never ends, whoever waits for that stream would wait for ever.
// - buffer() is an address of the device. The memory is the caller's; memory() has none.
//
// Counts, magnitudes and the step's ballot stay on the host path, in a BucketExchange of their own.
//
// Failure. An error of NCCL's, at once or later, and a round that NCCL has not taken or the device
// has not finished within the limit make start(), advance() and the waits return that error for
// good. The buckets of the round are lost then, on all ranks, also where a rank has not heard of
// it: an average that did not happen must not be trained on, so the job ends as it does when the
// host path fails. leave() aborts the group, which frees the stream, and so does the destructor of
// an exchange that failed or whose round is not over: its buckets are about to go, and what the
// calling thread's current stream is given from then on runs behind what was still writing to them,
// unless the abort did not end (NcclGroup::may_still_write): then nobody may wait for the lane.
// Other ranks hear of it over the host path. Nobody gets another exchange on a group that a rank
// has aborted.
//
// The order of sums. All ranks get the same bits of every sum: NCCL computes each part once and
// passes it on. In which order it adds up the ranks is its own choice, by topology, size,
// algorithm, protocol and number of channels, so the bits differ from those of the host path, from
// those of another bucket layout and of another number of ranks. The same job on the same machines
// with the same release gives the same bits again where nothing is reduced in a switch
// (NCCL_NVLS_ENABLE=0, NCCL_COLLNET_ENABLE=0) and the choice is pinned (NCCL_ALGO, NCCL_PROTO,
// NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS); NCCL documents no promise about it. So this exchange
// cannot give what reproducible mode gives by a fixed order. It can give it by sums without
// rounding: in float64 accumulators whose additions are exact (sdk/src/parallel/exact_sum.h) every
// order has the same bits. Thread rule: that of the lane.
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
  // Of the device. Stays valid as long as the exchange, and for ever where its group may still
  // write then.
  void* address = nullptr;
  std::size_t count = 0;  // elements; equal on all ranks; where there are none, NCCL is not asked
  nccl::Type type = nccl::Type::float32;
};

struct DeviceExchangeOptions {
  WaitPolicy wait;  // of the start; of the others without its timeout
  // Of wait_all(), and of the sums on the device after it. Every rank has given its part by then,
  // or is about to.
  std::chrono::nanoseconds limit = std::chrono::seconds(60);
};

class DeviceExchange final : public RoundExchange {
 public:
  // Collective and waiting; for the start, or when the layout changes. `group` has the ranks of
  // `all`, and nothing else uses it while this exchange has buckets in flight. Exchanges share a
  // lane. invalid_argument on every rank when buckets differ between ranks; unavailable on every
  // rank when one has aborted its group.
  static Result<std::unique_ptr<DeviceExchange>> create(Communicator& all,
                                                        std::shared_ptr<NcclGroup> group,
                                                        std::shared_ptr<DeviceLane> lane,
                                                        std::vector<DeviceBucket> buckets,
                                                        const DeviceExchangeOptions& options);
  ~DeviceExchange() override;

  // For a host that is about to wait for the calling thread's current stream: polls until all
  // buckets that were started have been handed to the lane's stream, so that their sums run beside
  // what the current stream has still to do, or until that has nothing to do any more. Waits for no
  // other rank.
  Status send_off();

  // Waits by polling until the device has finished the sums of the round that wait_all() closed.
  // `pump` is called between polls; where it fails, the wait ends with its error. REQUIRES: it is
  // called after every wait_all().
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
  // Of the lane: of each bucket behind what fills it and behind its sum, behind the round, and
  // behind what the current stream had when it was sent off.
  std::vector<DeviceLane::Mark> filled_;
  std::vector<DeviceLane::Mark> marks_;
  DeviceLane::Mark round_mark_;
  DeviceLane::Mark current_mark_;
  std::chrono::nanoseconds limit_;
  std::size_t launched_ = 0;           // buckets, in this round
  bool is_launching_ = false;          // the last of them is on its way to the stream
  std::optional<WaitLimit> patience_;  // with the device: a round that it has not finished
};

}  // namespace cox::transport
