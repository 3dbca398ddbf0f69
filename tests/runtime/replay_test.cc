#include "coordinator/runtime/replay.h"

#include <algorithm>
#include <string>

#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal.h"
#include "tests/runtime/driven_job.h"
#include "tests/support/decimal_comma.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using test::driven_job;
using test::DrivenJob;
using test::TempFolder;
using test::write_journal;

Result<ReplayReport> replayed(const std::filesystem::path& path, ReplayOptions options = {},
                              const PolicySet& policies = default_policies()) {
  auto reader = JournalReader::open(path);
  REQUIRE_MESSAGE(reader.ok(), reader.status().text());
  return replay(*reader, policies, options);
}

struct Calls {
  static constexpr std::uint32_t kVersion = 1;
  std::uint64_t count = 0;
  static auto fields(auto& self) {
    return cox::message("Calls", cox::field(1, "count", self.count));
  }
};

// Gives a reason in every tenth round.
class Talker : public Policy {
 public:
  explicit Talker(std::string name) : name_(std::move(name)) {}
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return name_; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    auto calls = state.take_or_fresh<Calls>();
    ++calls.count;
    PolicyOutput output{{}, {}, PolicyState::of(calls)};
    if (input.signals.round.value() % 10 == 0) {
      output.findings.emplace_back();
      output.findings.back().code = ReasonCode::custom;
      output.findings.back().text = "call " + std::to_string(calls.count);
    }
    return output;
  }

 private:
  std::string name_;
};

// Returns a job with measurements: every block may be kept or recomputed.
JobFacts measured_job() {
  JobFacts facts = driven_job(4);
  facts.capabilities.actions = kEveryAction;
  MemoryModel model;
  for (std::int64_t p = 0; p <= 4; ++p) {
    std::vector<MemoryAction> actions(4, MemoryAction::recompute);
    std::fill_n(actions.begin(), p, MemoryAction::keep);
    model.front.push_back({500000000 + 100000000 * p, 40000 - 10000 * p, actions});
  }
  model.step_us = 200000;
  model.kept_bytes.assign(4, 100000000);
  facts.memory.models = {model};
  facts.memory.limit_bytes.assign(4, 1100000000);
  return facts;
}

Config budgets() {
  Config config;
  REQUIRE(apply_text(config,
                     "memory.budget = 0.8\nmemory.budget_of_rank = 2:balanced\n"
                     "memory.forbid = head=recompute\n",
                     "test")
              .ok());
  return config;
}

