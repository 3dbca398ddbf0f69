#include "coordinator/runtime/control_link.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::runtime {
namespace {

using transport::Progress;
using SteadyClock = std::chrono::steady_clock;

// The end is announced in so many parcels, so that after a damaged parcel no rank waits for rounds
// that never come.
constexpr std::uint16_t kEndingRounds = 3;
constexpr std::chrono::seconds kStuck{1};  // in one exchange, at this rank's end

}  // namespace

ControlLink::ControlLink(Boards& boards, Seconds late, Log log)
    : boards_(boards),
      late_(late),
      log_(std::move(log)),
      masks_(boards.node.masks),
      outbox_(boards.masks()),
      uses_nccl_(boards.broadcast != nullptr) {
  if (boards_.exchange == nullptr) return;
  reports_.emplace(boards_.node.signals, boards_.topology.my_node());
  relay_.emplace(boards_.node.masks);
  finished_.assign(static_cast<std::size_t>(boards_.topology.world_size()), 0);
}

bool ControlLink::closed() const {
  if (stage_ != Stage::idle || !boards_.node.signals.consumed(boards_.topology.slot()))
    return false;
  if (!boards_.own) return true;
  // The coordinator must have taken the last gathered round before the next one overwrites the
  // boards.
  for (std::int32_t r = 0; r < boards_.topology.world_size(); ++r) {
    if (!boards_.own->signals.consumed(r)) return false;
  }
  return true;
}

bool ControlLink::mask_waits() {
  const bool has_readers_elsewhere =
      uses_nccl_ ? boards_.outbox.has_value() : boards_.own.has_value();
  if (!has_readers_elsewhere) return false;
  if (outbox_.poll()) outgoing_next_ = 0;
  return outgoing_next_ < outbox_.frames().size();
}

void ControlLink::agree(const StepBallot& merged) {
  if (!uses_nccl_) return;
  if (merged.mask_lane_min == MaskLane::failed) return leave_nccl();
  boards_.broadcast->round_agreed();
  if (merged.mask_waits_max == 0 || merged.mask_lane_min != MaskLane::free) return;
  boards_.broadcast->start(next_frames());
}

void ControlLink::open(const RankSignal& signal, std::span<const BlockEvidence> evidence,
                       Downward downward) {
  if (!boards_.node.signals.post(boards_.topology.slot(), signal, evidence)) return;
  if (!reports_) return;
  reports_->open();
  stage_ = Stage::node_reports;
  downward_ = downward;
  opened_ = SteadyClock::now();
}

void ControlLink::pump(PlanBook& plans) {
  if (reports_) pump_exchange(plans);
  if (reports_ && has_begun_ending_ && !all_end_) pump_ending();
  if (uses_nccl_) pump_broadcast(plans);
  if (relays_outbox_ && outbox_.poll()) show_outbox();
  read_masks(plans);
}

void ControlLink::end_exchange() {
  if (reports_) boards_.exchange->end(ok_status());
}

bool ControlLink::node_finished() {
  if (!reports_) return true;
  // A rank of the node may have sent its last report too late for the last exchange; the rank
  // leaves anyway.
  if (stage_ == Stage::idle || stage_ == Stage::broken) reports_->take();
  return stage_ == Stage::broken ? reports_->others_finished() : reports_->all_finished();
}

void ControlLink::pump_exchange(PlanBook& plans) {
  reports_->take_when_complete();
  if (stage_ == Stage::node_reports) {
    const bool is_late = Seconds(SteadyClock::now() - opened_) > late_;
    if (reports_->complete() || is_late) start_exchange();
  }
  if (stage_ != Stage::exchanging) return;
  const auto progress = boards_.exchange->pump();
  if (progress.ok() && *progress == Progress::pending) return;
  stage_ = Stage::idle;
  if (is_ending_ && rounds_left_ > 0) --rounds_left_;
  if (progress.ok()) return deliver(plans);
  log_.on_change(LogLevel::error, "exchange",
                 concat("a control round is lost: ", progress.status().text()));
  if (downward_ == Downward::mask) plans.note_damage();
}

void ControlLink::start_exchange() {
  if (reports_->complete()) {
    reports_->take();  // this leader's repeated last report, owed to no rank
  } else {
    reports_->take_uncounted();
  }
  const Status opened =
      boards_.exchange->open(reports_->signals(), reports_->evidence(), downward_, next_parcel());
  reports_->sent();
  stage_ = Stage::exchanging;
  if (opened.ok()) return;
  break_off(opened);
  boards_.exchange->end(opened);
}

void ControlLink::deliver(PlanBook& plans) {
  if (boards_.own) deliver_signals();
  const MaskParcel* parcel = boards_.exchange->parcel();
  if (parcel != nullptr) return deliver_parcel(*parcel, plans);
  if (downward_ == Downward::mask) plans.note_damage();
}

