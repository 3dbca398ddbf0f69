#include "coordinator/runtime/control_plane.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/text.h"
#include "coordinator/io/thread.h"
#include "coordinator/runtime/control_link.h"
#include "coordinator/transport/wait.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {
namespace {

using transport::Communicator;
using SteadyClock = std::chrono::steady_clock;

// Limits of finish(). Ranks that train call finish() after the same step, other ranks at any time.
constexpr Seconds kTogetherLimit = std::chrono::minutes(10);
constexpr std::chrono::nanoseconds kWatchingLimit = std::chrono::hours(24);

constexpr std::chrono::milliseconds kMarksEvery{500};
constexpr double kWaitsForUsSeconds = 2;

// On Linux a waking batch thread does not preempt its waker. The training thread that posted the
// last report goes on; the coordinator gets the next free core, or its turn. Training needs the
// core more. If the kernel refuses the policy, only the preference is lost.
void let_training_go_first() {
  sched_param none{};
  static_cast<void>(sched_setscheduler(0, SCHED_BATCH, &none));
}

// Returns rank 0's facts about a restored run.
StartFacts facts_from(const std::optional<ControlState>& restored) {
  if (!restored) return {};
  StartFacts facts{restored->plan.id.incarnation + 1, RoundId{}};
  if (!restored->history.empty())
    facts.first_round = restored->history.rounds().back().round.next();
  return facts;
}

// Drops invalid measured facts: decisions rely on facts, and a journal with invalid ones could not
// be read again.
void drop_wrong_facts(JobFacts& job, Log& log) {
  const Status memory =
      validate(job.memory, static_cast<std::size_t>(job.world_size), job.blocks.size());
  if (!memory.ok()) {
    log.error(concat("memory is not planned: ", memory.message()));
    job.memory = {};
  }
  const Status precision = validate(job.precision, job.blocks.size());
  if (!precision.ok()) {
    log.error(concat("costs of number formats are not known, so none is chosen by speed: ",
                     precision.message()));
    job.precision = {};
  }
}

// Copies rank 0's plan (number 0) to all ranks, as mask frames. REQUIRES: the plan is valid for
// `job`.
Result<Plan> broadcast_first_plan(Communicator& world, const JobFacts& job, const Plan& mine) {
  Plan numbered = mine;
  numbered.id = {job.incarnation, 1};  // an assembler would ignore frames of number 0
  std::vector<wire::Frame> frames;
  if (world.rank() == kRoot) {
    auto encoded = wire::encode_plan(numbered, nullptr);
    if (!encoded.ok()) return encoded.status();
    frames = std::move(*encoded);
  }
  const transport::WaitPolicy patience = start_up_patience(world);
  std::uint64_t count = frames.size();
  if (Status s = broadcast(world, count, patience); !s.ok()) return s;
  if (count > wire::kMaxContinuations + 1) {
    return data_loss("first plan: expected at most ", wire::kMaxContinuations + 1,
                     " frames, found ", count, " announced by rank 0");
  }
  frames.resize(count);
  if (Status s = broadcast(world, std::span(frames), patience); !s.ok()) return s;
  wire::PlanAssembler assembler(job, initial_plan(job));
  for (const wire::Frame& frame : frames) {
    if (auto fed = assembler.feed(frame.used()); !fed.ok()) return fed.status();
  }
  Plan first = assembler.held();
  first.id.number = 0;
  return first;
}

}  // namespace

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
  plane->together_limit_ = std::min(kTogetherLimit, Seconds(setup.config.control.wait_seconds));
  plane->link_ = std::make_unique<ControlLink>(
      *plane->boards_, Seconds(setup.config.control.late_seconds), setup.log);
  if (world.rank() != kRoot) return plane;
  const Status started = plane->start_loop(std::move(setup), std::move(refitted), head);
  if (!started.ok()) return started;
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

// Decisions, and the end of the job, need the thread.
Status ControlPlane::start_loop(ControlPlaneSetup setup, Refitted refitted,
                                const JournalHead& head) {
  StepSink* sink = setup.make_sink ? setup.make_sink(job_) : nullptr;
  if (!setup.journal.empty()) {
    auto journal = JournalWriter::open(setup.journal, head);
    if (journal.ok()) {
      journal_ = std::move(*journal);
      if (!journal_->moved_aside().empty())
        setup.log.warning("the journal of an older version is kept as " +
                          journal_->moved_aside().string() + "; this start begins another file");
    } else {
      setup.log.error(concat("no journal is kept: ", journal.status().text()));
    }
  }
  start_stall_watch(setup);
  loop_ = std::make_unique<ControlLoop>(ControlLoopParts{
      job_, std::move(setup.config), std::move(setup.policies), std::move(refitted.state),
      &boards_->reports(), &boards_->masks(), journal_.get(), sink, std::move(refitted.reasons),
      std::move(setup.now), std::move(setup.log), stalls_.get()});
  return transport::take(io::start_thread("coordinator",
                                          [this] {
                                            let_training_go_first();
                                            loop_->run();
                                          }),
                         thread_);
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
  return concat(boards_->path, link_->uses_nccl() ? "+nccl" : "");
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
  // Ranks that only watch apply no plans and do not vote.
  const bool with_mask = std::exchange(mask_comes_, false) && !signal.has(SignalFlag::watching);
  link_->open(signal, waiting_evidence_, with_mask ? Downward::mask : Downward::word);
  waiting_.reset();
  std::fill(waiting_evidence_.begin(), waiting_evidence_.end(), BlockEvidence{});
  link_->pump(plans_);
}

// Ranks that still train wait for the caller in their next round. An earlier round cannot wait.
Status ControlPlane::check_nobody_waits() const {
  for (const RankMark& mark : marks_here()) {
    const bool waits_for_us = mark.activity == Activity::waiting && mark.round >= mark_.round() &&
                              mark.waited_seconds() >= kWaitsForUsSeconds;
    if (!waits_for_us) continue;
    return failed_precondition("expected all ranks at the end of the training loop, found rank ",
                               mark.rank, " waiting for this one in step ", mark.step,
                               "; give all ranks equally many steps, or see docs/data-parallel.md");
  }
  return ok_status();
}

Status ControlPlane::finish(RankSignal last) {
  last.set(SignalFlag::finished);
  mark_.enter(Activity::finished, last.step, transport::MarkClock::now());
  const auto ending = last.has(SignalFlag::watching) ? Ending::each_when_done : Ending::together;
  transport::Waiter waiter(transport::with_timeout(
      transport::wait_policy(job_.world_size, transport::usable_cores()),
      ending == Ending::together
          ? std::chrono::duration_cast<std::chrono::nanoseconds>(together_limit_)
          : kWatchingLimit,
      "all ranks to finish"));
  Status left_early;
  auto next_check = SteadyClock::now() + kMarksEvery;
  const auto go_on = [&] {
    if (is_hopeless()) return false;
    const Status paused = waiter.pause();
    if (!paused.ok()) log_.error(concat("left before all ranks had finished: ", paused.message()));
    if (ending == Ending::together && SteadyClock::now() >= next_check) {
      left_early = check_nobody_waits();
      next_check = SteadyClock::now() + kMarksEvery;
    }
    return paused.ok() && left_early.ok();
  };
  mask_comes_ = false;
  link_->begin_ending();
  // First complete a round that is under way everywhere, then send the last report.
  while (!link_->closed() && go_on()) pump();
  report(last, {}, MayOpen::yes);
  while (!may_leave(ending) && go_on()) {
    pump();
    // The ranks that still train need the caller in every exchange.
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

// Returns whether no further round will come and no other rank needs the caller.
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
