#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sdk/examples/gpt2/summary.h"

#include <doctest/doctest.h>

namespace {

constexpr gpt2::Detail kShort = gpt2::Detail::short_form;
constexpr gpt2::Detail kFull = gpt2::Detail::full;

cox::SessionReport planned() {
  cox::SessionReport report;
  report.memory_planned = true;
  report.memory_peak_bytes = 113 << 20;
  report.memory_saved_bytes = 29 << 20;
  report.memory_added_ratio = 0.0731;
  report.cost = 12.5;
  report.memory_cost_hourly = 0.25;
  return report;
}

cox::EffectList all_kinds_of_effects() {
  cox::Effect start;
  start.reason.policy = cox::PolicyKind::memory;
  start.reason.text = "rank 0 would peak at 80.0 MiB";
  start.reason.forecast.step_ratio = 1.08;
  start.reason.forecast.peak_bytes = 31 << 20;
  start.plan = 0;
  start.after = {.rounds = 20, .step_seconds = 0.171, .peak_bytes = 31 << 20};
  cox::Effect beside = start;
  beside.reason.policy = cox::PolicyKind::precision;
  beside.reason.forecast = {};
  cox::Effect slow;
  slow.step = cox::StepId(207);
  slow.reason.policy = cox::PolicyKind::stragglers;
  slow.reason.text = "rank 1 is slow";
  cox::Effect shares = start;
  shares.step = cox::StepId(221);
  shares.reason.policy = cox::PolicyKind::shares;
  shares.reason.text = fmt::format("{:x<40} {:y<60}", "", "");
  shares.reason.forecast = {.step_ratio = 0.75, .step_ratio_low = 0.7, .step_ratio_high = 0.8};
  shares.plan = 1;
  shares.before = {.rounds = 8, .step_seconds = 0.332, .peak_bytes = 31 << 20};
  shares.after = {.rounds = 20, .step_seconds = 0.249, .peak_bytes = 32 << 20};
  shares.measured = {0.75, 0.74, 0.76};
  shares.verdict = cox::Verdict::helped;
  shares.seconds_saved = 65;
  cox::Effect late = shares;
  late.plan = 2;
  late.after = {};
  late.measured = {};
  late.verdict = cox::Verdict::measuring;
  late.seconds_saved = 0;
  return {start, beside, slow, shares, late};
}

}  // namespace