TEST_SUITE("runtime.replay") {
  TEST_CASE("a program's decimal comma is in no journal, and replay sees no difference") {
    const TempFolder folder;
    write_journal(folder / "plain", 4, 600, 3);
    {
      const test::DecimalComma commas;
      if (!commas.has_c_locale()) MESSAGE("skipped for the C locale: none with a decimal comma");
      write_journal(folder / "comma", 4, 600, 3);
      const auto report = replayed(folder / "plain");
      REQUIRE_MESSAGE(report.ok(), report.status().text());
      CHECK(report->differences.empty());
    }
    CHECK(test::read_file(folder / "comma") == test::read_file(folder / "plain"));
  }

  TEST_CASE("2000 rounds of a troubled job give the same plans and reasons again") {
    for (const std::int32_t ranks : {1, 2, 8}) {
      TempFolder folder;
      write_journal(folder / "j", ranks, 2000, static_cast<std::uint64_t>(40 + ranks));
      const auto report = replayed(folder / "j");
      REQUIRE_MESSAGE(report.ok(), report.status().text());
      CHECK(report->segments == 1);
      CHECK(report->rounds == 2000);
      CHECK(report->plans > 0);
      CHECK(report->reasons > 0);
      for (const std::string& line : report->differences) MESSAGE(line);
      CHECK(report->equal());
      MESSAGE(ranks << " ranks: " << report->plans << " plans, " << report->reasons << " reasons, "
                    << std::filesystem::file_size(folder / "j") / 2000 << " bytes a round");
    }
  }

  TEST_CASE("200 rounds with every policy on give the same plans, reasons and states again") {
    const TempFolder folder;
    JobFacts facts = measured_job();
    facts.capabilities = {PrecisionSet{0xF}, kEveryAction, true, true, true};
    facts.precision.blocks.assign(facts.blocks.size(), {{400, 260, 270, 180}});
    Config config = budgets();
    REQUIRE(apply_text(config,
                       "shares.mode = on\naccumulation.mode = on\nprecision.format = auto\n"
                       "precision.emulate = on\n",
                       "test")
                .ok());
    DrivenJob job(facts, config, default_policies(), initial_state(facts), 17);
    auto journal = JournalWriter::open(folder / "j", job.head());
    REQUIRE(journal.ok());
    job.run(200, **journal);
    REQUIRE((*journal)->close().ok());
    for (const auto& policy : default_policies()) {
      ControlState state = job.state();
      CHECK_MESSAGE(!state_of(state, policy->name()).is_fresh(), policy->name());
    }
    CHECK(job.plans() > 0);
    const auto report = replayed(folder / "j");
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK(report->rounds == 200);
    CHECK(report->plans == job.plans());
    CHECK(report->equal());

    // The last state goes on as itself from its bytes, as in the segment after a restart.
    const auto saved = wire::parse_control_state(wire::serialize(job.state()));
    REQUIRE(saved.ok());
    CHECK(saved->plan == job.state().plan);
    CHECK(saved->policies == job.state().policies);
    DrivenJob next(facts, config, default_policies(), *saved, 18);
    journal = JournalWriter::open(folder / "j", next.head());
    REQUIRE(journal.ok());
    next.run(200, **journal);
    REQUIRE((*journal)->close().ok());
    const auto both = replayed(folder / "j");
    REQUIRE(both.ok());
    CHECK(both->segments == 2);
    CHECK(both->equal());
  }

  TEST_CASE("a restart at another world size replays from its own first state") {
    TempFolder folder;
    const JobFacts before = driven_job(4);
    DrivenJob first(before, {}, default_policies(), initial_state(before), 50);
    auto journal = JournalWriter::open(folder / "j", first.head());
    REQUIRE(journal.ok());
    first.run(500, **journal);
    REQUIRE((*journal)->close().ok());

    JobFacts after = driven_job(3);
    after.incarnation = 2;
    DrivenJob second(after, {}, default_policies(), refit(first.state(), after).state, 51);
    journal = JournalWriter::open(folder / "j", second.head());
    REQUIRE_MESSAGE(journal.ok(), journal.status().text());
    second.run(500, **journal);
    REQUIRE((*journal)->close().ok());

    const auto report = replayed(folder / "j");
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK(report->segments == 2);
    CHECK(report->rounds == 1000);
    CHECK(report->equal());
  }

  TEST_CASE("memory plans replay from the fronts in the journal, without a planner") {
    TempFolder folder;
    const JobFacts facts = measured_job();
    const Config config = budgets();
    Begun begun = begin_job(facts, config, default_policies(), initial_state(facts));
    CHECK(begun.state.plan.profiles.size() == 2);
    DrivenJob job(facts, config, default_policies(), std::move(begun.state), 77);
    auto journal = JournalWriter::open(folder / "j", job.head());
    REQUIRE(journal.ok());
    job.run(1500, **journal);
    REQUIRE((*journal)->close().ok());
    const auto report = replayed(folder / "j");
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    for (const std::string& line : report->differences) MESSAGE(line);
    CHECK(report->equal());
    CHECK(report->plans > 0);
    ReplayOptions options;
    options.flags = {"--cox.memory.budget=0.6"};
    const auto tighter = replayed(folder / "j", options);
    REQUIRE(tighter.ok());
    CHECK_FALSE(tighter->equal());
  }

  TEST_CASE("the plan of the first step is decided again, and another budget shows there") {
    TempFolder folder;
    const JobFacts facts = measured_job();
    const JournalledStart started =
        begin_journalled(facts, budgets(), default_policies(), initial_state(facts));
    REQUIRE(started.head.first.has_value());
    CHECK(started.head.first->plan == started.begun.state.plan);
    auto journal = JournalWriter::open(folder / "j", started.head);
    REQUIRE(journal.ok());
    REQUIRE((*journal)->close().ok());
    const auto report = replayed(folder / "j");
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK(report->equal());
    ReplayOptions options;
    options.flags = {"--cox.memory.budget=0.6"};
    const auto tighter = replayed(folder / "j", options);
    REQUIRE(tighter.ok());
    CHECK(tighter->different_starts == 1);
    REQUIRE_FALSE(tighter->differences.empty());
    CHECK(tighter->differences.front().starts_with("start "));
  }

  TEST_CASE("a changed threshold shows as lines with rounds and plans") {
    TempFolder folder;
    write_journal(folder / "j", 2, 1000, 60);
    ReplayOptions options;
    options.flags = {"--cox.guard.hold_rounds=7"};
    options.max_differences = 5;
    const auto report = replayed(folder / "j", options);
    REQUIRE_MESSAGE(report.ok(), report.status().text());
    CHECK_FALSE(report->equal());
    CHECK(report->different_rounds > 0);
    REQUIRE_FALSE(report->differences.empty());
    CHECK(report->differences.size() <= 5);
    CHECK(report->differences.front().starts_with("round "));
  }

  TEST_CASE("settings of a file differ like flags, and flags win over them") {
    TempFolder folder;
    write_journal(folder / "j", 2, 1000, 60);
    ReplayOptions options;
    options.file_name = "other.cfg";
    options.file_text = "# another threshold\nguard.hold_rounds = 7\n";
    const auto by_file = replayed(folder / "j", options);
    REQUIRE_MESSAGE(by_file.ok(), by_file.status().text());
    CHECK(by_file->different_rounds > 0);
    options.flags = {"--cox.guard.hold_rounds=50", "--cox.config=other.cfg"};
    const auto by_flag = replayed(folder / "j", options);
    REQUIRE_MESSAGE(by_flag.ok(), by_flag.status().text());
    CHECK(by_flag->equal());
    options.file_text = "guard.hold_round = 7\n";
    CHECK(replayed(folder / "j", options).status().message().starts_with("other.cfg:1: "));
  }

  TEST_CASE("a journal in which a reason or a plan was altered differs") {
    TempFolder folder;
    const JobFacts facts = driven_job(2);
    DrivenJob job(facts, {}, {}, initial_state(facts), 1);
    auto journal = JournalWriter::open(folder / "j", job.head());
    REQUIRE(journal.ok());
    RankSignal report;
    report.incarnation = 1;
    report.round = RoundId(1);
    seal(report);
    const StepSignals signals = collect(RoundId(1), 1, 2, std::vector{report}, {}, {1});
    Decision forged;
    forged.plan = initial_plan(facts);
    forged.plan->id.number = 1;
    forged.reasons.push_back({});
    REQUIRE((*journal)->append(signals, forged).ok());
    REQUIRE((*journal)->close().ok());
    const auto compared = replayed(folder / "j", {}, {});
    REQUIRE(compared.ok());
    CHECK(compared->different_rounds == 1);
    CHECK(compared->differences.size() == 2);
  }

  TEST_CASE("policies of a user replay where they are registered and are named where not") {
    TempFolder folder;
    const JobFacts facts = driven_job(2);
    Config config;
    config.policy_modes["of_a_user"] = PolicyMode::observe;
    PolicySet policies = default_policies();
    policies.push_back(std::make_shared<Talker>("of_a_user"));
    policies.push_back(std::make_shared<Talker>("never_set"));
    DrivenJob job(facts, config, policies, initial_state(facts), 9);
    auto journal = JournalWriter::open(folder / "j", job.head());
    REQUIRE(journal.ok());
    job.run(100, **journal);
    REQUIRE((*journal)->close().ok());
    const auto known = replayed(folder / "j", {}, policies);
    REQUIRE_MESSAGE(known.ok(), known.status().text());
    for (const std::string& line : known->differences) MESSAGE(line);
    CHECK(known->equal());
    CHECK(known->reasons == job.reasons());
    CHECK(known->reasons >= 15);  // each talker gives one in ten rounds
    const auto unknown = replayed(folder / "j");
    CHECK(unknown.status().code() == StatusCode::failed_precondition);
    CHECK(unknown.status().message().find("of_a_user") != std::string::npos);
  }

  TEST_CASE("unknown settings and stray arguments are one clear error") {
    TempFolder folder;
    write_journal(folder / "j", 2, 3, 1);
    ReplayOptions options;
    options.flags = {"--cox.guard.hold_round=7"};
    CHECK(replayed(folder / "j", options).status().code() == StatusCode::invalid_argument);
    options.flags = {"stray"};
    CHECK(replayed(folder / "j", options).status().code() == StatusCode::invalid_argument);
  }
}

}  // namespace
}  // namespace cox::runtime
