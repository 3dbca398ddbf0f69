#include <memory>
#include <string>

#include "metrics/status_page.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/numerics.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

std::string section_after(std::size_t blocks, int rounds, bool numerics = true) {
  SimulatedSetup setup;
  setup.blocks = blocks;
  setup.numerics = numerics;
  SimulatedJob job(setup);
  TelemetryState state(job.job(), UnixTime{1});
  job.steps(state, rounds);
  return section_html(numerics_topic().sections[0], *state.snapshot());
}

// Returns the section of a job with these blocks in this round.
std::string section_of(NumericsView view, std::uint64_t round) {
  JobFacts job;
  job.blocks.resize(view.blocks.size());
  for (std::size_t b = 0; b < job.blocks.size(); ++b) job.blocks[b] = "b" + std::to_string(b);
  const TelemetryState state(job, UnixTime{1});
  Snapshot snapshot = *state.snapshot();
  snapshot.summary.round = RoundId(round);
  snapshot.views.set(std::make_shared<const NumericsView>(std::move(view)));
  return section_html(numerics_topic().sections[0], snapshot);
}

}  // namespace

TEST_SUITE("numerics section") {
  TEST_CASE("a job in plain fp32 without a scaler or an overflow has no such section") {
    CHECK(section_after(14, 0).empty());
    CHECK(section_after(14, 20, false).empty());
    CHECK_FALSE(section_after(14, 30, false).empty());  // bf16 since round 25
    CHECK_FALSE(contains(section_after(14, 30, false), "Last overflow"));
    CHECK(contains(section_after(14, 30, false), "none: no block needs one"));
  }

  TEST_CASE("the last overflow is one sentence, earlier ones are folded away") {
    const std::string page = section_after(14, 75);
    CHECK(contains(page,
                   "<p class=\"group overflow note bad\"><strong>Last overflow:</strong> step "
                   "70, round 70: block h.3, backward, rank 3: 41 values not finite at loss "
                   "scale 32768; the step was skipped</p>"));
    CHECK(contains(page, "<summary>1 earlier overflow</summary><ul class=\"plain\"><li>step 45"));
    const std::string later = section_after(14, 169);
    CHECK(contains(later, "<summary>4 earlier overflows</summary>"));
  }

  TEST_CASE("formats are letters as well as colours, with a key that counts them") {
    const std::string page = section_after(14, 100);
    CHECK(contains(page,
                   "<li class=\"q2 hot\" title=\"h.3: fp16; overflowed in 3 rounds\">"
                   "<em>h.3</em><b>fp16</b><span>▲ 3</span></li>"));
    CHECK(contains(page, "<li><i class=\"q0\"></i>fp32: 2 blocks, 14 %</li>"));
    CHECK(contains(page, "<li><i class=\"q3\"></i>fp8: 1 block, 7 %</li>"));
    CHECK(contains(page, "<i class=\"hot\">▲</i>overflowed lately"));
    const std::string large = section_after(256, 100);
    CHECK(contains(large, ">bf</li>"));
    CHECK(contains(large, ">16</li>"));
    CHECK(contains(large, ">▲</li>"));
    CHECK(contains(large, "<i class=\"q1\">bf</i>bf16:"));
  }

  TEST_CASE("loss scale, its curve, its rules and the skipped steps") {
    const std::string page = section_after(14, 100);
    CHECK(contains(page, "<b class=\"big\">8192</b>"));
    CHECK(
        contains(page, "aria-label=\"Loss scale over the last 70 rounds, between 8192 and 65536"));
    CHECK(contains(page, "×2 after 2,000 clean steps, ×0.5 after an overflow, from 1 to 16777216"));
    CHECK(contains(page, "Rounds with a skipped step</dt><dd>3, 3.0 % of the last 100 rounds"));
  }

  TEST_CASE("every block of a small model has a row with its newest reason") {
    const std::string page = section_after(14, 100);
    CHECK(count(page, "<tr><td>") == 14);
    CHECK(contains(page,
                   "<tr><td>h.3</td><td class=\"fmt\"><span class=\"tag q2\">fp16</span></td>"
                   "<td class=\"n\">31 <small>2×</small></td>"));
    CHECK(contains(page, "<span class=\"tag bad\">▲ 3 backward</span>"));
    CHECK(contains(page, "h.3 overflowed in backward on rank 3"));
  }

  TEST_CASE("gradient noise is a multiple of the signal, and a signal lost in it has no figure") {
    NumericsView view;
    view.blocks.resize(3);
    view.blocks[0].noise = {0.25, RankId(-1), RoundId(4), true};
    view.blocks[1].noise = {31.4, RankId(-1), RoundId(4), true};
    view.blocks[2].noise = {1e6, RankId(-1), RoundId(4), true};
    for (BlockNumerics& block : view.blocks) block.format = Precision::bf16;
    const std::string html = section_of(view, 5);
    for (const char* shown : {">0.25×<", ">31×<", ">over 1,000×<"}) {
      CAPTURE(shown);
      CHECK(contains(html, shown));
    }
    CHECK_FALSE(contains(html, "000,000 %"));
  }

  TEST_CASE("a loss scale that cannot fall any further is marked") {
    CHECK_FALSE(contains(section_after(14, 100), "at its floor"));
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 2);
    Snapshot snapshot = *state.snapshot();
    NumericsView view = snapshot.view<NumericsView>();
    view.loss_scale = 1;
    snapshot.views.set(std::make_shared<const NumericsView>(view));
    CHECK(contains(section_html(numerics_topic().sections[0], snapshot),
                   "<b class=\"big\">1</b> <span class=\"tag warn\">▼ at"));
  }

  TEST_CASE("an overflow of long ago is counted, and no longer marked") {
    NumericsView view;
    view.blocks.resize(300);
    for (BlockNumerics& block : view.blocks) {
      block.overflow_rounds = {0, 2};
      block.overflowed_round = RoundId(50);
    }
    view.blocks[100].overflowed_round = RoundId(5000);
    view.overflow_rounds = 2;
    const std::string page = section_of(view, 5100);
    CHECK(count(page, "<tr><td>") == 3);
    CHECK(contains(page, "<tr><td>b0 to b99 (100)</td>"));
    CHECK(contains(page, "<td class=\"n\">200 backward</td>"));
    CHECK(contains(page, "<tr><td>b100</td>"));
    CHECK(count(page, "<span class=\"tag bad\">▲ ") == 1);
    CHECK(contains(page, "<span class=\"tag bad\">▲ 2 backward</span>"));
  }

  TEST_CASE("of too many rows those that overflowed lately stay, in their order") {
    NumericsView view;
    view.blocks.resize(400);
    for (std::size_t b = 0; b < 400; b += 2) view.blocks[b].format = Precision::bf16;
    view.blocks[333].overflow_rounds = {1, 0};
    view.blocks[333].overflowed_round = RoundId(9);
    const std::string page = section_of(view, 9);
    CHECK(count(page, "<tr><td>") == 24);
    CHECK(contains(page, "<tbody><tr><td>b0</td>"));
    const auto last = page.rfind("<tr><td>");
    CHECK(page.compare(last, 17, "<tr><td>b333</td>") == 0);
  }

  TEST_CASE("in large models neighbours share rows, the block that overflowed has its own") {
    const std::string page = section_after(256, 100);
    CHECK(count(page, "<tr><td>") <= 24);
    CHECK(contains(page, "<tr><td>h.84</td>"));
    CHECK(contains(page, "▲ 3 backward"));
    CHECK(contains(page, "more rows</a>"));
    CHECK(section_after(256, 100).size() < 40000);
  }
}
