#include "coordinator/transport/nccl/device_exchange.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/transport/exchange/round_exchange.h"

namespace cox::transport {
namespace {

BucketLayout layout_of(const std::vector<DeviceBucket>& buckets) {
  BucketLayout layout;
  for (const DeviceBucket& bucket : buckets) {
    const std::size_t bytes = bucket.count * nccl::bytes_of(bucket.type);
    layout.places.push_back({0, bytes, bytes, 1, {nccl::bytes_of(bucket.type), nullptr}});
  }
  return layout;
}

// Sent by a rank whose group was aborted. No fingerprint has this value.
constexpr std::uint64_t kEnded = 0;

std::uint64_t fingerprint(const std::vector<DeviceBucket>& buckets) {
  Fnv1a64 hash;
  for (const DeviceBucket& bucket : buckets) {
    hash.add(std::uint64_t{bucket.count});
    hash.add(static_cast<std::uint64_t>(bucket.type));
  }
  return std::max<std::uint64_t>(kEnded + 1, hash.value());
}

}  // namespace

// Compares the buckets of all ranks, so that every rank gets the same result.
Result<std::unique_ptr<DeviceExchange>> DeviceExchange::create(
    Communicator& all, std::shared_ptr<NcclGroup> group, std::shared_ptr<DeviceLane> lane,
    std::vector<DeviceBucket> buckets, const DeviceExchangeOptions& options) {
  const std::uint64_t print = group->status().ok() ? fingerprint(buckets) : kEnded;
  const auto prints = all_gather(all, print, options.wait);
  if (!prints.ok()) return prints.status();
  if (const auto ended = std::ranges::find(*prints, kEnded); ended != prints->end()) {
    return unavailable(
        "exchange over NCCL: expected a group of all ranks, found that the group has ended on "
        "rank ",
        ended - prints->begin(),
        group->status().ok() ? "" : concat(" (here: ", group->status().message(), ")"),
        "; gradients that the group was summing are lost");
  }
  for (std::size_t r = 0; r < prints->size(); ++r) {
    if ((*prints)[r] == prints->front()) continue;
    return invalid_argument(
        "exchange over NCCL: expected the same buckets and options on every rank, found different "
        "ones on rank ",
        r, "; all ranks must run the same model and settings");
  }
  return std::unique_ptr<DeviceExchange>(
      new DeviceExchange(std::move(group), std::move(lane), std::move(buckets), options));
}

DeviceExchange::DeviceExchange(std::shared_ptr<NcclGroup> group, std::shared_ptr<DeviceLane> lane,
                               std::vector<DeviceBucket> buckets,
                               const DeviceExchangeOptions& options)
    : RoundExchange(group->rank(), layout_of(buckets),
                    with_timeout(options.wait, options.limit, "NCCL to take the sums"), ""),
      lane_(std::move(lane)),
      group_(std::move(group)),
      buckets_(std::move(buckets)),
      limit_(options.limit) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    filled_.push_back(lane_->take_mark());
    marks_.push_back(lane_->take_mark());
  }
  round_mark_ = lane_->take_mark();
  current_mark_ = lane_->take_mark();
}

DeviceExchange::~DeviceExchange() {
  if (is_open() || has_failed() || patience_ || !group_->status().ok())
    end_group(unavailable("an exchange failed or was destroyed in the middle of a round"));
  for (const DeviceLane::Mark mark : filled_) lane_->give_back(mark);
  for (const DeviceLane::Mark mark : marks_) lane_->give_back(mark);
  lane_->give_back(round_mark_);
  lane_->give_back(current_mark_);
}

// Aborts the group. Later work on the current stream may reuse the buckets, so it runs behind the
// lane's writes.
void DeviceExchange::end_group(const Status& why) {
  group_->abort(why);
  if (group_->may_still_write()) return;
  if (lane_->mark(round_mark_).ok()) static_cast<void>(lane_->hold_current_until(round_mark_));
}

