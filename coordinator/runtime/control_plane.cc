#include "coordinator/runtime/control_plane.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/runtime/control_boards.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/runtime/plan_book.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/wait.h"

namespace cox::runtime {
namespace {

using transport::Communicator;
using transport::Progress;
using SteadyClock = std::chrono::steady_clock;

// For finish(): ranks that train come to it after the same step, others when they like.
constexpr std::chrono::nanoseconds kTogetherLimit = std::chrono::minutes(10);
constexpr std::chrono::nanoseconds kWatchingLimit = std::chrono::hours(24);

// Said in as many parcels, so that a damaged one keeps nobody waiting for rounds that never come.
constexpr std::uint16_t kEndingRounds = 3;
constexpr std::chrono::seconds kStuck{1};  // that long in one exchange, at this rank's end
constexpr std::chrono::milliseconds kMarksEvery{500};
constexpr double kWaitsForUsSeconds = 2;

// On Linux a batch thread that wakes does not push the one that woke it off its core: the training
// thread that posted the last report goes on, the coordinator takes the next core that is free or
// its turn. Training needs the core more; a kernel that refuses changes nothing else.
void let_training_go_first() {
  sched_param none{};
  static_cast<void>(sched_setscheduler(0, SCHED_BATCH, &none));
}

// Rank 0's view of what a restored run goes on from.
StartFacts facts_from(const std::optional<ControlState>& restored) {
  if (!restored) return {};
  StartFacts facts{restored->plan.id.incarnation + 1, RoundId{}};
  if (!restored->history.empty())
    facts.first_round = restored->history.rounds().back().round.next();
  return facts;
}

// Drops facts that were measured wrongly: decisions rely on them, and a journal of them could not
// be read again.
void drop_wrong_facts(JobFacts& job, Log& log) {
  const Status memory =
      validate(job.memory, static_cast<std::size_t>(job.world_size), job.blocks.size());
  if (!memory.ok()) {
    log.error("memory is not planned: " + memory.message());
    job.memory = {};
  }
  const Status precision = validate(job.precision, job.blocks.size());
  if (!precision.ok()) {
    log.error("what formats cost is not known: " + precision.message());
    job.precision = {};
  }
}

}  // namespace

// ControlLink: how a rank's report leaves and how masks arrive. Within a node both go through
// boards in memory that the node's ranks share; between nodes their leaders run a LeaderExchange.
// With one rank a node (pure MPI) the boards are private and the exchange is everything. Thread
// rule: the rank's training thread. Nothing blocks.
//
// An exchange that fails is a lost round. One that cannot even be started is the last: every rank
// keeps its plan, control rounds cease, and at the end of the job each leader hears who failed.
class ControlLink {
 public:
  // `boards` must outlive the link. `late`: how long a leader waits for the ranks of its node.
  ControlLink(Boards& boards, Seconds late, Log log)
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

  // Returns whether this rank's last report was taken and nothing of its control round is under
  // way.
  bool closed() const {
    if (stage_ != Stage::idle || !boards_.node.signals.consumed(boards_.topology.slot()))
      return false;
    if (!boards_.own) return true;
    // The coordinator must have taken the last gathered round before the next may overwrite it.
    for (std::int32_t r = 0; r < boards_.topology.world_size(); ++r) {
      if (!boards_.own->signals.consumed(r)) return false;
    }
    return true;
  }

  // Rank 0: whether a frame waits for the ranks to agree on its way: a control round between nodes,
  // or a broadcast over NCCL.
  bool mask_waits() {
    const bool has_readers_elsewhere =
        uses_nccl_ ? boards_.outbox.has_value() : boards_.own.has_value();
    if (!has_readers_elsewhere) return false;
    if (outbox_.poll()) outgoing_next_ = 0;
    return outgoing_next_ < outbox_.frames().size();
  }

  bool uses_nccl() const { return uses_nccl_; }
  MaskLane mask_lane() const { return uses_nccl_ ? boards_.broadcast->lane() : MaskLane::free; }

  // Takes the merged ballot of a round: all ranks start a broadcast over NCCL, or give NCCL up, or
  // neither.
  void agree(const StepBallot& merged) {
    if (!uses_nccl_) return;
    if (merged.mask_lane_min == MaskLane::failed) return leave_nccl();
    boards_.broadcast->round_agreed();
    if (merged.mask_waits_max == 0 || merged.mask_lane_min != MaskLane::free) return;
    boards_.broadcast->start(next_frames());
  }

