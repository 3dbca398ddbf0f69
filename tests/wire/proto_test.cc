#include <google/protobuf/message.h>

#include <bit>
#include <string>
#include <vector>

#include "coordinator/wire/control.pb.h"
#include "coordinator/wire/control_codec.h"
#include "coordinator/wire/states.pb.h"
#include "tests/wire/proto_file.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

namespace pb = coxswain::v1;
using google::protobuf::FieldDescriptor;
using test::capable_job;
using test::RandomValues;

// Counts fields that the .proto file does not have, in all messages within the message.
std::size_t unknown_fields(const google::protobuf::Message& message) {
  const auto* reflection = message.GetReflection();
  std::size_t count = static_cast<std::size_t>(reflection->GetUnknownFields(message).field_count());
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      count += unknown_fields(reflection->GetMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i)
      count += unknown_fields(reflection->GetRepeatedMessage(message, field, i));
  }
  return count;
}

// Parses bytes with protoc's class, which must know all fields and write the same bytes.
template <class Message>
Message parsed(const std::string& bytes) {
  Message message;
  REQUIRE(message.ParseFromString(bytes));
  REQUIRE(unknown_fields(message) == 0);
  REQUIRE(message.SerializeAsString() == bytes);
  return message;
}

bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

bool same_numbers(const RankSignal& ours, const pb::RankSignal& theirs) {
  return ours.rank.value() == theirs.rank() && ours.round.value() == theirs.round() &&
         ours.step.value() == theirs.step() && ours.incarnation == theirs.incarnation() &&
         ours.plan_held == theirs.plan_held() && ours.plan_applied == theirs.plan_applied() &&
         ours.rounds == theirs.rounds() && ours.samples == theirs.samples() &&
         ours.tokens == theirs.tokens() && ours.checksum == theirs.checksum() &&
         ours.flags == theirs.flags() && ours.nonfinite_values == theirs.nonfinite_values() &&
         ours.control_errors == theirs.control_errors() &&
         ours.memory_used_bytes == theirs.memory_used_bytes() &&
         ours.memory_peak_bytes == theirs.memory_peak_bytes() &&
         ours.memory_limit_bytes == theirs.memory_limit_bytes();
}

bool same_seconds(const RankSignal& ours, const pb::RankSignal& theirs) {
  for (std::size_t i = 0; i < kPhases; ++i) {
    const int place = static_cast<int>(i);
    const float seconds = place < theirs.phase_seconds_size() ? theirs.phase_seconds(place) : 0;
    if (!same(ours.phase_seconds[i], seconds)) return false;
  }
  return same(ours.loss, theirs.loss()) && same(ours.weight, theirs.weight()) &&
         same(ours.gradient_norm, theirs.gradient_norm()) &&
         same(ours.wall_seconds, theirs.wall_seconds()) &&
         same(ours.loss_scale, theirs.loss_scale()) &&
         same(ours.reduction_seconds, theirs.reduction_seconds()) &&
         same(ours.reduction_exposed_seconds, theirs.reduction_exposed_seconds()) &&
         same(ours.flops, theirs.flops()) && same(ours.waiting_seconds, theirs.waiting_seconds()) &&
         same(ours.recompute_seconds, theirs.recompute_seconds()) &&
         same(ours.save_seconds, theirs.save_seconds());
}

bool same_reason(const Reason& ours, const pb::Reason& theirs) {
  return static_cast<int>(ours.policy) == theirs.policy() &&
         static_cast<int>(ours.code) == theirs.code() &&
         static_cast<int>(ours.outcome) == theirs.outcome() &&
         ours.round.value() == theirs.round() && ours.rank.value() == theirs.rank() &&
         ours.block == theirs.block() && ours.text == theirs.text() &&
         same(ours.forecast.step_ratio, theirs.forecast().step_ratio()) &&
         ours.forecast.peak_bytes == theirs.forecast().peak_bytes();
}

// Fields that were set by name in protoc's class, as the journal's reader sees them.
pb::JournalRound made_by_protoc() {
  pb::JournalRound round;
  round.mutable_signals()->set_round(7);
  round.mutable_signals()->set_now(-0.0);
  pb::RankSignal& report = *round.mutable_signals()->add_reports();
  report.set_rank(1);
  report.set_loss(2.5);
  for (int i = 0; i < 8; ++i) report.add_phase_seconds(static_cast<float>(i));
  pb::Reason& reason = *round.mutable_decision()->add_reasons();
  reason.set_code(pb::REASON_CODE_STRAGGLER_FOUND);
  reason.set_outcome(pb::OUTCOME_REPORTED);
  reason.set_rank(-1);
  reason.set_text("rank 1 is slow");
  return round;
}