Bytes DeviceExchange::buffer(std::size_t bucket) {
  return {static_cast<std::byte*>(buckets_[bucket].address), place(bucket).bytes};
}

// Sets the mark now, even if the launch comes later: the bucket excludes later work on the current
// stream.
Status DeviceExchange::give(std::size_t bucket) {
  if (bucket == 0) launched_ = 0;
  Status marked = lane_->mark_current(filled_[bucket]);
  return marked.ok() ? move().status() : marked;
}

Result<RoundExchange::Moved> DeviceExchange::move() {
  const auto settled = group_->settle();
  if (!settled.ok()) return settled.status();
  Moved moved = Moved::nothing;
  if (*settled == Progress::done && is_launching_) {
    if (Status handed = hand_over(); !handed.ok()) return handed;
    moved = Moved::something;
  }
  if (*settled == Progress::done && launched_ < started()) {
    if (Status launched = launch(launched_); !launched.ok()) return launched;
    moved = Moved::something;
  }
  if (Status on_time = check_device(); !on_time.ok()) return on_time;
  return moved;
}

Status DeviceExchange::launch(std::size_t bucket) {
  const DeviceBucket& it = buckets_[bucket];
  ++launched_;
  if (it.count == 0) return hand_over();
  // Follows the mark only now, so that a later bucket does not hold up this one.
  if (Status behind = lane_->follow(filled_[bucket]); !behind.ok()) return behind;
  is_launching_ = true;
  return group_->all_reduce(it.address, it.address, it.count, it.type, nccl::Operator::sum,
                            lane_->stream());
}

Status DeviceExchange::hand_over() {
  is_launching_ = false;
  const std::size_t bucket = launched_ - 1;
  Status marked = lane_->mark(marks_[bucket]);
  if (marked.ok()) finish(bucket);
  return marked;
}

Status DeviceExchange::close() {
  if (buckets() == 0) return ok_status();
  patience_.emplace(limit_);
  return lane_->mark(round_mark_);
}

Status DeviceExchange::send_off() {
  Status done = first_open() == started() ? ok_status() : lane_->mark_current(current_mark_);
  Waiter waiter(with_timeout(wait_policy(), {}, "NCCL"));
  while (done.ok() && first_open() < started()) {
    if (done = advance(); !done.ok()) break;
    const auto passed = lane_->passed(current_mark_);
    if (!passed.ok() || *passed == Progress::done) return passed.status();
    done = waiter.pause();
  }
  return done;
}

// Has no limit of its own: check_device() applies the limit.
Status DeviceExchange::wait_for_device(const std::function<Status()>& pump) {
  Waiter waiter(with_timeout(wait_policy(), {}, "the device"));
  for (;;) {
    if (Status moved = advance(); !moved.ok()) return moved;
    if (!patience_) return ok_status();
    if (Status pumped = pump(); !pumped.ok()) return pumped;
    if (Status paused = waiter.pause(); !paused.ok()) return paused;
  }
}

// Checks the round that the device may not have finished.
Status DeviceExchange::check_device() {
  if (!patience_) return ok_status();
  const auto passed = lane_->passed(round_mark_);
  if (!passed.ok()) return passed.status();
  if (*passed == Progress::done) {
    patience_.reset();
    return ok_status();
  }
  if (!patience_->is_over()) return ok_status();
  return unavailable(
      "exchange over NCCL: expected the device to finish its sums in time, found them unfinished "
      "in round ",
      turn(), "; another rank may have died or stopped: see the ranks' logs");
}

void DeviceExchange::back_off() {
  std::this_thread::sleep_for(wait_policy().sleep);
}

void DeviceExchange::tell(const std::string& why) {
  end_group(unavailable(why));
}

std::string DeviceExchange::holds_up(std::size_t) const {
  return "NCCL has not passed this bucket to the device; another rank may have died: see the "
         "ranks' logs";
}

}  // namespace cox::transport
