#include "tests/bench/control_rounds.h"

#include <sched.h>

#include <chrono>

#include "coordinator/policies/registry.h"

namespace cox::bench {
namespace {

// Proposes another plan in every round, so that every round ends with a mask.
class EveryRound final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "every_round"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    Proposal proposal{SetBatch{input.plan.step_samples == 0 ? 64u : 0u}, {}};
    proposal.reason.code = ReasonCode::custom;
    proposal.reason.text = "another plan in every round";
    return {{proposal}, {}, std::move(state)};
  }
};

JobFacts facts(std::int32_t ranks, std::size_t blocks) {
  JobFacts job;
  job.name = "control rounds";
  job.world_size = ranks;
  for (std::size_t b = 0; b < blocks; ++b) job.blocks.push_back("block " + std::to_string(b));
  job.capabilities.accumulation = true;
  return job;
}

}  // namespace

void AnswerCount::record(const StepRecord& record) {
  {
    const std::scoped_lock lock(mutex_);
    decide_us_.push_back(1e6 * record.counters.decide_seconds);
  }
  answered_.fetch_add(1, std::memory_order_release);
}

std::vector<double> AnswerCount::decide_microseconds() const {
  const std::scoped_lock lock(mutex_);
  return decide_us_;
}

Result<std::unique_ptr<ControlRounds>> ControlRounds::start(transport::Communicator& world,
                                                            ControlPath path, std::size_t blocks) {
  std::unique_ptr<ControlRounds> rounds(new ControlRounds());
  rounds->rank_ = world.rank();
  rounds->path_ = path;
  runtime::ControlPlaneSetup setup;
  setup.job = facts(world.size(), blocks);
  setup.config.control.path = path;
  setup.config.control.late_seconds = 60;  // a rank on a busy machine is not missing
  setup.policies = default_policies();
  setup.policies.push_back(std::make_shared<EveryRound>());
  setup.make_sink = [sink = &rounds->answers_](const JobFacts&) { return sink; };
  setup.now = [] {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return UnixTime{std::chrono::duration<double>(since).count()};
  };
  auto plane = runtime::ControlPlane::start(world, std::move(setup));
  if (!plane.ok()) return plane.status();
  rounds->plane_ = std::move(*plane);
  rounds->round_ = rounds->plane_->start_facts().first_round;
  return rounds;
}

RankSignal ControlRounds::signal() const {
  RankSignal signal;
  signal.rank = rank_;
  signal.incarnation = plane_->job().incarnation;
  signal.round = round_;
  signal.plan_applied = plane_->plan_held();
  signal.loss = signal.weight = 1;
  signal.wall_seconds = 0.1;
  signal.phase_seconds[static_cast<std::size_t>(Phase::forward)] = 0.1f;
  signal.rounds = signal.samples = 1;
  return signal;
}

bool ControlRounds::is_over(std::uint64_t held_before) const {
  if (path_ == ControlPath::mailbox) return plane_->plan_held() > held_before;
  return plane_->round_closed() && (rank_ != kRoot || answers_.answered() >= rounds_);
}

bool ControlRounds::round() {
  const std::uint64_t held = plane_->plan_held();
  ++rounds_;
  StepBallot with_mask;  // every measured round has a frame on its way down
  with_mask.mask_waits_max = 1;
  plane_->agree(round_, with_mask);
  plane_->report(signal(), {}, runtime::MayOpen::yes);
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t polls = 1; !is_over(held); ++polls) {
    sched_yield();
    plane_->pump();
    const bool look = polls % 4096 == 0;
    if (look && std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) return false;
  }
  round_ = round_.next();
  return true;
}

void ControlRounds::finish() {
  static_cast<void>(plane_->finish(signal()));
}

}  // namespace cox::bench
