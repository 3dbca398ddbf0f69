// The coordinator alone; the tests fill its boards.
#include "coordinator/runtime/control_loop.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#include "coordinator/transport/shared/segment.h"
#include "coordinator/wire/mask.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

constexpr std::int32_t kRanks = 3;

struct Seen {
  RoundId round{};
  std::int32_t reporting = 0;
  std::int32_t missing = 0;
  ControlCounters counters;
  std::vector<std::int64_t> memory_budget_bytes;
  std::vector<Reason> reasons;
};

// Keeps the loop's records, and lets the test wait for them.
class SeenSink final : public StepSink {
 public:
  void record(const StepRecord& record) override {
    const std::scoped_lock lock(mutex_);
    if (failures_ > 0 && failures_-- > 0) throw std::runtime_error("the sink is closed");
    seen_.push_back({record.signals.round,
                     record.decision.summary.reporting,
                     record.decision.summary.missing,
                     record.counters,
                     {record.memory_budget_bytes.begin(), record.memory_budget_bytes.end()},
                     record.decision.reasons});
    changed_.notify_all();
  }
  // Waits for the `count`-th round (from 1). Returns an empty one after 20 s.
  Seen round(std::size_t count) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return seen_.size() >= count; });
    return there ? seen_[count - 1] : Seen{};
  }
  std::size_t rounds() {
    const std::scoped_lock lock(mutex_);
    return seen_.size();
  }
  // Fails to record the next `count` rounds.
  void fail(int count) {
    const std::scoped_lock lock(mutex_);
    failures_ = count;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seen> seen_;
  int failures_ = 0;
};

// Proposes one sample more a step in every round.
class Growing final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "growing"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    return {{{SetBatch{input.plan.step_samples + 1}, {}}}, {}, std::move(state)};
  }
};

// Reports in every round that all is well, with another detail.
class Content final : public Policy {
 public:
  PolicyKind kind() const override { return PolicyKind::memory; }
  std::string_view name() const override { return "content"; }
  PolicyOutput propose(const PolicyInput&, PolicyState state) const override {
    return {{},
            {said(ReasonCode::memory_fits, "all fits"), said(ReasonCode::memory_unknown, "?")},
            std::move(state)};
  }

  static Reason said(ReasonCode code, const char* text) {
    Reason reason;
    reason.policy = PolicyKind::memory;
    reason.code = code;
    reason.outcome = Outcome::unchanged;
    reason.text = text;
    return reason;
  }
};