void ControlLink::deliver_parcel(const MaskParcel& parcel, PlanBook& plans) {
  if (parcel.word.rounds_left > 0) {
    is_ending_ = true;
    rounds_left_ = static_cast<std::uint16_t>(parcel.word.rounds_left - 1);
  }
  if (downward_ == Downward::word || parcel.size == 0) return;
  const Status passed = relay_->pass(std::span(parcel.frame).first(parcel.size));
  if (passed.ok()) return;
  plans.note_damage();
  log_.on_change(LogLevel::error, "masks", passed.text());
}

void ControlLink::deliver_signals() {
  const auto& nodes = boards_.topology.nodes;
  posted_ = 0;
  const auto still_expected = std::count(finished_.begin(), finished_.end(), 0);
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const auto gathered = boards_.exchange->gathered(n);
    for (std::size_t slot = nodes[n].size(); slot-- > 0;) {
      post_gathered(nodes[n][slot], gathered[slot]);
    }
  }
  // Some ranks are not in the round any more. Wake the coordinator, which would wait for all.
  if (posted_ < static_cast<std::size_t>(still_expected)) boards_.own->signals.notify();
}

void ControlLink::post_gathered(RankId expected, const RankSignal& signal) {
  auto& finished = finished_[static_cast<std::size_t>(expected.value())];
  // A rank's last report is repeated until all ranks have finished.
  if (signal.magic == 0 || finished != 0) return;
  const bool fits = check(signal).ok() && signal.rank == expected;
  if (fits && signal.has(SignalFlag::finished)) finished = 1;
  // The first post carries the merged evidence. The inbox cannot refuse a post, because closed()
  // saw every slot taken.
  const auto evidence =
      posted_ == 0 ? boards_.exchange->evidence() : std::span<const BlockEvidence>();
  posted_ += boards_.own->signals.post(expected.value(), signal, evidence) ? 1 : 0;
}

void ControlLink::read_masks(PlanBook& plans) {
  if (!masks_.poll()) return;
  for (const auto frame : masks_.frames()) plans.hold(frame);
}

void ControlLink::pump_broadcast(PlanBook& plans) {
  switch (boards_.broadcast->poll()) {
    case MaskBroadcast::Arrival::nothing:
      return;
    case MaskBroadcast::Arrival::damaged:
      return plans.note_damage();
    case MaskBroadcast::Arrival::frames:
      for (const auto frame : boards_.broadcast->frames()) plans.hold(frame);
  }
}

// Rank 0: returns the frames of the next broadcast. Returns none on other ranks.
MaskBroadcast::Frames ControlLink::next_frames() {
  if (!boards_.outbox || !mask_waits()) return {};
  const auto waiting = outbox_.frames().subspan(outgoing_next_);
  const auto sent = waiting.first(std::min(waiting.size(), MaskBroadcast::kFramesAtOnce));
  outgoing_next_ += sent.size();
  return sent;
}

// From this round on masks travel as without a device. Frames on their way are sent again: repeated
// frames change nothing.
void ControlLink::leave_nccl() {
  boards_.broadcast->give_up(
      unavailable("NCCL failed on another rank; the log of that rank has the cause"));
  uses_nccl_ = false;
  log_.warning(
      concat("masks go without NCCL from here on: ", boards_.broadcast->status().message()));
  outgoing_next_ = 0;
  relays_outbox_ = boards_.outbox && !boards_.own;
  if (relays_outbox_) show_outbox();
}

// Rank 0 of one node: copies the outbox, which only rank 0 reads, to the node's board.
void ControlLink::show_outbox() {
  static_cast<void>(outbox_.poll());
  if (outbox_.frames().empty()) return;
  const Status shown = boards_.node.masks.publish(outbox_.frames());
  if (!shown.ok()) log_.on_change(LogLevel::error, "masks", shown.text());
}

MaskParcel ControlLink::next_parcel() {
  MaskParcel parcel;
  if (!boards_.own) return parcel;
  if (downward_ == Downward::mask && mask_waits()) {
    const auto frame = outbox_.frames()[outgoing_next_++];
    parcel.size = static_cast<std::uint16_t>(frame.size());
    std::copy(frame.begin(), frame.end(), parcel.frame.begin());
  }
  if (!is_ending_ && std::count(finished_.begin(), finished_.end(), 0) == 0) {
    is_ending_ = true;
    rounds_left_ = kEndingRounds;
  }
  parcel.word.rounds_left = rounds_left_;
  return parcel;
}

// A stuck exchange may wait for a leader that failed. The leader's name is known only after the
// last words of all leaders.
void ControlLink::pump_ending() {
  if (stage_ == Stage::exchanging && SteadyClock::now() - opened_ > kStuck) end_exchange();
  const auto progress = boards_.exchange->pump_end();
  all_end_ = !progress.ok() || *progress == Progress::done;
  if (!progress.ok() && stage_ != Stage::broken) break_off(progress.status());
}

void ControlLink::break_off(const Status& why) {
  stage_ = Stage::broken;
  status_ = why;
  log_.error(
      concat("control rounds end here, and the plan does not change any more: ", why.text()));
}

}  // namespace cox::runtime
