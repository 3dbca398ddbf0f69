#include "simulated_job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cox::metrics {
namespace {

constexpr std::uint32_t kMicroBatch = 4;
constexpr std::uint64_t kLeakBytes = 2 << 20;  // in each round

std::uint32_t micro_batches(std::int32_t rank) {
  return 2 + 2 * (static_cast<std::uint32_t>(rank) % 3);
}

bool is_saving(std::size_t block) {
  return block >= 1 && block <= kSimulatedBlocks;
}

// Returns a model of two plans: those blocks have `saving`, or all are kept.
MemoryModel memory_model(std::size_t blocks, MemoryAction saving) {
  MemoryModel model;
  model.base_bytes = std::int64_t{1} << 30;
  model.step_us = 380'000;
  const std::vector<MemoryAction> keep(blocks, MemoryAction::keep);
  MemoryPoint light{kSimulatedKeepPeak, 0, keep};
  MemoryPoint heavy{kSimulatedKeepPeak - kSimulatedSaving, 15'580, keep};
  for (std::size_t b = 0; b < blocks; ++b) {
    if (is_saving(b)) heavy.actions[b] = saving;
    model.kept_bytes.push_back(is_saving(b) ? kSimulatedSaving / 4 : 1 << 20);
  }
  if (heavy.actions != light.actions) model.front.push_back(heavy);
  model.front.push_back(light);
  return model;
}

JobFacts facts(const SimulatedSetup& setup) {
  JobFacts job;
  job.name = setup.name;
  job.incarnation = 1;
  job.world_size = setup.ranks;
  job.blocks.push_back("embedding");
  for (std::size_t i = 0; i + 2 < setup.blocks; ++i) job.blocks.push_back("h." + std::to_string(i));
  if (setup.blocks > 1) job.blocks.push_back("ln_f");
  job.blocks.resize(setup.blocks);
  job.global_batch = 32;
  if (setup.uneven) job.micro_batch = kMicroBatch;
  job.capabilities.precisions = setup.numerics ? 0b1111 : 0b11;
  job.capabilities.actions = setup.plans_memory ? 0b01 | every(setup.saving) : 0b01;
  if (setup.plans_memory) job.memory.models.push_back(memory_model(setup.blocks, setup.saving));
  return job;
}

Reason reason(PolicyKind policy, ReasonCode code, Outcome outcome, std::string text) {
  Reason r;
  r.policy = policy;
  r.code = code;
  r.outcome = outcome;
  r.text = std::move(text);
  return r;
}

}  // namespace

std::shared_ptr<const OperatorTable> simulated_operators() {
  OperatorTable table;
  table.steps = 2;
  table.newest = StepId(66);
  table.blocks = {{"embedding", 0.01, 0.02}, {"h.0", 0.03, 0.06}};
  table.rows = {{"aten::add", "h.0", 8, 2'000'000, 4096},
                {"aten::embedding", "embedding", 2, 4'000'000, 8192},
                {"aten::mm", "h.0", 16, 30'000'000, 2048, OperatorFlops{6e9, 12e9}}};
  return std::make_shared<const OperatorTable>(std::move(table));
}

SimulatedJob::SimulatedJob(SimulatedSetup setup)
    : setup_(std::move(setup)),
      job_(facts(setup_)),
      plan_(initial_plan(job_)),
      numerics_(setup_.blocks, setup_.ranks, setup_.seed),
      random_(setup_.seed),
      now_(setup_.start) {
  if (setup_.plans_memory)
    budgets_.assign(static_cast<std::size_t>(setup_.ranks), kSimulatedBudget);
  for (std::int32_t rank = 0; setup_.uneven && rank < setup_.ranks; ++rank) {
    plan_.shares.push_back(micro_batches(rank));
    plan_.step_samples += micro_batches(rank) * kMicroBatch;
  }
}

void SimulatedJob::samples_of(std::int32_t rank, RankSignal& signal) const {
  signal.samples = setup_.uneven ? micro_batches(rank) * kMicroBatch : 8;
  signal.weight = signal.samples;
  signal.tokens = signal.samples * 256;
  signal.flops = static_cast<float>(signal.samples) * kSimulatedFlops;
  const double step = setup_.step_seconds;
  signal.reduction_seconds = static_cast<float>(0.04 * step);
  signal.reduction_exposed_seconds = static_cast<float>(0.003 * step * (1 + rank % 2));
  if (repeating) signal.set(SignalFlag::step_repeated);
}

void SimulatedJob::phases_of(std::int32_t rank, RankSignal& signal) {
  std::uniform_real_distribution<double> noise(0.985, 1.015);
  const double slow = rank == setup_.slow_rank && round_ > 40 ? 1.17 : 1.0;
  const double step = setup_.step_seconds * (setup_.troubled ? 0.76 : 1);
  double own = 0;
  const auto book = [&](Phase phase, double share) {
    const double seconds = step * share * noise(random_);
    signal.phase_seconds[static_cast<std::size_t>(phase)] = static_cast<float>(seconds);
    own += seconds;
  };
  book(Phase::data, setup_.troubled ? 0.29 : 0.02);
  book(Phase::forward, 0.27 * slow);
  book(Phase::backward, 0.52);
  book(Phase::optimizer, 0.06);
  book(Phase::other, 0.015);
  if (rank == 0)
    signal.phase_seconds[static_cast<std::size_t>(Phase::host)] = static_cast<float>(step * 0.004);
  const double wall =
      setup_.step_seconds * (round_ > 40 && setup_.slow_rank >= 0 ? 1.0 : 0.955) * noise(random_);
  signal.phase_seconds[static_cast<std::size_t>(Phase::communication)] =
      static_cast<float>(std::max(0.01 * step, wall - own));
  signal.set(SignalFlag::waiting_measured);
  signal.waiting_seconds =
      slow > 1 ? 0 : 0.6F * signal.phase_seconds[static_cast<std::size_t>(Phase::communication)];
  if (setup_.plans_memory && round_ > 60)
    signal.recompute_seconds = static_cast<float>(0.04 * step);
  signal.wall_seconds = std::max(wall, own * 1.01);
}

RankSignal SimulatedJob::signal_of(std::int32_t rank) {
  std::normal_distribution<double> wobble(0, 0.09);
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.incarnation = job_.incarnation;
  signal.round = RoundId(round_);
  signal.step = StepId(round_);
  signal.plan_held = plan_.id.number;
  signal.plan_applied =
      plan_.activated_round ? plan_.id.number : plan_.id.number - (plan_.id.number > 0);
  const double t = static_cast<double>(round_);
  signal.loss = 2.05 + 3.4 * std::exp(-t / 90) + wobble(random_);
  signal.gradient_norm = 0.9 + 2.2 * std::exp(-t / 60);
  if (finishing) {
    signal.loss = signal.gradient_norm = std::numeric_limits<double>::quiet_NaN();
    signal.set(SignalFlag::finished);
    seal(signal);
    return signal;
  }
  if (nonfinite && rank == 0) {
    signal.loss = std::numeric_limits<double>::quiet_NaN();
    signal.set(SignalFlag::nonfinite_loss);
    signal.set(SignalFlag::step_skipped);
  }
  if (is_overflow()) {
    signal.set(SignalFlag::step_skipped);
    signal.set(SignalFlag::nonfinite_gradient);
    signal.nonfinite_values = rank == job_.world_size - 1 ? kOverflowValues : 0;
  }
  if (setup_.numerics) signal.loss_scale = numerics_.loss_scale(round_);
  samples_of(rank, signal);
  phases_of(rank, signal);
  signal.rounds = 1;
  signal.memory_used_bytes = (5ull << 30) + (static_cast<std::uint64_t>(rank % 16) << 24);
  if (setup_.troubled && rank == 1) signal.memory_used_bytes += round_ * kLeakBytes;
  signal.memory_peak_bytes = signal.memory_used_bytes + (1ull << 30);
  signal.memory_limit_bytes = 8ull << 30;
  if (rank == setup_.slow_rank && round_ > 40) {
    HostEvidence evidence;
    constexpr std::string_view kHost = "node07";
    std::copy(kHost.begin(), kHost.end(), evidence.host.begin());
    evidence.steal_ratio = 0.12F;
    signal.fragment = make_fragment(evidence);
  }
  if (rank == 0) {
    HostEvidence evidence{.host = {'n', 'o', 'd', 'e', '0', '0'}};
    evidence.clock_ratio = 0.98F;
    signal.fragment = make_fragment(evidence);
  }
  seal(signal);
  return signal;
}

void SimulatedJob::publish(Decision& decision, Reason why) {
  plan_.id.number += 1;
  plan_.id.incarnation = job_.incarnation;
  plan_.earliest_round = RoundId(round_ + 1);
  plan_.activated_round.reset();
  decision.plan = plan_;
  decision.reasons.push_back(std::move(why));
  ++counters_.plans_published;
}

void SimulatedJob::split_ranks() {
  plan_.profiles.resize(2, plan_.profiles.front());
  plan_.rank_profile.assign(static_cast<std::size_t>(setup_.ranks), ProfileId(0));
  for (std::size_t r = plan_.rank_profile.size() / 2; r < plan_.rank_profile.size(); ++r) {
    plan_.rank_profile[r] = ProfileId(1);
  }
}

// Every 60 rounds, four blocks start or stop recomputing.
void SimulatedJob::toggle_recompute(Decision& decision) {
  const bool begin = round_ % 120 == 60;
  if (setup_.ranks_differ) split_ranks();
  auto& actions = plan_.profiles.back();
  for (std::size_t b = 0; b < actions.size(); ++b) {
    if (is_saving(b)) actions[b] = begin ? setup_.saving : MemoryAction::keep;
  }
  publish(decision,
          reason(PolicyKind::memory, ReasonCode::custom, Outcome::changed,
                 begin ? "h.0 to h.3 are recomputed: headroom fell to 0.31 GiB on rank 2; this "
                         "saves 1.2 GiB for 4.1 % of step time"
                       : "h.0 to h.3 are kept again: headroom is 1.9 GiB on all ranks"));
}

// Skips rounds that already publish a plan.
void SimulatedJob::change_formats(Decision& decision) {
  std::vector<Reason> why = numerics_.change_formats(round_, plan_.precision);
  if (why.empty()) return;
  publish(decision, why.front());
  decision.reasons.insert(decision.reasons.end(), why.begin() + 1, why.end());
}

void SimulatedJob::decide(Decision& decision) {
  auto& reasons = decision.reasons;
  if (setup_.numerics) {
    if (round_ != 24 && round_ % 60 != 0) change_formats(decision);
    for (Reason& remark : numerics_.remarks(round_, job_.blocks)) reasons.push_back(remark);
  }
  if (round_ == 24) {
    for (std::size_t b = 1; b + 1 < plan_.precision.size(); ++b)
      plan_.precision[b] = Precision::bf16;
    publish(
        decision,
        reason(PolicyKind::precision, ReasonCode::custom, Outcome::changed,
               "12 blocks move from fp32 to bf16: gradient noise stayed below 0.4 % for 20 rounds "
               "and no value overflowed"));
  }
  if (round_ % 60 == 0) toggle_recompute(decision);
  if (!decision.plan && plan_.id.number > 0 && !plan_.activated_round)
    plan_.activated_round = RoundId(round_);
  if (setup_.slow_rank >= 0 && round_ >= 55) {
    SlowRank slow;
    slow.rank = RankId(setup_.slow_rank);
    slow.phase_index = 1;  // forward
    slow.since = RoundId(41);
    slow.state = SlowState::confirmed;
    slow.course = SlowCourse::persistent;
    slow.slowdown_ratio = 1.17;
    slow.slowdown_low = 1.15;
    slow.slowdown_high = 1.19;
    slow.rarity = 12;
    decision.slow.ranks = {slow};
    decision.slow.confirmed = 1;
  }
  if (setup_.slow_rank >= 0 && round_ == 55) {
    reasons.push_back(reason(
        PolicyKind::stragglers, ReasonCode::straggler_found, Outcome::reported,
        "rank 2 is 1.05x slower than the median, mostly in forward (1.17x), in 14 of the last "
        "14 rounds; chance of a false alarm below 1e-6 a round"));
    reasons.back().rank = RankId(setup_.slow_rank);
  }
  if (round_ > 70 && round_ % 2 == 0)
    reasons.push_back(reason(
        PolicyKind::shares, ReasonCode::not_capable, Outcome::vetoed,
        "rank 2 would get 7 of 32 samples instead of 8, but this loop does not take its batch "
        "from the plan"));
  if (round_ > 60)
    reasons.push_back(
        reason(PolicyKind::precision, ReasonCode::custom, Outcome::unchanged,
               "ln_f stays in fp32: its gradient noise is 3.1 %, above the limit of 0.5 %"));
  if (nonfinite)
    reasons.push_back(reason(
        PolicyKind::guard, ReasonCode::nonfinite_step, Outcome::observed,
        "the loss of rank 0 is not finite; the step is skipped on all ranks, 1 in a row of 5"));
}

void SimulatedJob::step(StepSink& sink) {
  ++round_;
  now_ += setup_.step_seconds;
  std::vector<RankSignal> received;
  for (std::int32_t rank = 0; rank < job_.world_size; ++rank) {
    if (rank != missing_rank) received.push_back(signal_of(rank));
  }
  std::vector<BlockEvidence> evidence;
  if (setup_.numerics) evidence = numerics_.evidence(round_);
  const StepSignals signals = collect(RoundId(round_), job_.incarnation, job_.world_size, received,
                                      std::move(evidence), UnixTime{now_});
  Decision decision;
  decision.summary = summarize(signals);
  decide(decision);
  for (Reason& r : decision.reasons) r.round = RoundId(round_);
  counters_.rounds = round_;
  counters_.missing_reports += missing_rank >= 0 ? 1 : 0;
  counters_.signal_bytes += 256 * received.size();
  counters_.mask_bytes += 8;
  counters_.journal_bytes += 300 * received.size();
  counters_.decide_seconds = 41e-6;
  if (setup_.numerics) numerics_.advance(round_, plan_.scaler);
  sink.record({signals, decision, plan_, job_, counters_, budgets_});
}

void SimulatedJob::steps(StepSink& sink, int count) {
  for (int i = 0; i < count; ++i) step(sink);
}

}  // namespace cox::metrics