class Bench {
 public:
  explicit Bench(double late_seconds, PolicySet policies = {}, JournalWriter* journal = nullptr)
      : inbox_memory_(transport::heap_segment(transport::SignalBoard::bytes_needed(kShape))),
        outbox_memory_(transport::heap_segment(transport::MaskBoard::bytes_needed(1 << 16))),
        inbox(*transport::SignalBoard::format(inbox_memory_.bytes(), kShape)),
        outbox(*transport::MaskBoard::format(outbox_memory_.bytes(), 1 << 16)),
        loop(parts(late_seconds, std::move(policies), journal)),
        thread_([this] { loop.run(); }) {}
  ~Bench() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    loop.stop();
    thread_.join();
  }

  RankSignal signal(std::int32_t rank, std::uint64_t round) const {
    RankSignal signal;
    signal.rank = RankId(rank);
    signal.incarnation = 1;
    signal.round = RoundId(round);
    signal.rounds = 1;
    signal.loss = 1;
    signal.weight = 1;
    return signal;
  }
  // Posts after the coordinator has taken this rank's last report.
  void post(RankSignal signal) {
    seal(signal);
    while (!inbox.post(signal.rank.value(), signal, {})) std::this_thread::yield();
  }
  void post(std::int32_t rank, std::uint64_t round) { post(signal(rank, round)); }
  void post_all(std::uint64_t round) {
    for (std::int32_t r = 0; r < kRanks; ++r) post(r, round);
  }
  // Returns how many lines of the log contain this text.
  std::ptrdiff_t logged(std::string_view text) {
    const std::scoped_lock lock(lines_mutex_);
    return std::ranges::count_if(lines_, [&](const auto& line) { return line.ends_with(text); });
  }
  void post_flagged(std::int32_t rank, std::uint64_t round, SignalFlag flag, SignalFlag another) {
    RankSignal flagged = signal(rank, round);
    flagged.set(flag);
    flagged.set(another);
    post(flagged);
  }

 private:
  static constexpr transport::BoardShape kShape{kRanks, 1};

  ControlLoopParts parts(double late_seconds, PolicySet policies, JournalWriter* journal) {
    ControlLoopParts parts;
    parts.job.incarnation = 1;
    parts.job.world_size = kRanks;
    parts.job.blocks = {"one"};
    parts.job.capabilities.accumulation = true;
    parts.config.control.late_seconds = late_seconds;
    parts.config.memory.budget = {BudgetKind::bytes, 700, 0};
    parts.config.memory.budget_of_rank[1] = {BudgetKind::bytes, 900, 0};
    parts.config.force.shares = std::vector<std::uint32_t>(kRanks, 2);
    parts.policies = std::move(policies);
    parts.state = initial_state(parts.job);
    parts.inbox = &inbox;
    parts.outbox = &outbox;
    parts.journal = journal;
    parts.sink = &sink;
    parts.start_reasons = {Content::said(ReasonCode::memory_unknown, "not measured yet")};
    parts.log = Log(LogLevel::info, RankId(0), [this](std::string_view line) {
      const std::scoped_lock lock(lines_mutex_);
      lines_.emplace_back(line.substr(0, line.size() - 1));  // without the line feed
    });
    parts.now = [this] { return clock_fails ? throw std::bad_alloc() : UnixTime{}; };
    return parts;
  }

  transport::SharedSegment inbox_memory_;
  transport::SharedSegment outbox_memory_;
  std::mutex lines_mutex_;
  std::vector<std::string> lines_;

 public:
  std::atomic<bool> clock_fails{false};
  transport::SignalBoard inbox;
  transport::MaskBoard outbox;
  SeenSink sink;
  ControlLoop loop;

 private:
  std::thread thread_;
};

constexpr double kLong = 100;

TEST_SUITE("runtime.control_loop") {
  TEST_CASE("a round is judged as soon as all ranks have reported it") {
    Bench bench(kLong);
    for (std::uint64_t round = 0; round < 5; ++round) {
      bench.post_all(round);
      const Seen seen = bench.sink.round(round + 1);
      CHECK(seen.round == RoundId(round));
      CHECK(seen.reporting == kRanks);
      CHECK(seen.missing == 0);
    }
  }

  TEST_CASE("a late rank is missing from its round, and its report is counted when it comes") {
    Bench bench(0.25);
    bench.post(0, 7);
    bench.post(2, 7);
    const Seen without = bench.sink.round(1);
    CHECK(without.round == RoundId(7));
    CHECK(without.missing == 1);
    CHECK(without.counters.missing_reports == 1);
    bench.post(1, 7);  // too late: gets no round of its own, but frees its rank
    bench.post(1, 8);  // waits until the late one is taken
    bench.post(0, 8);
    bench.post(2, 8);
    Seen with;
    for (std::size_t i = 2; with.reporting < kRanks && i <= bench.sink.rounds() + 1; ++i) {
      with = bench.sink.round(i);
    }
    CHECK(with.counters.stale_reports == 1);
  }

  TEST_CASE("at a steady pace, rounds are judged without a bell, and a silent rank is missing") {
    Bench bench(0.25);
    std::uint64_t round = 0;
    for (; round < 10; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(6));
      bench.post_all(round);
      CHECK(bench.sink.round(round + 1).reporting == kRanks);
    }
    bench.post(0, round);
    bench.post(1, round);
    const Seen without = bench.sink.round(round + 1);
    CHECK(without.round == RoundId(round));
    CHECK(without.missing == 1);
  }

  TEST_CASE("time without any report makes nobody late") {
    Bench bench(0.005);
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    CHECK(bench.sink.rounds() == 0);
    bench.post_all(1);
    CHECK(bench.sink.round(1).round == RoundId(1));
  }

  TEST_CASE("a rank that has finished is neither waited for nor missing") {
    Bench bench(kLong);
    bench.post(0, 1);
    bench.post(1, 1);
    bench.post_flagged(2, 1, SignalFlag::finished, SignalFlag::finished);
    CHECK(bench.sink.round(1).reporting == kRanks);
    CHECK_FALSE(bench.loop.all_finished());
    bench.post(0, 2);
    bench.post(1, 2);
    CHECK(bench.sink.round(2).reporting == 2);
    CHECK(bench.sink.round(2).missing == 0);
  }

  TEST_CASE("a last report that comes too late for its round ends its rank all the same") {
    Bench bench(0.25);
    bench.post_flagged(0, 5, SignalFlag::finished, SignalFlag::finished);
    bench.post_flagged(1, 5, SignalFlag::finished, SignalFlag::finished);
    CHECK(bench.sink.round(1).missing == 1);
    CHECK_FALSE(bench.loop.all_finished());
    bench.post_flagged(2, 5, SignalFlag::finished, SignalFlag::finished);
    bench.end();
    CHECK(bench.loop.all_finished());
  }

  TEST_CASE("ranks that watch count steps of their own, and all of them count") {
    Bench bench(kLong);
    const std::uint64_t steps[] = {3, 4'000, 17};
    for (std::uint64_t i = 0; i < 3; ++i) {
      for (std::int32_t r = 0; r < kRanks; ++r) {
        bench.post_flagged(r, steps[r] * (i + 1), SignalFlag::watching, SignalFlag::watching);
      }
      const Seen seen = bench.sink.round(i + 1);
      CHECK(seen.reporting == kRanks);
      CHECK(seen.counters.stale_reports == 0);
    }
  }

  TEST_CASE("what was posted before the stop is still taken through the flow") {
    Bench bench(kLong);
    bench.post(1, 3);
    bench.end();
    CHECK(bench.sink.rounds() == 1);
    CHECK(bench.sink.round(1).reporting == 1);
    REQUIRE(bench.loop.state().has_value());
    CHECK(bench.loop.state()->history.rounds().size() == 1);
  }

  TEST_CASE("a damaged report is counted, and the others make the round") {
    Bench bench(kLong);
    RankSignal damaged = bench.signal(1, 1);
    seal(damaged);
    damaged.loss = 9;
    REQUIRE(bench.inbox.post(1, damaged, {}));
    bench.post(0, 1);
    bench.post(2, 1);
    const Seen seen = bench.sink.round(1);
    CHECK(seen.reporting == 2);
    CHECK(seen.counters.damaged_reports == 1);
  }
}

