#include "coordinator/runtime/leader_exchange.h"

#include <algorithm>

#include "coordinator/core/hash.h"

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
      buffers_(std::make_unique<Buffers>()) {
  buffers_->sent.assign(largest_node, empty_slot());
  buffers_->evidence.resize(blocks);
  const bool is_root = gathers_->rank() == kRoot;
  if (is_root) buffers_->received.assign(largest_node * gathers_->size(), empty_slot());
}

LeaderExchange::~LeaderExchange() {
  const auto is_active = [](const transport::Request& request) { return request.active(); };
  if (std::ranges::any_of(requests_, is_active)) static_cast<void>(buffers_.release());
}

Status LeaderExchange::open(std::span<const RankSignal> node_signals,
                            std::span<const BlockEvidence> evidence, const MaskParcel& parcel) {
  auto& [sent, received, merged, down] = *buffers_;
  std::fill(sent.begin(), sent.end(), empty_slot());
  std::copy(node_signals.begin(), node_signals.end(), sent.begin());
  std::fill(merged.begin(), merged.end(), BlockEvidence{});
  std::copy(evidence.begin(), evidence.end(), merged.begin());
  down = parcel;
  down.sequence = sequence_;
  down.checksum = checksum_of(down);
  failed_ = ok_status();
  is_sound_ = false;

  auto gather = gathers_->start_gather(bytes_of(sent), bytes_of(received), kRoot);
  if (!gather.ok()) return gather.status();
  requests_[0] = *gather;
  if (!merged.empty()) {
    auto reduce =
        gathers_->start_reduce(bytes_of(merged), transport::merging<BlockEvidence>(), kRoot);
    if (!reduce.ok()) return reduce.status();
    requests_[1] = *reduce;
  }
  auto broadcast =
      masks_->start_broadcast(std::as_writable_bytes(std::span<MaskParcel>(&down, 1)), kRoot);
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
  const MaskParcel& down = buffers_->parcel;
  const bool is_this_round = down.sequence == sequence_++;
  if (!failed_.ok()) return failed_;
  is_sound_ = is_this_round && down.checksum == checksum_of(down) && down.size <= down.frame.size();
  return Progress::done;
}

std::span<const RankSignal> LeaderExchange::gathered(std::size_t node_index) const {
  return std::span<const RankSignal>(buffers_->received)
      .subspan(node_index * largest_node_, largest_node_);
}

}  // namespace cox::runtime
