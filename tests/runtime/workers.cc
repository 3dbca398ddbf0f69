#include "tests/runtime/workers.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>

#include "coordinator/core/hash.h"
#include "coordinator/core/loss_scale.h"
#include "coordinator/runtime/control_plane.h"
#include "coordinator/testing/random.h"
#include "coordinator/transport/wait.h"

namespace cox::test {
namespace {

using runtime::ControlPlane;
using runtime::MayOpen;

std::uint64_t hash_of(const Plan& plan) {
  Fnv1a64 hash;
  for (const Precision p : plan.precision) hash.add(static_cast<std::uint64_t>(p));
  hash.add(plan.profiles.size());
  for (const auto& actions : plan.profiles) {
    for (const MemoryAction a : actions) hash.add(static_cast<std::uint64_t>(a));
  }
  hash.add(plan.rank_profile.size());
  for (const ProfileId c : plan.rank_profile) hash.add(c.value());
  hash.add(plan.shares.size());
  for (const std::uint32_t s : plan.shares) hash.add(s);
  hash.add(plan.step_samples);
  hash.add(plan.hold_until.value());
  hash.add(plan.rollback.ticket);
  hash.add(plan.rollback.before_round.value());
  hash.add(plan.id.incarnation);
  hash.add(plan.earliest_round.value());
  hash.add(std::bit_cast<std::uint32_t>(plan.scaler.max_scale));
  hash.add(plan.scaler.growth_interval);
  return hash.value();
}

std::uint64_t hash_of(const ScalerState& state) {
  Fnv1a64 hash;
  hash.add(std::bit_cast<std::uint32_t>(state.scale));
  hash.add(state.clean_steps);
  hash.add(state.overflow_streak);
  hash.add(std::bit_cast<std::uint32_t>(state.peak));
  hash.add(std::bit_cast<std::uint32_t>(state.former_peak));
  hash.add(state.strikes);
  return hash.value();
}

runtime::ControlPlaneSetup setup_for(std::int32_t ranks, const WorkerOptions& options) {
  runtime::ControlPlaneSetup setup;
  setup.job = job_of_workers(ranks, options.blocks);
  setup.config.control.path = options.path;
  setup.config.control.late_seconds = options.late_seconds;
  setup.policies = options.policies;
  setup.now = [] { return UnixTime{}; };
  setup.make_sink = [sink = options.sink](const JobFacts&) { return sink; };
  setup.journal = options.journal;
  setup.make_lane = options.make_lane;
  if (!options.nccl_library.empty()) setup.nccl_library = options.nccl_library;
  const Status read = apply_text(setup.config, options.settings, "workers");
  if (!read.ok()) setup.job.blocks.clear();
  return setup;
}

// A running rank.
class Worker {
 public:
  Worker(transport::Communicator& world, ControlPlane& plane, const WorkerOptions& options)
      : world_(world),
        plane_(plane),
        options_(options),
        evidence_(plane.job().blocks.size()),
        numbers_(static_cast<std::uint64_t>(world.rank().value()) + 1),
        scaler_(initial_state(plane.plan().scaler)),
        patience_(
            transport::with_timeout(transport::wait_policy(world.size(), transport::usable_cores()),
                                    std::chrono::seconds(60), "the other ranks' step")) {}

  Status train_round(transport::Communicator& data, WorkerTrace& trace);
  RankSignal signal() const;
  std::vector<BlockEvidence>& evidence() { return evidence_; }
  void next_round() { round_ = round_.next(); }

 private:
  bool has_samples() const {
    const bool ends_early = world_.rank().value() % 2 == 1;
    return !ends_early || round_.value() < options_.rounds / 2;
  }
  void note_plan(WorkerTrace& trace);
  void let_control_catch_up();
  void draw_numbers();
  StepBallot ballot();

