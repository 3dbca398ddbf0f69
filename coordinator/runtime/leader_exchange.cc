#include "coordinator/runtime/leader_exchange.h"

#include <algorithm>

#include "coordinator/core/crc32.h"

namespace cox::runtime {
namespace {

using transport::Progress;

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

std::uint32_t checksum_of(const MaskParcel& parcel) {
  return crc32(std::as_bytes(std::span(&parcel, 1)).subspan(sizeof parcel.checksum));
}

RankSignal empty_slot() {
  RankSignal signal;
  signal.magic = 0;
  return signal;
}

}  // namespace

LeaderExchange::LeaderExchange(std::unique_ptr<transport::Communicator> gathers,
                               std::unique_ptr<transport::Communicator> masks,
                               std::size_t largest_node, std::size_t blocks)
    : gathers_(std::move(gathers)),
      masks_(std::move(masks)),
      largest_node_(largest_node),
      sent_(largest_node, empty_slot()),
      evidence_(blocks) {
  const bool is_root = gathers_->rank() == kRoot;
  if (is_root) received_.assign(largest_node * gathers_->size(), empty_slot());
}

Status LeaderExchange::open(std::span<const RankSignal> node_signals,
                            std::span<const BlockEvidence> evidence, const MaskParcel& parcel) {
  std::fill(sent_.begin(), sent_.end(), empty_slot());
  std::copy(node_signals.begin(), node_signals.end(), sent_.begin());
  std::fill(evidence_.begin(), evidence_.end(), BlockEvidence{});
  std::copy(evidence.begin(), evidence.end(), evidence_.begin());
  parcel_ = parcel;
  parcel_.sequence = sequence_;
  parcel_.checksum = checksum_of(parcel_);
  failed_ = ok_status();
  is_sound_ = false;

  auto gather = gathers_->start_gather(bytes_of(sent_), bytes_of(received_), kRoot);
  if (!gather.ok()) return gather.status();
  requests_[0] = *gather;
  if (!evidence_.empty()) {
    auto reduce =
        gathers_->start_reduce(bytes_of(evidence_), transport::merging<BlockEvidence>(), kRoot);
    if (!reduce.ok()) return reduce.status();
    requests_[1] = *reduce;
  }
  auto broadcast =
      masks_->start_broadcast(std::as_writable_bytes(std::span<MaskParcel>(&parcel_, 1)), kRoot);
  if (!broadcast.ok()) return broadcast.status();
  requests_[2] = *broadcast;
  busy_ = true;
  return ok_status();
}

Result<Progress> LeaderExchange::pump() {
  if (!busy_) return Progress::done;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (!requests_[i].active()) continue;
    auto& communicator = i < 2 ? *gathers_ : *masks_;
    auto progress = communicator.test(requests_[i]);
    if (progress.ok() && *progress == Progress::pending) return Progress::pending;
    // The other operations are brought to their end: the next round needs their buffers.
    if (!progress.ok() && failed_.ok()) failed_ = progress.status();
  }
  busy_ = false;
  const bool is_this_round = parcel_.sequence == sequence_++;
  if (!failed_.ok()) return failed_;
  is_sound_ = is_this_round && parcel_.checksum == checksum_of(parcel_) &&
              parcel_.size <= parcel_.frame.size();
  return Progress::done;
}

std::span<const RankSignal> LeaderExchange::gathered(std::size_t node_index) const {
  return std::span<const RankSignal>(received_).subspan(node_index * largest_node_, largest_node_);
}

}  // namespace cox::runtime
