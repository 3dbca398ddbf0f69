#include "coordinator/runtime/control_link.h"

#include <algorithm>

#include "coordinator/runtime/board_setup.h"

namespace cox::runtime {

using transport::Progress;

namespace {

using SteadyClock = std::chrono::steady_clock;

bool starts_a_mask(std::span<const std::byte> frame) {
  const auto view = wire::open_frame(frame);
  return view.ok() && view->header.kind != wire::FrameKind::continuation;
}

}  // namespace

ControlLink::ControlLink(Boards& boards, Seconds late, Log log)
    : boards_(boards),
      late_(late),
      log_(std::move(log)),
      masks_(*boards.masks),
      outbox_(*boards.coordinator_outbox()) {}

bool ControlLink::closed() const {
  if (stage_ != Stage::idle || !boards_.signals->consumed(boards_.topology.slot())) return false;
  if (!boards_.inbox) return true;
  // The coordinator must have taken the last gathered round before the next may overwrite it.
  for (std::int32_t r = 0; r < boards_.topology.world_size(); ++r) {
    if (!boards_.inbox->consumed(r)) return false;
  }
  return true;
}

void ControlLink::open(const RankSignal& signal, std::span<const BlockEvidence> evidence) {
  if (!boards_.signals->post(boards_.topology.slot(), signal, evidence)) return;
  if (boards_.exchange == nullptr) return;
  stage_ = Stage::node_reports;
  opened_ = SteadyClock::now();
}

void ControlLink::pump(PlanBook& plans) {
  if (boards_.exchange != nullptr) pump_exchange();
  read_masks(plans);
}

void ControlLink::pump_exchange() {
  if (stage_ == Stage::node_reports) {
    const auto ranks = static_cast<std::int32_t>(boards_.topology.my_node().size());
    const bool is_late = Seconds(SteadyClock::now() - opened_) > late_;
    const auto woken = boards_.signals->wait(ranks, std::chrono::nanoseconds(0));
    if (woken == transport::BoardWake::complete || is_late) start_exchange();
  }
  if (stage_ != Stage::exchanging) return;
  const auto progress = boards_.exchange->pump();
  if (!progress.ok()) return fail(progress.status());
  if (*progress == Progress::done) deliver();
}

void ControlLink::start_exchange() {
  const auto collected = boards_.signals->collect();
  const Status opened =
      boards_.exchange->open(collected.signals, collected.evidence, next_parcel());
  if (!opened.ok()) return fail(opened);
  stage_ = Stage::exchanging;
}

MaskParcel ControlLink::next_parcel() {
  MaskParcel parcel;
  if (!boards_.outbox) return parcel;
  if (outbox_.poll()) outgoing_next_ = 0;
  if (outgoing_next_ < outbox_.frames().size()) {
    const auto frame = outbox_.frames()[outgoing_next_++];
    parcel.size = static_cast<std::uint16_t>(frame.size());
    std::copy(frame.begin(), frame.end(), parcel.frame.begin());
  }
  parcel.last = all_finished_ ? 1 : 0;
  return parcel;
}

void ControlLink::deliver() {
  stage_ = Stage::idle;
  if (boards_.inbox) deliver_signals();
  const MaskParcel& parcel = boards_.exchange->parcel();
  last_seen_ = parcel.last != 0;
  if (parcel.size == 0 || parcel.size > wire::kFrameBytes) return;
  wire::Frame frame;
  frame.bytes = parcel.frame;
  frame.size = parcel.size;
  // Ranks of this node may look seldom, so a mask's frames stay together until the next mask.
  if (starts_a_mask(frame.used())) arrived_.clear();
  arrived_.push_back(frame);
  std::vector<std::span<const std::byte>> set;
  for (const wire::Frame& f : arrived_) set.push_back(f.used());
  const Status published = boards_.masks->publish(set);
  if (!published.ok()) log_.error(published.text());
}

void ControlLink::deliver_signals() {
  const auto& nodes = boards_.topology.nodes;
  std::size_t finished = 0;
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const auto gathered = boards_.exchange->gathered(n);
    for (const RankSignal& signal : gathered) {
      if (signal.magic == 0) continue;
      const auto slot = static_cast<std::size_t>(&signal - gathered.data());
      const bool fits = check(signal).ok() && signal.rank.value() >= 0 &&
                        signal.rank.value() < boards_.topology.world_size();
      const RankId rank = fits ? signal.rank : nodes[n][std::min(slot, nodes[n].size() - 1)];
      const bool is_root = rank == kRoot;  // it is posted last and carries what was merged
      const auto evidence =
          is_root ? boards_.exchange->evidence() : std::span<const BlockEvidence>();
      // closed() has seen every slot of the inbox taken, so this cannot be refused.
      static_cast<void>(boards_.inbox->post(rank.value(), signal, evidence));
      if (fits && signal.has(SignalFlag::finished)) ++finished;
    }
  }
  all_finished_ = finished == static_cast<std::size_t>(boards_.topology.world_size());
}

void ControlLink::read_masks(PlanBook& plans) {
  if (!masks_.poll()) return;
  for (const auto frame : masks_.frames()) plans.hold(frame);
}

bool ControlLink::may_leave() const {
  if (boards_.exchange == nullptr || stage_ == Stage::broken) return true;
  return stage_ == Stage::idle && last_seen_;
}

void ControlLink::fail(const Status& status) {
  stage_ = Stage::broken;
  log_.error("control rounds end here, the plan stays as it is: " + status.text());
}

}  // namespace cox::runtime