  transport::Communicator& world_;
  ControlPlane& plane_;
  const WorkerOptions& options_;
  RoundId round_{};
  std::uint64_t held_by_all_ = 0;  // from the last merged ballot
  InForce in_force_{};
  std::vector<BlockEvidence> evidence_;
  testing::Random numbers_;  // different on every rank
  ScalerState scaler_;
  float gradient_ = 0;  // the round's largest, unscaled
  bool overflows_ = false;
  transport::WaitPolicy patience_;
};

// Draws a rank's gradients of one round. Each block may go wrong, which only its rank knows.
void Worker::draw_numbers() {
  gradient_ = std::exp2(static_cast<float>(2 * numbers_.normal() - 6));
  overflows_ = numbers_.chance(0.002) || gradient_ * scaler_.scale > 65504.0f;
  for (BlockEvidence& evidence : evidence_) {
    evidence = {};
    evidence.sampled = 100;
    evidence.noise_sum = 4;
    evidence.noise_count = 1;
    evidence.gradient = {gradient_, world_.rank()};
    if (numbers_.chance(0.02)) evidence.underflow = 90;
    if (numbers_.chance(0.004)) evidence.saturated = 50;
  }
  if (!overflows_ || evidence_.empty()) return;
  BlockEvidence& blamed = evidence_[numbers_.below(evidence_.size())];
  blamed.overflow_backward = 1;
  blamed.rank_of_overflow = world_.rank();
}

RankSignal Worker::signal() const {
  RankSignal signal;
  signal.rank = world_.rank();
  signal.incarnation = plane_.job().incarnation;
  signal.round = round_;
  signal.step = StepId(round_.value());
  signal.plan_applied = plane_.plan().id.number;
  signal.rounds = 1;
  signal.wall_seconds = 0.1;
  signal.loss = has_samples() ? 2.5 : std::numeric_limits<double>::quiet_NaN();
  signal.weight = has_samples() ? 8 : 0;
  signal.samples = has_samples() ? 8 : 0;
  signal.loss_scale = options_.has_numbers ? scaler_.scale : 0;
  signal.nonfinite_values = overflows_ ? 1 : 0;
  return signal;
}

StepBallot Worker::ballot() {
  StepBallot ballot;
  ballot.weight = has_samples() ? 8 : 0;
  plane_.cast(ballot);
  ballot.overflow_ranks = overflows_ ? 1 : 0;
  ballot.amax_max = overflows_ ? 0 : static_cast<double>(gradient_ * scaler_.scale);
  ballot.fingerprint_min = ballot.fingerprint_max =
      in_force_.effect ^ in_force_.scaler ^ round_.value();
  return ballot;
}

void Worker::note_plan(WorkerTrace& trace) {
  const Plan& plan = plane_.plan();
  const bool is_first = trace.rounds.empty();
  const bool changed = !is_first && plan.id.number != in_force_.number;
  if (changed) {
    ++trace.switches;
    const Status valid = validate(plan, plane_.job());
    if (!valid.ok()) trace.trouble = valid.text();
    if (plan.id.number < in_force_.number) trace.trouble = "a plan number went back";
    if (plan.id.number > held_by_all_) trace.trouble = "a plan that not all ranks held";
    if (plan.earliest_round > round_) trace.trouble = "a plan before its earliest round";
    if (plan.activated_round != round_) trace.trouble = "activated_round is another round";
  }
  in_force_ = {plan.id.number, hash_of(plan), hash_of(scaler_)};
  trace.rounds.push_back(in_force_);
}

// Slows down half of the rounds. Rounds without work would outrun the coordinator and merge their
// reports; slow ones take as long as a control round. On a busy machine the coordinator gets a core
// only while a rank sleeps.
void Worker::let_control_catch_up() {
  constexpr int kYields = 300;
  constexpr int kSleeps = 4;
  if (round_.value() / 64 % 2 == 1) return;
  for (int i = 0; i < kYields + kSleeps && !plane_.round_closed(); ++i) {
    plane_.pump();
    if (i < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

Status Worker::train_round(transport::Communicator& data, WorkerTrace& trace) {
  plane_.begin_round();
  note_plan(trace);
  if (options_.has_numbers) draw_numbers();
  let_control_catch_up();
  StepBallot merged = ballot();
  auto request = data.start_all_reduce(std::as_writable_bytes(std::span(&merged, 1)),
                                       transport::merging<StepBallot>());
  if (!request.ok()) return request.status();
  const Status reduced = transport::wait_with(data, *request, patience_, [this] { plane_.pump(); });
  if (!reduced.ok()) return reduced;
  if (merged.fingerprint_min != merged.fingerprint_max) {
    return internal_error("ranks have different plans in round " + std::to_string(round_.value()));
  }
  if (merged.plan_held_min < held_by_all_) return internal_error("a held plan was forgotten");
  held_by_all_ = merged.plan_held_min;
  plane_.agree(round_, merged);
  const ScalerStep agreed{merged.overflow_ranks > 0, static_cast<float>(merged.amax_max)};
  if (options_.has_numbers) scaler_ = advance(scaler_, plane_.plan().scaler, agreed);
  if (world_.rank().value() == options_.late_rank && round_.value() % 16 == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  plane_.report(signal(), evidence_, merged.round_closed_min == 1 ? MayOpen::yes : MayOpen::no);
  next_round();
  return trace.trouble.empty() ? ok_status() : internal_error(trace.trouble);
}

WorkerTrace in_trouble(const Status& status) {
  WorkerTrace trace;
  trace.trouble = status.text();
  return trace;
}

}  // namespace

JobFacts job_of_workers(std::int32_t ranks, std::size_t blocks) {
  JobFacts job;
  job.name = "workers";
  job.world_size = ranks;
  for (std::size_t b = 0; b < blocks; ++b) job.blocks.push_back("block." + std::to_string(b));
  job.global_batch = 64;
  job.capabilities = {0xF, 0xF, true, true, true};
  return job;
}

WorkerTrace train(transport::Communicator& world, const WorkerOptions& options) {
  auto data = world.duplicate();
  if (!data.ok()) return in_trouble(data.status());
  auto plane = ControlPlane::start(world, setup_for(world.size(), options));
  if (!plane.ok()) return in_trouble(plane.status());
  WorkerTrace trace;
  trace.path = (*plane)->path();
  trace.rounds.reserve(options.rounds);
  Worker worker(world, **plane, options);
  const auto uses_nccl = [&] { return (*plane)->path().find("nccl") != std::string::npos; };
  const auto goes_on = [&](std::uint64_t counted) {
    if (counted < options.rounds) return true;
    const bool may_wait = trace.rounds.size() < 1'000 * options.rounds;
    return may_wait && trace.switches < options.least_switches;
  };
  for (std::uint64_t counted = 0; goes_on(counted);) {
    if (!options.leaves_nccl || !uses_nccl()) ++counted;
    const Status trained = worker.train_round(**data, trace);
    if (trained.ok()) continue;
    trace.trouble = trained.text();
    return trace;
  }
  trace.last_path = (*plane)->path();
  trace.masks = (*plane)->masks_status();
  const Status ended = (*plane)->finish(worker.signal());
  trace.control = (*plane)->control_status();
  if (!ended.ok()) trace.trouble = ended.text();
  return trace;
}

WorkerTrace watch(transport::Communicator& world, const WorkerOptions& options) {
  auto plane = ControlPlane::start(world, setup_for(world.size(), options));
  if (!plane.ok()) return in_trouble(plane.status());
  WorkerTrace trace;
  trace.path = (*plane)->path();
  Worker worker(world, **plane, options);
  const auto watched = [&worker] {
    RankSignal signal = worker.signal();
    signal.set(SignalFlag::watching);
    signal.plan_applied = 0;
    return signal;
  };
  for (std::uint64_t r = 0; r < options.rounds; ++r) {
    (*plane)->begin_round();
    (*plane)->report(watched(), worker.evidence(), MayOpen::yes);
    (*plane)->pump();
    worker.next_round();
    std::this_thread::yield();
  }
  const Status ended = (*plane)->finish(watched());
  trace.control = (*plane)->control_status();
  if (!ended.ok()) trace.trouble = ended.text();
  return trace;
}

void TallySink::record(const StepRecord& record) {
  counters = record.counters;
  reports_of_rank.resize(static_cast<std::size_t>(record.job.world_size));
  for (const RankSignal& report : record.signals.reports) {
    ++reports_of_rank[static_cast<std::size_t>(report.rank.value())];
  }
}

}  // namespace cox::test
