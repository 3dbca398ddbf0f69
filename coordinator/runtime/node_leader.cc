#include "coordinator/runtime/node_leader.h"

#include <algorithm>
#include <chrono>

#include "coordinator/core/hash.h"

namespace cox::runtime {

namespace {

using transport::Progress;
using transport::take;

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

std::size_t bytes_of(Downward downward) {
  return downward == Downward::mask ? sizeof(MaskParcel) : sizeof(RoundWord);
}

std::uint32_t checksum_of(const MaskParcel& parcel, Downward downward) {
  return crc32(std::as_bytes(std::span(&parcel, 1))
                   .first(bytes_of(downward))
                   .subspan(sizeof parcel.word.checksum));
}

RankSignal nothing() {
  RankSignal signal;
  signal.magic = 0;
  return signal;
}

// A damaged report counts as no report.
bool is_last(const RankSignal& signal) {
  return signal.magic != 0 && signal.has(SignalFlag::finished) && check(signal).ok();
}

bool same_set(const wire::FrameHeader& a, const wire::FrameHeader& b) {
  return a.id == b.id && a.base_distance == b.base_distance && a.continuations == b.continuations;
}

}  // namespace

NodeReports::NodeReports(transport::SignalBoard board, std::vector<RankId> members)
    : board_(board),
      members_(std::move(members)),
      signals_(members_.size(), nothing()),
      evidence_(board_.shape().blocks),
      owes_(members_.size(), 0) {}

void NodeReports::open() {
  owed_ = 0;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    owes_[i] = is_last(signals_[i]) ? 0 : 1;
    owed_ += owes_[i];
  }
}

void NodeReports::take_when_complete() {
  if (owed_ > 0 && holds(owed_)) take();
}

bool NodeReports::holds(std::int32_t fresh) {
  return board_.wait(fresh, std::chrono::nanoseconds(0)) == transport::BoardWake::complete;
}

void NodeReports::take() {
  if (holds(1)) take_uncounted();
}

void NodeReports::take_uncounted() {
  board_.collect(collected_);
  for (const RankSignal& signal : collected_.signals) keep(signal);
  merge_into(evidence_, collected_.evidence);
}

void NodeReports::keep(const RankSignal& signal) {
  const auto member = std::lower_bound(members_.begin(), members_.end(), signal.rank);
  if (member == members_.end() || *member != signal.rank) return;
  const auto slot = static_cast<std::size_t>(member - members_.begin());
  RankSignal& kept = signals_[slot];
  if (is_last(signal) && !is_last(kept)) ++finished_;
  // Check for an empty entry first: the message of a failed check would cost an allocation.
  const bool both_count =
      kept.magic != 0 && check(kept).ok() && check(signal).ok() && !is_last(kept);
  kept = both_count ? merge_reports(kept, signal) : signal;
  if (both_count) seal(kept);
  owed_ -= owes_[slot];
  owes_[slot] = 0;
}

bool NodeReports::others_finished() const {
  return finished_ - (is_last(signals_.front()) ? 1 : 0) + 1 == members_.size();
}

void NodeReports::sent() {
  for (RankSignal& signal : signals_) {
    if (!is_last(signal)) signal = nothing();
  }
  std::fill(evidence_.begin(), evidence_.end(), BlockEvidence{});
}

LeaderExchange::LeaderExchange(Links links, RankId self, std::size_t largest_node,
                               std::size_t blocks)
    : links_(std::move(links)),
      endings_(std::move(links_.endings)),
      self_(self),
      largest_node_(largest_node),
      buffers_(std::make_unique<Buffers>()) {
  buffers_->sent.assign(largest_node, nothing());
  buffers_->evidence.resize(blocks);
  const bool is_root = links_.gathers->rank() == kRoot;
  if (is_root) buffers_->received.assign(largest_node * links_.gathers->size(), nothing());
}

LeaderExchange::~LeaderExchange() {
  const auto is_active = [](const transport::Request& request) { return request.active(); };
  if (std::ranges::any_of(requests_, is_active)) static_cast<void>(buffers_.release());
}

