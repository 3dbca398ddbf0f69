#include "tests/wire/random_values.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

namespace cox::test {
namespace {

// The state of some policy.
struct Numbers {
  static constexpr std::uint32_t kVersion = 1;
  std::vector<double> values;
  static auto fields(auto& self) {
    return cox::message("Numbers", cox::field(1, "values", self.values));
  }
};

}  // namespace

double RandomValues::number() {
  constexpr double kOdd[] = {0.0,
                             -0.0,
                             1.0,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(),
                             std::numeric_limits<double>::denorm_min(),
                             std::numeric_limits<double>::max()};
  if (chance(40)) return kOdd[below(std::size(kOdd))];
  return static_cast<double>(static_cast<std::int64_t>(bits())) * 1e-15;
}

std::vector<MemoryAction> RandomValues::actions(std::size_t blocks, std::uint64_t kinds) {
  std::vector<MemoryAction> result(blocks, static_cast<MemoryAction>(below(kinds)));
  if (chance(50)) return result;
  for (auto& action : result) action = static_cast<MemoryAction>(below(kinds));
  return result;
}

std::vector<ProfileId> RandomValues::rank_profile(std::size_t ranks, std::size_t profiles) {
  if (chance(20)) return {};
  std::vector<ProfileId> result;
  const auto style = below(3);
  const std::size_t stretch = (ranks + profiles - 1) / profiles;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t id = style == 0 ? r % profiles : style == 1 ? r / stretch : below(profiles);
    result.emplace_back(static_cast<ProfileId::rep>(id));
  }
  return result;
}

Plan RandomValues::plan(const JobFacts& job, std::uint64_t number) {
  const auto ranks = static_cast<std::size_t>(job.world_size);
  Plan plan;
  plan.id = {job.incarnation, number};
  plan.earliest_round = RoundId(bits() >> below(64));
  for (std::size_t b = 0; b < job.blocks.size(); ++b) {
    plan.precision.push_back(static_cast<Precision>(below(4)));
  }
  const std::size_t profiles = 1 + below(std::min<std::size_t>(ranks, 6));
  const std::uint64_t kinds = chance(50) ? kMemoryKinds : kMemoryActionNames.size();
  for (std::size_t c = 0; c < profiles; ++c)
    plan.profiles.push_back(actions(job.blocks.size(), kinds));
  plan.rank_profile = rank_profile(ranks, profiles);
  if (chance(50)) {
    const std::uint32_t most = 1u << below(20);
    for (std::size_t r = 0; r < ranks; ++r) {
      plan.shares.push_back(static_cast<std::uint32_t>(1 + below(most)));
    }
  }
  if (chance(30)) plan.step_samples = 1 + below(std::uint64_t{1} << below(32));
  if (chance(30)) plan.scaler = {1024.0f, 1.5f, 0.25f, 7, 0.125f, 65536.0f, 3, 2};
  if (chance(30)) plan.hold_until = RoundId(bits());
  if (chance(30)) plan.rollback = {static_cast<std::uint32_t>(bits()), RoundId(bits())};
  return plan;
}

Plan RandomValues::next_plan(const JobFacts& job, const Plan& base) {
  const Plan other = plan(job, base.id.number + 1);
  Plan next = base;
  next.id.number = base.id.number + 1;
  next.earliest_round = other.earliest_round;
  next.activated_round.reset();
  if (chance(60) && !job.blocks.empty()) {
    const std::size_t block = below(job.blocks.size());
    next.precision[block] = other.precision[block];
    next.profiles[0][block] = other.profiles[0][block];
  }
  if (chance(20)) {
    next.profiles = other.profiles;
    next.rank_profile = other.rank_profile;
  }
  if (chance(20)) next.shares = other.shares;
  if (chance(20)) next.step_samples = other.step_samples;
  if (chance(20)) next.scaler = other.scaler;
  if (chance(20)) next.hold_until = other.hold_until;
  if (chance(20)) next.rollback = other.rollback;
  return next;
}