  // Hands the report over. REQUIRES: closed(), and `downward` is the same on all ranks.
  void open(const RankSignal& signal, std::span<const BlockEvidence> evidence, Downward downward) {
    if (!boards_.node.signals.post(boards_.topology.slot(), signal, evidence)) return;
    if (!reports_) return;
    reports_->open();
    stage_ = Stage::node_reports;
    downward_ = downward;
    opened_ = SteadyClock::now();
  }

  // Moves everything on; new masks go into `plans`.
  void pump(PlanBook& plans) {
    if (reports_) pump_exchange(plans);
    if (reports_ && has_begun_ending_ && !all_end_) pump_ending();
    if (uses_nccl_) pump_broadcast(plans);
    if (relays_outbox_ && outbox_.poll()) show_outbox();
    read_masks(plans);
  }

  // Ok, or why control rounds ended before the job; names the leader that failed, if one did.
  const Status& status() const { return status_; }

  // This rank is at its end: it opens rounds only for those who are not.
  void begin_ending() { has_begun_ending_ = true; }
  // Says that this leader needs no further exchange. The others wait for these words before they
  // leave. Later calls do nothing.
  void end_exchange() {
    if (reports_) boards_.exchange->end(ok_status());
  }

  // After this rank's last report: whether no rank of its node needs it any more.
  bool node_finished() {
    if (!reports_) return true;
    // Ranks of the node whose last report came too late for the last exchange leave all the same.
    if (stage_ == Stage::idle || stage_ == Stage::broken) reports_->take();
    return stage_ == Stage::broken ? reports_->others_finished() : reports_->all_finished();
  }

  // For ranks that only watch. Returns whether the exchange between nodes has come to its agreed
  // end.
  bool exchange_ended() const { return !reports_ || (is_ending_ && rounds_left_ == 0); }
  // Returns whether all leaders have said that they need no further exchange, or one has failed.
  bool all_leaders_end() const { return !reports_ || all_end_; }

 private:
  enum class Stage { idle, node_reports, exchanging, broken };

  void pump_exchange(PlanBook& plans) {
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
                   "a control round is lost: " + progress.status().text());
    if (downward_ == Downward::mask) plans.note_damage();
  }

  void start_exchange() {
    reports_->take();  // also a last report that this leader repeats, which nobody is owed
    const Status opened =
        boards_.exchange->open(reports_->signals(), reports_->evidence(), downward_, next_parcel());
    reports_->sent();
    stage_ = Stage::exchanging;
    if (opened.ok()) return;
    break_off(opened);
    boards_.exchange->end(opened);
  }

  void deliver(PlanBook& plans) {
    if (boards_.own) deliver_signals();
    const MaskParcel* parcel = boards_.exchange->parcel();
    if (parcel != nullptr) return deliver_parcel(*parcel, plans);
    if (downward_ == Downward::mask) plans.note_damage();
  }