Status LeaderExchange::open(std::span<const RankSignal> node_signals,
                            std::span<const BlockEvidence> evidence, Downward downward,
                            const MaskParcel& parcel) {
  auto& [sent, received, merged, down, kind] = *buffers_;
  std::fill(sent.begin(), sent.end(), nothing());
  std::copy(node_signals.begin(), node_signals.end(), sent.begin());
  std::fill(merged.begin(), merged.end(), BlockEvidence{});
  std::copy(evidence.begin(), evidence.end(), merged.begin());
  kind = downward;
  down = parcel;
  down.word.sequence = sequence_;
  down.word.checksum = checksum_of(down, kind);
  failed_ = ok_status();
  is_sound_ = false;
  return start_all();
}

Status LeaderExchange::start_all() {
  auto& [sent, received, merged, down, kind] = *buffers_;
  const auto all_down = std::as_writable_bytes(std::span<MaskParcel>(&down, 1));
  Status started =
      take(links_.gathers->start_gather(bytes_of(sent), bytes_of(received), kRoot), requests_[0]);
  if (started.ok() && !merged.empty())
    started = take(
        links_.gathers->start_reduce(bytes_of(merged), transport::merging<BlockEvidence>(), kRoot),
        requests_[1]);
  if (started.ok())
    started =
        take(links_.masks->start_broadcast(all_down.first(bytes_of(kind)), kRoot), requests_[2]);
  busy_ = started.ok();
  return started;
}

Result<Progress> LeaderExchange::pump() {
  if (!busy_) return Progress::done;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (!requests_[i].active()) continue;
    auto& communicator = i < 2 ? *links_.gathers : *links_.masks;
    auto progress = communicator.test(requests_[i]);
    if (progress.ok() && *progress == Progress::pending) return Progress::pending;
    // Complete the other operations, because the next round needs their buffers.
    if (!progress.ok() && failed_.ok()) failed_ = progress.status();
  }
  busy_ = false;
  const auto& [word, size, unused, frame] = buffers_->parcel;
  const bool is_this_round = word.sequence == sequence_++;
  if (!failed_.ok()) return failed_;
  is_sound_ = is_this_round && word.checksum == checksum_of(buffers_->parcel, buffers_->downward) &&
              size <= frame.size();
  return Progress::done;
}

void LeaderExchange::end(const Status& why) {
  if (std::exchange(has_ended_, true)) return;
  ending_ = why.ok() ? endings_.close_round()
                     : endings_.depart(transport::Departure::of(self_, why.text()));
}

Result<Progress> LeaderExchange::pump_end() {
  if (!has_ended_) return Progress::pending;
  if (!ending_.ok()) return ending_;
  auto heard = endings_.poll();
  if (!heard.ok()) return heard.status();
  if (heard->somebody()) return heard->status();
  return endings_.all_heard() ? Progress::done : Progress::pending;
}

std::span<const RankSignal> LeaderExchange::gathered(std::size_t node_index) const {
  return std::span<const RankSignal>(buffers_->received)
      .subspan(node_index * largest_node_, largest_node_);
}

Status MaskRelay::pass(std::span<const std::byte> bytes) {
  const auto view = wire::open_frame(bytes);
  if (!view.ok()) return view.status();
  const wire::FrameHeader& header = view->header;
  if (header.id < plan_.id) return ok_status();
  wire::Frame frame;
  frame.size = static_cast<std::uint16_t>(std::min(bytes.size(), frame.bytes.size()));
  std::copy_n(bytes.begin(), frame.size, frame.bytes.begin());
  if (!same_set(header, plan_)) frames_.clear();
  plan_ = header;
  // A frame that is there already was sent again for a rank that asked, so all ranks must look
  // again.
  if (std::find(frames_.begin(), frames_.end(), frame) == frames_.end()) frames_.push_back(frame);
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& f : frames_) set.push_back(f.used());
  return board_.publish(set);
}

}  // namespace cox::runtime