MemoryFacts RandomValues::memory(const JobFacts& job) {
  MemoryFacts facts;
  facts.models.resize(1 + below(3));
  for (MemoryModel& model : facts.models) {
    std::int64_t peak = static_cast<std::int64_t>(below(std::uint64_t{1} << 49));
    std::int64_t added = static_cast<std::int64_t>(1000 + below(1u << 30));
    for (auto points = 1 + below(10); points > 0; --points) {
      peak += static_cast<std::int64_t>(1 + below(1u << 30));
      added -= static_cast<std::int64_t>(1 + below(100));
      model.front.push_back({peak, added, actions(job.blocks.size(), kMemoryActionNames.size())});
    }
    model.base_bytes = static_cast<std::int64_t>(below(1u << 30));
    model.step_us = static_cast<std::int64_t>(below(1u << 30));
    if (chance(50)) model.kept_bytes.assign(job.blocks.size(), model.base_bytes);
    if (chance(50)) model.samples = 1 + static_cast<std::uint64_t>(model.step_us % 4096);
  }
  for (std::int32_t r = 0; r < job.world_size; ++r) {
    facts.model_of_rank.push_back(static_cast<std::uint32_t>(below(facts.models.size())));
    facts.limit_bytes.push_back(static_cast<std::int64_t>(bits() >> 20));
  }
  if (chance(30)) facts.model_of_rank.clear();
  if (chance(30)) facts.limit_bytes.clear();
  return facts;
}

PrecisionFacts RandomValues::precision(const JobFacts& job) {
  PrecisionFacts facts;
  facts.emulated = static_cast<PrecisionSet>(below(16));
  if (chance(20)) return facts;
  facts.blocks.resize(job.blocks.size());
  for (BlockFormats& block : facts.blocks) {
    for (std::int64_t& us : block.step_us) us = static_cast<std::int64_t>(below(1u << 30));
  }
  return facts;
}

RankSignal RandomValues::signal(const JobFacts& job, RankId rank, RoundId round) {
  RankSignal signal;
  signal.flags = static_cast<std::uint16_t>(bits());
  signal.rank = rank;
  signal.incarnation = job.incarnation;
  signal.round = round;
  signal.step = StepId(bits());
  signal.plan_held = bits();
  signal.plan_applied = bits() >> 40;
  signal.loss = number();
  signal.weight = number();
  signal.gradient_norm = number();
  signal.wall_seconds = number();
  for (float& seconds : signal.phase_seconds) seconds = static_cast<float>(number());
  signal.rounds = static_cast<std::uint32_t>(bits());
  signal.samples = static_cast<std::uint32_t>(bits());
  signal.nonfinite_values = static_cast<std::uint32_t>(bits());
  signal.control_errors = static_cast<std::uint32_t>(below(3));
  signal.tokens = bits();
  signal.memory_used_bytes = bits();
  signal.memory_peak_bytes = bits();
  signal.memory_limit_bytes = bits() >> 20;
  if (chance(30)) {
    BlockProfile profile;
    profile.block = BlockId(static_cast<std::uint16_t>(below(8)));
    profile.saved_bytes = bits();
    profile.flops = static_cast<float>(below(1 << 20));
    signal.fragment = make_fragment(profile);
  } else if (chance(30)) {
    PrecisionRequest request;
    request.block = static_cast<std::uint16_t>(below(8));
    request.what = static_cast<PrecisionRequest::What>(below(3));
    request.format = static_cast<Precision>(below(4));
    request.rounds = static_cast<std::uint32_t>(bits());
    signal.fragment = make_fragment(request);
  } else if (chance(30)) {
    signal.fragment = make_fragment(AllocatorEvidence{bits(), bits(), bits(), bits()});
  }
  signal.loss_scale = static_cast<float>(number());
  signal.reduction_seconds = static_cast<float>(number());
  signal.reduction_exposed_seconds = static_cast<float>(number());
  signal.flops = static_cast<float>(number());
  signal.waiting_seconds = static_cast<float>(number());
  signal.recompute_seconds = static_cast<float>(number());
  signal.save_seconds = static_cast<float>(number());
  seal(signal);
  return signal;
}