  void deliver_parcel(const MaskParcel& parcel, PlanBook& plans) {
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

  void deliver_signals() {
    const auto& nodes = boards_.topology.nodes;
    posted_ = 0;
    const auto still_expected = std::count(finished_.begin(), finished_.end(), 0);
    for (std::size_t n = nodes.size(); n-- > 0;) {
      const auto gathered = boards_.exchange->gathered(n);
      for (std::size_t slot = nodes[n].size(); slot-- > 0;) {
        post_gathered(nodes[n][slot], gathered[slot]);
      }
    }
    // The coordinator would wait for the others, who are not in this round any more.
    if (posted_ < static_cast<std::size_t>(still_expected)) boards_.own->signals.notify();
  }

  void post_gathered(RankId expected, const RankSignal& signal) {
    auto& finished = finished_[static_cast<std::size_t>(expected.value())];
    // A rank's last report comes again and again until all have finished.
    if (signal.magic == 0 || finished != 0) return;
    const bool fits = check(signal).ok() && signal.rank == expected;
    if (fits && signal.has(SignalFlag::finished)) finished = 1;
    // The first one carries what was merged. closed() has seen every slot of the inbox taken, so
    // this cannot be refused.
    const auto evidence =
        posted_ == 0 ? boards_.exchange->evidence() : std::span<const BlockEvidence>();
    posted_ += boards_.own->signals.post(expected.value(), signal, evidence) ? 1 : 0;
  }

  void read_masks(PlanBook& plans) {
    if (!masks_.poll()) return;
    for (const auto frame : masks_.frames()) plans.hold(frame);
  }

  void pump_broadcast(PlanBook& plans) {
    switch (boards_.broadcast->poll()) {
      case MaskBroadcast::Arrival::nothing:
        return;
      case MaskBroadcast::Arrival::damaged:
        return plans.note_damage();
      case MaskBroadcast::Arrival::frames:
        for (const auto frame : boards_.broadcast->frames()) plans.hold(frame);
    }
  }

  // Rank 0: the frames of the next broadcast; none elsewhere.
  MaskBroadcast::Frames next_frames() {
    if (!boards_.outbox || !mask_waits()) return {};
    const auto waiting = outbox_.frames().subspan(outgoing_next_);
    const auto sent = waiting.first(std::min(waiting.size(), MaskBroadcast::kFramesAtOnce));
    outgoing_next_ += sent.size();
    return sent;
  }

  // From this round on masks go as without a device. What was on its way is sent again: frames that
  // come twice change nothing.
  void leave_nccl() {
    boards_.broadcast->give_up(unavailable("another rank's NCCL failed; its own log says why"));
    uses_nccl_ = false;
    log_.warning("masks go without NCCL from here on: " + boards_.broadcast->status().message());
    outgoing_next_ = 0;
    relays_outbox_ = boards_.outbox && !boards_.own;
    if (relays_outbox_) show_outbox();
  }

  // Rank 0 of one node: the coordinator goes on writing to the outbox, which nobody else sees.
  void show_outbox() {
    static_cast<void>(outbox_.poll());
    if (outbox_.frames().empty()) return;
    const Status shown = boards_.node.masks.publish(outbox_.frames());
    if (!shown.ok()) log_.on_change(LogLevel::error, "masks", shown.text());
  }

  MaskParcel next_parcel() {
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

  // An exchange that gets nowhere may wait for a leader that failed, whose name is heard only once
  // all leaders have said their last words.
  void pump_ending() {
    if (stage_ == Stage::exchanging && SteadyClock::now() - opened_ > kStuck) end_exchange();
    const auto progress = boards_.exchange->pump_end();
    all_end_ = !progress.ok() || *progress == Progress::done;
    if (!progress.ok() && stage_ != Stage::broken) break_off(progress.status());
  }

  void break_off(const Status& why) {
    stage_ = Stage::broken;
    status_ = why;
    log_.error("control rounds end here, the plan stays as it is: " + why.text());
  }

  Boards& boards_;
  Seconds late_;
  Log log_;
  Stage stage_ = Stage::idle;
  Downward downward_ = Downward::word;  // of the round that is open
  Status status_;
  std::chrono::steady_clock::time_point opened_{};
  transport::MaskReader masks_;

  // Leaders with an exchange.
  std::optional<NodeReports> reports_;
  std::optional<MaskRelay> relay_;
  bool has_begun_ending_ = false;
  bool all_end_ = false;
  bool is_ending_ = false;
  std::uint16_t rounds_left_ = 0;  // once the end is near: exchanges still to come

  // The root with an exchange or a broadcast.
  transport::MaskReader outbox_;
  std::size_t outgoing_next_ = 0;       // of outbox_.frames(): the next one to send
  std::vector<std::uint8_t> finished_;  // 1 for ranks whose last report has arrived
  std::size_t posted_ = 0;              // reports of the last round

  // Masks over NCCL.
  bool uses_nccl_;
  bool relays_outbox_ = false;  // rank 0 of one node, after NCCL was left
};

ControlPlane::ControlPlane(JobFacts job, Log log, StartFacts start, Plan first)
    : job_(std::move(job)), log_(std::move(log)), start_(start), plans_(job_, std::move(first)) {}

Result<std::unique_ptr<ControlPlane>> ControlPlane::start(transport::Communicator& world,
                                                          ControlPlaneSetup setup) {
  auto nodes = find_nodes(world);
  if (!nodes.ok()) return nodes.status();
  StartFacts facts = facts_from(setup.restored);
  if (Status told = broadcast(world, facts, start_up_patience(world)); !told.ok()) return told;
  JobFacts job = setup.job;
  job.incarnation = facts.incarnation;
  job.node_of_rank = nodes->node_of_rank;
  drop_wrong_facts(job, setup.log);

  Refitted refitted =
      setup.restored ? refit(std::move(*setup.restored), job) : Refitted{initial_state(job), {}};
  JournalHead head;  // rank 0
  if (world.rank() == kRoot) {
    JournalledStart started =
        begin_journalled(job, setup.config, setup.policies, std::move(refitted.state));
    head = std::move(started.head);
    refitted.state = std::move(started.begun.state);
    std::move(started.begun.reasons.begin(), started.begun.reasons.end(),
              std::back_inserter(refitted.reasons));
  }
  auto first = broadcast_first_plan(world, job, refitted.state.plan);
  if (!first.ok()) return first.status();

  std::unique_ptr<ControlPlane> plane(new ControlPlane(job, setup.log, facts, std::move(*first)));
  for (const Reason& reason : refitted.reasons) {
    if (!is_provisional(reason)) setup.log.info(reason.text);
  }
  if (Status set_up = plane->set_up_marks_of(world, *nodes); !set_up.ok()) return set_up;
  auto boards = set_up_boards(world, *nodes, job, setup.config.control, setup.log);
  if (!boards.ok()) return boards.status();
  plane->boards_ = std::make_unique<Boards>(std::move(*boards));
  Status added = add_mask_broadcast(world, *plane->boards_, job, setup.config.control,
                                    {setup.make_lane, setup.nccl_library, {}, {}}, setup.log);
  if (!added.ok()) return added;
  plane->link_ = std::make_unique<ControlLink>(
      *plane->boards_, Seconds(setup.config.control.late_seconds), setup.log);
  if (world.rank() == kRoot) plane->start_loop(std::move(setup), std::move(refitted), head);
  return plane;
}

Status ControlPlane::set_up_marks_of(transport::Communicator& world, NodeGroup& nodes) {
  auto marks = set_up_marks(nodes, world.rank(), log_);
  if (!marks.ok()) return marks.status();
  marks_ = std::move(*marks);
  mark_ = marks_->writer();
  mark_.begin_round(start_.first_round, transport::MarkClock::now());
  return transport::take(set_up_relay(world, nodes, *marks_, log_), mail_);
}

void ControlPlane::start_stall_watch(const ControlPlaneSetup& setup) {
  stalls_ = std::make_unique<StallWatch>(
      StallWatchParts{[this](auto now) { return mail_.marks_of_all(*marks_, job_.ranks(), now); },
                      [this, show = setup.on_stall](const std::optional<Stall>& stall) {
                        if (stall && mail_.post)
                          mail_.post->answer(*stall, transport::MarkClock::now());
                        if (show) show(stall);
                      },
                      setup.on_hopeless, Seconds(setup.config.control.wait_seconds), setup.log});
}

std::vector<RankMark> ControlPlane::marks_here() const {
  return marks_->read_all_known(transport::MarkClock::now());
}

void ControlPlane::start_loop(ControlPlaneSetup setup, Refitted refitted, const JournalHead& head) {
  StepSink* sink = setup.make_sink ? setup.make_sink(job_) : nullptr;
  if (!setup.journal.empty()) {
    auto journal = JournalWriter::open(setup.journal, head);
    if (journal.ok()) {
      journal_ = std::move(*journal);
    } else {
      setup.log.error("no journal is kept: " + journal.status().text());
    }
  }
  start_stall_watch(setup);
  loop_ = std::make_unique<ControlLoop>(ControlLoopParts{
      job_, std::move(setup.config), std::move(setup.policies), std::move(refitted.state),
      &boards_->reports(), &boards_->masks(), journal_.get(), sink, std::move(refitted.reasons),
      std::move(setup.now), std::move(setup.log), stalls_.get()});
  thread_ = std::thread([this] {
    let_training_go_first();
    loop_->run();
  });
}

Result<std::vector<Reason>> ControlPlane::learn(transport::Communicator& world,
                                                MeasuredFacts facts) {
  std::vector<Reason> reasons;
  Plan first = plans_.active();
  if (loop_) {
    job_.memory = std::move(facts.memory);
    job_.precision = std::move(facts.precision);
    drop_wrong_facts(job_, log_);
    reasons = loop_->begin(job_);
    if (const auto state = loop_->state()) first = state->plan;
  }
  auto told = broadcast_first_plan(world, job_, first);
  if (!told.ok()) return told.status();
  plans_ = PlanBook(job_, std::move(*told));
  return reasons;
}

ControlPlane::~ControlPlane() {
  if (!thread_.joinable()) return;
  loop_->stop();
  thread_.join();
}

void ControlPlane::pump() {
  link_->pump(plans_);
}

bool ControlPlane::is_mask_setting_out() const {
  return boards_->broadcast && boards_->broadcast->is_setting_out();
}

bool ControlPlane::round_closed() const {
  return link_->closed();
}

const Status& ControlPlane::control_status() const {
  return link_->status();
}

void ControlPlane::cast(StepBallot& ballot) {
  ballot.plan_held_min = plans_.held_number();
  ballot.round_closed_min = link_->closed() ? 1 : 0;
  ballot.mask_waits_max = link_->mask_waits() ? 1 : 0;
  ballot.mask_lane_min = link_->mask_lane();
}

void ControlPlane::agree(RoundId round, const StepBallot& merged) {
  plans_.agree(round, merged);
  link_->agree(merged);
  mask_comes_ = merged.mask_waits_max == 1 && !link_->uses_nccl();
}

std::string ControlPlane::path() const {
  return boards_->path + (link_->uses_nccl() ? "+nccl" : "");
}

Status ControlPlane::masks_status() const {
  return boards_->broadcast ? boards_->broadcast->status() : boards_->no_broadcast;
}

void ControlPlane::report(RankSignal signal, std::span<const BlockEvidence> evidence,
                          MayOpen may_open) {
  if (plans_.full_plan_wanted()) signal.set(SignalFlag::full_plan_wanted);
  signal.plan_held = plans_.held_number();
  signal.control_errors = plans_.frame_errors();
  if (waiting_) signal = merge_reports(*waiting_, signal);
  waiting_evidence_.resize(job_.blocks.size());
  evidence = evidence.first(std::min(evidence.size(), waiting_evidence_.size()));
  merge_into(std::span(waiting_evidence_).first(evidence.size()), evidence);
  if (may_open == MayOpen::no || !link_->closed()) {
    waiting_ = signal;
    return;
  }
  seal(signal);
  // Ranks that only watch apply no plans, and agree on nothing.
  const bool with_mask = std::exchange(mask_comes_, false) && !signal.has(SignalFlag::watching);
  link_->open(signal, waiting_evidence_, with_mask ? Downward::mask : Downward::word);
  waiting_.reset();
  std::fill(waiting_evidence_.begin(), waiting_evidence_.end(), BlockEvidence{});
  link_->pump(plans_);
}

// Ranks that go on wait for this one in their next round; no round before it can.
Status ControlPlane::check_nobody_waits() const {
  for (const RankMark& mark : marks_here()) {
    const bool waits_for_us = mark.activity == Activity::waiting && mark.round >= mark_.round() &&
                              mark.waited_seconds() >= kWaitsForUsSeconds;
    if (!waits_for_us) continue;
    return failed_precondition(
        "expected all ranks at the end of the training loop, found rank ", mark.rank,
        " waiting for this one in step ", mark.step,
        "; a rank that ends earlier than others goes on with Reducer::join()");
  }
  return ok_status();
}

Status ControlPlane::finish(RankSignal last) {
  last.set(SignalFlag::finished);
  mark_.enter(Activity::finished, last.step, transport::MarkClock::now());
  const auto ending = last.has(SignalFlag::watching) ? Ending::each_when_done : Ending::together;
  transport::Waiter waiter(transport::with_timeout(
      transport::wait_policy(job_.world_size, transport::usable_cores()),
      ending == Ending::together ? kTogetherLimit : kWatchingLimit, "all ranks to finish"));
  Status left_early;
  auto next_check = SteadyClock::now() + kMarksEvery;
  const auto go_on = [&] {
    if (is_hopeless()) return false;
    const Status paused = waiter.pause();
    if (!paused.ok()) log_.error("left before all ranks had finished: " + paused.message());
    if (ending == Ending::together && SteadyClock::now() >= next_check) {
      left_early = check_nobody_waits();
      next_check = SteadyClock::now() + kMarksEvery;
    }
    return paused.ok() && left_early.ok();
  };
  mask_comes_ = false;
  link_->begin_ending();
  // A round that is under way everywhere is brought to its end, then the last report goes out.
  while (!link_->closed() && go_on()) pump();
  report(last, {}, MayOpen::yes);
  while (!may_leave(ending) && go_on()) {
    pump();
    // The ranks that still go on need this one in every exchange.
    const bool is_needed = ending == Ending::each_when_done && !link_->exchange_ended();
    if (is_needed && link_->closed()) report(last, {}, MayOpen::yes);
  }
  stop_loop();
  return left_early;
}

void ControlPlane::stop_loop() {
  if (!thread_.joinable()) return;
  loop_->stop();
  thread_.join();
  if (!journal_) return;
  if (const Status closed = journal_->close(); !closed.ok()) log_.error(closed.text());
}

// No further round will come, and nobody needs this rank for one.
bool ControlPlane::is_hopeless() {
  return !link_->status().ok() && link_->node_finished() && link_->all_leaders_end();
}

bool ControlPlane::may_leave(Ending ending) {
  if (!link_->closed() || !link_->node_finished()) return false;
  if (ending == Ending::each_when_done && !link_->exchange_ended()) return false;
  link_->end_exchange();
  if (!link_->all_leaders_end()) return false;
  // Without an exchange the coordinator itself takes the last reports of all ranks.
  return !loop_ || boards_->exchange || loop_->all_finished();
}

std::optional<ControlState> ControlPlane::state() const {
  return loop_ ? loop_->state() : std::nullopt;
}

}  // namespace cox::runtime