TEST_SUITE("gpt2 summary") {
  TEST_CASE("says nothing of memory that was not planned, and of a price that was not given") {
    CHECK(gpt2::memory_line({}).empty());
    CHECK(gpt2::cost_line(planned(), 0).empty());
  }

  TEST_CASE("says what a plan saves on one rank and the time that it takes for it") {
    CHECK(gpt2::memory_line(planned()) ==
          "memory: at most 113.0 MiB on a rank (predicted)\n"
          "  the last plan saves up to 29.0 MiB of a rank's blocks for up to +7.3 % of time "
          "(predicted)\n");
    cox::SessionReport keeping = planned();
    keeping.memory_saved_bytes = 0;
    CHECK(gpt2::memory_line(keeping) == "memory: at most 113.0 MiB on a rank (predicted)\n");
    keeping.memory_measured_bytes = 112 << 20;
    CHECK(gpt2::memory_line(keeping) == "memory: at most 112.0 MiB on a rank (measured)\n");
  }

  TEST_CASE("ends with what was found, what it costs and what to do") {
    CHECK(gpt2::findings_table({}, kFull).empty());
    const std::vector<cox::ReportedFinding> findings = {
        {"SAVE.STALLS", "high", "Saves hold all ranks up", "4 saves.", "Save less often.", 12, 0.4},
        {"PRECISION.WITHHELD", "low", "Blocks compute in more bits", "Why.", "Change it.", 0, 0}};
    const std::string text = gpt2::findings_table(findings, kFull);
    CHECK(
        text.find("  high  12.0 s 40 %  SAVE.STALLS                  Saves hold all ranks up\n") !=
        std::string::npos);
    CHECK(text.find("        Save less often.\n") != std::string::npos);
    CHECK(text.find("   low  -            PRECISION.WITHHELD           Blocks") !=
          std::string::npos);
    const std::string in_short = gpt2::findings_table(findings, kShort);
    CHECK(std::ranges::count(in_short, '\n') == 4);  // two of them above the rows
    CHECK(in_short.find("Save less often.") == std::string::npos);
  }

  TEST_CASE("says what the run cost, and what the time costs that saves memory") {
    CHECK(gpt2::cost_line(planned(), 2.5) ==
          "cost: 12.5 at 2.5 per device-hour; the time that saves memory costs 0.25 per hour\n");
    cox::SessionReport unplanned = planned();
    unplanned.memory_planned = false;
    CHECK(gpt2::cost_line(unplanned, 2.5) == "cost: 12.5 at 2.5 per device-hour\n");
  }

  TEST_CASE("says at the start what will be trained, and at the end whether the ranks were even") {
    gpt2::Options options;
    options.text = "a.txt";
    options.steps = 5;
    CHECK(gpt2::start_line(options, 1) ==
          "training on a.txt: 5 steps of 16 sequences of 128 bytes, on 1 rank\n");
    CHECK(gpt2::start_line(options, 4).ends_with("on 4 ranks\n"));
    cox::SessionReport report;
    CHECK(gpt2::pace_line(report) == "ranks: equally fast at the end\n");
    report.slowest_rank = 3;
    report.slowdown_ratio = 1.6;
    report.slowest_phase = cox::Phase::backward;
    CHECK(gpt2::pace_line(report) ==
          "ranks: at the end rank 3 worked 1.60 times as long as the fastest, in backward\n");
  }

  TEST_CASE("the last reason, which the table has, is not said again") {
    cox::SessionReport report;
    report.decisions = 3;
    report.plans = 2;
    report.last_reason = "rank 1 is slow";
    const std::string text = gpt2::summary_text({}, report, {}, kShort);
    CHECK(text.find("decisions: 3 with a reason") != std::string::npos);
    CHECK(text.find(report.last_reason) == std::string::npos);
  }

  TEST_CASE("a job that trained nothing, because it was done when it was resumed, tells no loss") {
    gpt2::RunSummary summary;
    summary.steps = 30;
    const std::string text = gpt2::summary_text(summary, {}, {}, kShort);
    CHECK(text.starts_with("nothing was trained: all 30 steps were done before\n"));
    summary.note_loss(2);
    CHECK(gpt2::summary_text(summary, {}, {}, kShort)
              .starts_with("loss 2.0000 -> 2.0000 in 30 steps"));
  }

  TEST_CASE("tells nothing of decisions where there were none") {
    CHECK(gpt2::effects_table({}, kShort).empty());
  }

  TEST_CASE("the closing table has reason, forecast and what was measured, plan by plan") {
    const cox::EffectList effects = all_kinds_of_effects();
    const auto rows_of = [&](gpt2::Detail detail) {
      const std::string table = gpt2::effects_table(effects, detail);
      return table.substr(table.find('\n') + 1);
    };
    const std::string rows = rows_of(kFull);
    const std::string words = fmt::format("        {:x<40}\n        {:y<60}\n", "", "");
    constexpr const char* kExpected =
        "  step  decision     promised                     measured\n"
        "     0  memory       step +8.0 %, peak 31.0 MiB   step 171 ms, peak 31.0 MiB\n"
        "        rank 0 would peak at 80.0 MiB\n"
        "     0  precision    -                            as above: one plan\n"
        "        rank 0 would peak at 80.0 MiB\n"
        "   207  stragglers   -                            -\n"
        "        rank 1 is slow\n"
        "   221  shares       step -25.0 % (-30.0 % to -20.0 %) step 332 ms -> 249 ms: -25.0 % "
        "(-26.0 % to -24.0 %), peak 31.0 -> 32.0 MiB\n"
        "{0}"
        "        -> helped; 1 min 05 s gained\n"
        "   221  shares       step -25.0 % (-30.0 % to -20.0 %) not applied long enough\n"
        "{0}"
        "        -> measuring\n";
    CHECK(rows == fmt::format(kExpected, words));
    CHECK(rows_of(kShort) ==
          "  step  decision     effect\n"
          "     0  memory       step 171 ms, peak 31.0 MiB (promised +8.0 %)\n"
          "     0  precision    one plan with the line above\n"
          "   207  stragglers   rank 1 is slow\n"
          "   221  shares       step 332 ms -> 249 ms, -25.0 % (promised -25.0 %): helped; 1 min "
          "05 s "
          "gained\n"
          "   221  shares       not applied long enough (promised -25.0 %)\n");
  }

  TEST_CASE("the short table has lines of at most 100 characters and the newest 12 decisions") {
    cox::Effect slow;
    slow.reason.policy = cox::PolicyKind::stragglers;
    for (int i = 0; i < 20; ++i) slow.reason.text += "a word of many ";
    const std::string table = gpt2::effects_table(cox::EffectList(15, slow), kShort);
    CHECK(std::ranges::count(table, '\n') == 15);  // three of them above the rows
    CHECK(table.find("   ...  3 earlier decisions\n") != std::string::npos);
    for (std::size_t begin = 0; begin < table.size();) {
      const std::size_t end = table.find('\n', begin);
      CHECK(end - begin <= 100);
      begin = end + 1;
    }
    CHECK(table.find(" ...\n") != std::string::npos);
  }

  TEST_CASE("below the closing table stands what its changes sum up to for each policy") {
    CHECK(gpt2::score_lines({{cox::PolicyKind::shares, 3, 1, 2, 1, 65, 4, 50}}) ==
          "shares: 3 of its measured changes helped, 1 did not (1 taken back), 2 not sure; 1 min "
          "05 s gained, 4.0 s lost, 50.0 s promised\n");
    CHECK(gpt2::score_lines({{cox::PolicyKind::precision, 0, 0, 1, 0, 0, 0.32, -0.004}}) ==
          "precision: 0 of its measured changes helped, 0 did not (0 taken back), 1 not sure; 0 s "
          "gained, 0.3 s lost, 0 s promised\n");
  }
}