StepSignals RandomValues::signals(const JobFacts& job, RoundId round) {
  StepSignals signals;
  signals.round = round;
  signals.now = {number()};
  for (std::int32_t r = 0; r < job.world_size; ++r) {
    if (chance(80)) {
      signals.reports.push_back(signal(job, RankId(r), round));
    } else {
      signals.faults.push_back({RankId(r), static_cast<ReportFault>(1 + below(5)), round});
    }
  }
  for (std::size_t b = 0; b < job.blocks.size(); ++b) {
    BlockEvidence evidence;
    const auto magnitude = [&] {
      return Magnitude{static_cast<float>(below(1000)),
                       RankId(static_cast<std::int32_t>(below(4)) - 1)};
    };
    evidence.overflow_forward = static_cast<std::uint32_t>(bits());
    evidence.overflow_backward = static_cast<std::uint32_t>(bits());
    evidence.saturated = static_cast<std::uint32_t>(bits());
    evidence.activation = magnitude();
    evidence.gradient = magnitude();
    evidence.underflow_ratio = magnitude();
    evidence.saturated_ratio = magnitude();
    evidence.signal_over_noise = magnitude();
    signals.evidence.push_back(evidence);
  }
  return signals;
}

Reason RandomValues::reason() {
  Reason reason;
  reason.policy = static_cast<PolicyKind>(below(10));
  reason.code = static_cast<ReasonCode>(below(150));
  reason.outcome = static_cast<Outcome>(below(7));
  reason.round = RoundId(bits());
  reason.rank = RankId(static_cast<std::int32_t>(below(5)) - 1);
  reason.block = static_cast<std::int32_t>(below(5)) - 1;
  for (auto length = below(30); length > 0; --length) {
    reason.text.push_back(static_cast<char>(bits()));  // users' names may not be UTF-8
  }
  reason.forecast = {static_cast<double>(below(1000)) / 7, static_cast<double>(below(1000)) / 7,
                     static_cast<double>(below(1000)) / 7, static_cast<std::int64_t>(bits() >> 1)};
  return reason;
}

ControlState RandomValues::state(const JobFacts& job) {
  ControlState state;
  state.plan = plan(job, below(100));
  if (chance(50)) state.plan.activated_round = RoundId(bits());
  for (auto rounds = below(300); rounds > 0; --rounds) {
    RoundFacts facts;
    facts.round = RoundId(bits());
    facts.loss = number();
    facts.gradient_norm = number();
    facts.nonfinite_ranks = static_cast<std::int32_t>(below(9));
    state.history.add(facts);
  }
  for (const char* name : {"guard", "stragglers"}) {
    Numbers numbers;
    for (auto values = below(20); values > 0; --values) numbers.values.push_back(number());
    state.policies.push_back({name, PolicyState::of(std::move(numbers))});
  }
  return state;
}

JobFacts capable_job(std::int32_t ranks, std::size_t blocks) {
  JobFacts job;
  job.name = "test";
  job.incarnation = 3;
  job.world_size = ranks;
  for (std::size_t b = 0; b < blocks; ++b) job.blocks.push_back("block." + std::to_string(b));
  job.global_batch = 64;
  job.capabilities = {15, kEveryAction, true, true, true};
  return job;
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same_bits(const RankSignal& a, const RankSignal& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

bool same_bits(const StepSignals& a, const StepSignals& b) {
  return a.round == b.round && same_bits(a.now.seconds, b.now.seconds) && a.faults == b.faults &&
         a.evidence == b.evidence &&
         std::equal(a.reports.begin(), a.reports.end(), b.reports.begin(), b.reports.end(),
                    [](const RankSignal& x, const RankSignal& y) { return same_bits(x, y); });
}

bool same_bits(const ControlState& a, const ControlState& b) {
  const auto same_facts = [](const RoundFacts& x, const RoundFacts& y) {
    return x.round == y.round && x.step == y.step && same_bits(x.loss, y.loss) &&
           same_bits(x.gradient_norm, y.gradient_norm) &&
           same_bits(x.own_seconds_median, y.own_seconds_median) &&
           same_bits(x.wall_seconds_median, y.wall_seconds_median) &&
           x.nonfinite_ranks == y.nonfinite_ranks && x.plan_applied == y.plan_applied;
  };
  const auto& h = a.history.rounds();
  const auto& g = b.history.rounds();
  return a.plan == b.plan && std::equal(h.begin(), h.end(), g.begin(), g.end(), same_facts) &&
         a.policies == b.policies;
}

}  // namespace cox::test