TEST_SUITE("wire.proto") {
  TEST_CASE("10000 random rounds are the same messages for protoc's classes, bit for bit") {
    RandomValues random(11);
    for (int i = 0; i < 10000; ++i) {
      const JobFacts job = capable_job(static_cast<std::int32_t>(1 + random.below(4)),
                                       static_cast<std::size_t>(random.below(4)));
      const StepSignals signals = random.signals(job, RoundId(random.bits()));
      Decision decision;
      if (random.chance(50)) decision.plan = random.plan(job, random.bits());
      decision.reasons.push_back(random.reason());
      const auto round = parsed<pb::JournalRound>(serialize(signals, decision));
      REQUIRE(round.signals().round() == signals.round.value());
      REQUIRE(same(round.signals().now(), signals.now.seconds));
      REQUIRE(static_cast<std::size_t>(round.signals().reports_size()) == signals.reports.size());
      for (std::size_t r = 0; r < signals.reports.size(); ++r) {
        const pb::RankSignal& report = round.signals().reports(static_cast<int>(r));
        REQUIRE(same_numbers(signals.reports[r], report));
        REQUIRE(same_seconds(signals.reports[r], report));
      }
      REQUIRE(same_reason(decision.reasons[0], round.decision().reasons(0)));
      REQUIRE(round.decision().has_plan() == decision.plan.has_value());
      if (decision.plan) REQUIRE(round.decision().plan().number() == decision.plan->id.number);
    }
  }

  TEST_CASE("starts and saved states are messages that protoc's classes know whole") {
    RandomValues random(12);
    for (int i = 0; i < 300; ++i) {
      JobFacts job = capable_job(3, random.below(6));
      job.name = "caf\xe9";
      job.memory = random.memory(job);
      job.precision = random.precision(job);
      const ControlState state = random.state(job);
      parsed<pb::ControlState>(serialize(state));
      Decision first;
      first.plan = random.plan(job, 1);
      const auto start = parsed<pb::JournalStart>(
          serialize(JournalStart{job, "guard.mode = on\n", state, {"guard"}, first}));
      CHECK(start.job().name() == job.name);
      CHECK(start.job().memory().models_size() == static_cast<int>(job.memory.models.size()));
      CHECK(start.has_first());
    }
  }

  TEST_CASE("what a policy keeps is the message that states.proto names") {
    RandomValues random(13);
    const ControlState state = test::deciding_state(random);
    std::size_t known = 0;
    for (const NamedPolicyState& named : state.policies) {
      const std::string bytes = named.state.bytes();
      if (named.policy == "guard") known += parsed<pb::GuardState>(bytes).version();
      if (named.policy == "memory") known += parsed<pb::MemoryState>(bytes).version();
      if (named.policy == "shares") known += parsed<pb::SharesState>(bytes).version();
      if (named.policy == "precision") known += parsed<pb::PrecisionState>(bytes).version();
      if (named.policy == "loss_scale") known += parsed<pb::LossScaleState>(bytes).version();
      if (named.policy == "stragglers") known += parsed<pb::StragglersState>(bytes).version();
      if (named.policy == "accumulation") known += parsed<pb::AccumulationState>(bytes).version();
      if (named.policy == "estimates") CHECK(parsed<pb::Estimates>(bytes).version() > 0);
      if (named.policy == "effects") CHECK(parsed<pb::Effects>(bytes).version() > 0);
      if (named.policy == "decide") CHECK(parsed<pb::DecideState>(bytes).version() > 0);
    }
    CHECK(known > 7);
    CHECK(state.policies.size() == 10);
  }

  TEST_CASE("a round that protoc's classes wrote is read by its names") {
    const auto round = parse_journal_round(made_by_protoc().SerializeAsString(), {});
    REQUIRE_MESSAGE(round.ok(), round.status().text());
    CHECK(round->signals.round == RoundId(7));
    CHECK(same(round->signals.now.seconds, -0.0));
    REQUIRE(round->signals.reports.size() == 1);
    CHECK(round->signals.reports[0].rank == RankId(1));
    CHECK(round->signals.reports[0].loss == 2.5);
    CHECK(round->signals.reports[0].phase_seconds[7] == 7);
    REQUIRE(round->decision.reasons.size() == 1);
    CHECK(round->decision.reasons[0].code == ReasonCode::straggler_found);
    CHECK(round->decision.reasons[0].rank == RankId(-1));
    CHECK(round->decision.reasons[0].text == "rank 1 is slow");
  }
}

}  // namespace
}  // namespace cox::wire