TEST_SUITE("runtime.publishing") {
  // Reads one plan from the board, if there is one.
  std::uint64_t newest_on(transport::MaskReader & reader, wire::PlanAssembler & assembler) {
    if (reader.poll()) {
      for (const auto frame : reader.frames()) CHECK(assembler.feed(frame).ok());
    }
    return assembler.held().id.number;
  }

  TEST_CASE("a plan goes out once, again when it is overdue, and at once when a rank asks") {
    Bench bench(kLong, {std::make_shared<Growing>()});
    JobFacts job;
    job.incarnation = 1;
    job.world_size = kRanks;
    job.blocks = {"one"};
    job.capabilities.accumulation = true;
    transport::MaskReader reader(bench.outbox);
    wire::PlanAssembler assembler(job, initial_plan(job));
    std::uint64_t round = 0;
    const auto row = [&](bool asks) {
      for (std::int32_t r = 0; r < kRanks; ++r) {
        RankSignal signal = bench.signal(r, round);
        if (asks && r == 1) signal.set(SignalFlag::full_plan_wanted);
        bench.post(signal);
      }
      return bench.sink.round(++round);
    };
    CHECK(row(false).counters.plans_published == 1);
    CHECK(newest_on(reader, assembler) == 1);
    CHECK(row(false).counters.full_plans_resent == 0);
    CHECK(row(true).counters.full_plans_resent == 1);
    CHECK(row(true).counters.full_plans_resent == 1);  // the answer is in flight
    CHECK(row(true).counters.full_plans_resent == 2);
    Seen seen;
    for (int i = 0; i < 20; ++i) seen = row(false);
    CHECK(seen.counters.full_plans_resent == 3);
    CHECK(seen.counters.plans_published == 1);
    CHECK(newest_on(reader, assembler) == 1);
  }

  TEST_CASE("records carry the memory budget of every rank once something is known of memory") {
    Bench bench(kLong);
    JobFacts job;
    job.incarnation = 1;
    job.world_size = kRanks;
    job.blocks = {"one"};
    job.memory.models = {{{{600, 0, {MemoryAction::keep}}}, 500, 1000, {100}}};
    bench.loop.begin(job);
    bench.post_all(0);
    CHECK(bench.sink.round(1).memory_budget_bytes == std::vector<std::int64_t>{700, 900, 700});
    Bench unmeasured(kLong);
    unmeasured.post_all(0);
    REQUIRE(unmeasured.sink.round(1).reporting == kRanks);
    CHECK(unmeasured.sink.round(1).memory_budget_bytes.empty());
  }

  TEST_CASE("the first record says what was said before the first round, and no later one does") {
    Bench bench(kLong);
    JobFacts job;
    job.incarnation = 1;
    job.world_size = kRanks;
    job.blocks = {"one"};
    job.capabilities.shares = true;
    bench.loop.begin(job);
    bench.post_all(7);
    const Seen first = bench.sink.round(1);
    REQUIRE(first.reasons.size() == 1);
    CHECK(first.reasons[0].code == ReasonCode::override_applied);
    CHECK(first.reasons[0].round == RoundId(7));
    bench.post_all(8);
    const Seen second = bench.sink.round(2);
    REQUIRE(second.reporting == kRanks);
    CHECK(second.reasons.empty());
  }

  TEST_CASE("the log does not repeat that a plan stays as it is") {
    Bench bench(kLong, {std::make_shared<Content>()});
    bench.post_all(1);
    REQUIRE(bench.sink.round(1).reporting == kRanks);
    CHECK(bench.logged("?") == 1);
    CHECK(bench.logged("all fits") == 0);
    CHECK(std::ranges::count(bench.sink.round(1).reasons, "all fits", &Reason::text) == 1);
  }

  TEST_CASE("what a start left alone is logged with the first round, unless more became known") {
    Bench plain(kLong);
    CHECK(plain.logged("not measured yet") == 0);
    Bench measured(kLong);
    JobFacts job;
    job.incarnation = 1;
    job.world_size = kRanks;
    job.blocks = {"one"};
    measured.loop.begin(job);
    for (Bench* bench : {&plain, &measured}) {
      for (const std::uint64_t round : {1, 2}) {
        bench->post_all(round);
        REQUIRE(bench->sink.round(round).reporting == kRanks);
      }
    }
    CHECK(plain.logged("not measured yet") == 1);
    CHECK(measured.logged("not measured yet") == 0);
  }

  TEST_CASE("a journal that cannot be written does not stop the loop") {
    JobFacts job;
    job.incarnation = 1;
    job.world_size = kRanks;
    job.blocks = {"one"};
    test::TempFolder folder;
    auto journal = JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
    REQUIRE(journal.ok());
    REQUIRE((*journal)->close().ok());  // further appends fail
    Bench bench(kLong, {}, journal->get());
    Seen seen;
    for (std::uint64_t round = 0; round < 10; ++round) {
      bench.post_all(round);
      seen = bench.sink.round(round + 1);
      REQUIRE(seen.reporting == kRanks);
    }
    CHECK(seen.counters.journal_errors == 10);
  }

  TEST_CASE("a sink that throws misses a round and does not stop the loop") {
    Bench bench(kLong);
    bench.sink.fail(2);
    for (std::uint64_t round = 0; round < 3; ++round) bench.post_all(round);
    CHECK(bench.sink.round(1).round == RoundId(2));
    CHECK(bench.sink.round(1).counters.rounds == 3);
    CHECK(bench.loop.state().has_value());
  }

  TEST_CASE("where a round fails as nobody expects, decisions end and the ranks still leave") {
    Bench bench(kLong, {std::make_shared<Growing>()});
    bench.post_all(0);
    CHECK(bench.sink.round(1).counters.plans_published == 1);
    bench.clock_fails = true;
    bench.post_all(1);
    bench.post_all(2);  // each report is taken after the one before
    for (std::int32_t r = 0; r < kRanks; ++r) {
      bench.post_flagged(r, 3, SignalFlag::finished, SignalFlag::finished);
    }
    bench.end();
    CHECK_FALSE(bench.loop.state().has_value());
    CHECK(bench.loop.all_finished());
    CHECK(bench.sink.rounds() == 1);
  }
}

}  // namespace
}  // namespace cox::runtime
