#include "metrics/status_page.h"

#include <string>
#include <vector>

#include "metrics/format.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "served_job.h"
#include "simulated_job.h"
#include "text_search.h"
#include "well_formed.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("the pages are well-formed in every state of a job") {
    for (const std::int32_t ranks : {1, 4, 13, 2000}) {
      for (const std::size_t blocks : {std::size_t{0}, std::size_t{14}, std::size_t{300}}) {
        for (const int rounds : {0, 1, 2, 130}) {
          if (ranks == 2000 && rounds == 130 && blocks != 14) continue;
          SimulatedSetup setup;
          setup.ranks = ranks;
          setup.blocks = blocks;
          setup.numerics = rounds != 2;
          CAPTURE(ranks);
          CAPTURE(blocks);
          CAPTURE(rounds);
          const Served served = served_after(setup, rounds);
          CHECK(first_fault(status_page(served)) == "");
          CHECK(first_fault(index_page(served, endpoints())) == "");
        }
      }
    }
  }

  TEST_CASE("data parallel: the batch, each rank's part of it, and what the reduction cost") {
    SimulatedSetup setup;
    setup.uneven = true;
    const std::string page = status_page(served_after(setup, 50));
    CHECK(first_fault(page) == "");
    for (const char* part :
         {"<h2>Data parallel</h2>", "56 samples, 1.75× the job's 32", "8 to 24, most on rank 2",
          "2 of 4 samples", " a step, 89 % behind backward", " on rank 1",
          "<td class=\"n\">24</td><td class=\"n\">42.9 %</td>", "Steps of 56 samples."}) {
      CAPTURE(part);
      CHECK(contains(page, part));
    }
    CHECK_FALSE(contains(page, "Steps done again"));
    SimulatedSetup many;
    many.ranks = 13;
    many.uneven = true;
    const std::string both_ends = status_page(served_after(many, 3));
    CHECK(contains(both_ends, "The 4 ranks with most samples and those with fewest"));
    SimulatedSetup alone;
    alone.ranks = 1;
    CHECK_FALSE(contains(status_page(served_after(alone, 3)), "<h2>Data parallel</h2>"));
  }

  TEST_CASE("text from outside cannot become markup") {
    SimulatedSetup setup;
    setup.name = "<script>alert('x')</script>\" onload=\"x";
    SimulatedJob job(setup);
    JobFacts facts = job.job();
    facts.blocks[3] = "<img src=x onerror=alert(1)>";
    TelemetryState state(facts, UnixTime{1}, {"<i>", "<u>"});
    job.steps(state, 1);
    Decision decision;
    Reason reason;
    reason.outcome = Outcome::reported;
    reason.text = "<b onmouseover=\"x\">\xff\x01 & 'y'";
    decision.reasons = {reason};
    const StepSignals signals;
    const Plan plan = initial_plan(facts);
    state.record({signals, decision, plan, facts, {}});
    const Served served{state.snapshot(), UnixTime{2}, {}};
    for (const std::string& page : {status_page(served), index_page(served, endpoints())}) {
      CHECK(first_fault(page) == "");
      for (const char* bad : {"<script>", "<img", "<b o", "<i>", "<u>", "\" onload"})
        CHECK_FALSE(contains(page, bad));
    }
    CHECK(count(status_page(served), "<script") == 1);
    CHECK(count(index_page(served, endpoints()), "<script") == 0);
    for (const EventPart& part : page_events(served)) CHECK_FALSE(contains(part.text, "<script"));
    CHECK(contains(status_page(served), "&lt;script&gt;"));
    CHECK(contains(status_page(served), "&lt;img src=x"));
    CHECK(contains(status_page(served), "\xEF\xBF\xBD"));
  }

  TEST_CASE("the page needs nothing from elsewhere, and reads and stays new without its script") {
    const std::string page = status_page(served_after({}, 100));
    for (const char* bad : {"<script>", "http://", "https://", "@import", "url(", "onclick"}) {
      std::string shown = page;
      const auto icon = shown.find("xmlns='http://www.w3.org/2000/svg'");
      if (icon != std::string::npos) shown.erase(icon, 34);
      CHECK_FALSE(contains(shown, bad));
    }
    CHECK(contains(page, "<noscript><meta http-equiv=\"refresh\" content=\"5\"/></noscript>"));
    CHECK(contains(page, "<script src=\"/status.js\" defer=\"defer\"></script>"));
    CHECK(contains(page, "prefers-color-scheme:dark"));
  }

  TEST_CASE("the page says what a newcomer asks: state, ranks, plan, decisions with reasons") {
    const std::string page = status_page(served_after({}, 100));
    for (const char* part :
         {"● training", "4 of 4 ranks reporting", "Plan 2", ">slow</span></td>",
          "in forward since round 41, against the other ranks", "rank 2 slow in forward",
          "recompute", "vetoed", "this loop does not take its batch", "unchanged",
          "aria-label=\"Loss over the last 100 rounds", "href=\"/api/v1/decisions\""}) {
      CAPTURE(part);
      CHECK(contains(page, part));
    }
  }

  TEST_CASE("activation memory: peaks, budget, added time, and the action of every block") {
    const std::string page = status_page(served_after({}, 100));
    for (const char* part :
         {"Activation memory", "Highest predicted peak</dt><dd>6.50 GiB",
          "Highest real peak</dt><dd>6.05 GiB", "Lowest budget</dt><dd>6.50 GiB",
          "With every block kept</dt><dd>7.50 GiB", "Added time, predicted</dt><dd>+4.1 %",
          "<td>h.0 to h.3 (4)</td><td>recompute</td>", "<td>embedding</td><td>keep</td>"}) {
      CAPTURE(part);
      CHECK(contains(page, part));
    }
    CHECK_FALSE(contains(page, "over budget"));
  }

  TEST_CASE("a level of recompute is told in the tables, and counted as recompute") {
    SimulatedSetup setup;
    setup.saving = recompute_level(2);
    const Served served = served_after(setup, 100);
    const std::string page = status_page(served);
    CHECK(contains(page, "<td>h.0 to h.3 (4)</td><td>recompute 2 of 7</td>"));
    CHECK(contains(page, ", 4 recompute."));
    CHECK(contains(page, "a1\" title=\"h.0: bf16, recompute 2 of 7"));
    const std::string plan = respond({"GET", "/api/v1/plan", ""}, served).body;
    CHECK(contains(plan, "\"ranks_by_action\":{\"recompute 2\":4}"));
    const std::string metrics = respond({"GET", "/metrics", ""}, served).body;
    CHECK(contains(metrics, "coxswain_plan_action_blocks{action=\"recompute\"} 4"));
    CHECK_FALSE(contains(metrics, "recompute 2"));
    setup.ranks_differ = true;
    CHECK(contains(status_page(served_after(setup, 100)),
                   "<td>h.0 to h.3 (4)</td><td>recompute 2 of 7 on 2 of 4 ranks, keep on 2</td>"));
  }

  TEST_CASE("where ranks differ, a block's action says on how many of them") {
    SimulatedSetup setup;
    setup.ranks_differ = true;
    const std::string page = status_page(served_after(setup, 100));
    CHECK(contains(page, "<td>h.0 to h.3 (4)</td><td>recompute on 2 of 4 ranks, keep on 2</td>"));
    CHECK(contains(page, "<td>embedding</td><td>keep</td>"));
    CHECK(contains(page, "<h3>Ranks 0, 1</h3>"));
    CHECK(contains(page, "<h3>Ranks 2, 3</h3>"));
    setup.ranks = 40;
    CHECK(contains(status_page(served_after(setup, 100)), "<h3>20 ranks</h3>"));
  }

  TEST_CASE("of many ranks those nearest to their budget are shown") {
    SimulatedSetup setup;
    setup.ranks = 40;
    const std::string page = status_page(served_after(setup, 3));
    CHECK(contains(page, "The 8 ranks nearest to their budget"));
    // Every sixteenth rank has the highest peak, 6.23 GiB of 6.50.
    CHECK(contains(page, "<tr><td class=\"n\">15</td><td class=\"n\">7.50 GiB</td>"));
    CHECK(contains(page, "<tr><td class=\"n\">31</td><td class=\"n\">7.50 GiB</td>"));
  }

  TEST_CASE("memory that is not planned takes one line, which says how to switch it on") {
    SimulatedSetup setup;
    setup.plans_memory = false;
    const std::string page = status_page(served_after(setup, 100));
    CHECK(contains(page, "Not planned: every block is kept."));
    CHECK(contains(page, "--cox.memory.budget=6GiB"));
    CHECK_FALSE(contains(page, "Highest predicted peak"));
  }

  TEST_CASE("when all ranks have finished the tiles keep the newest round of training") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 30);
    const std::size_t points = state.snapshot()->view<ProgressView>().points.size();
    const double loss = state.snapshot()->summary.loss;
    job.finishing = true;
    job.step(state);
    CHECK(state.snapshot()->state == JobState::finished);
    CHECK(state.snapshot()->view<ProgressView>().points.size() == points);
    const std::string page = status_page({state.snapshot(), UnixTime{job.now()}, {}});
    CHECK(contains(page, "<p class=\"big\">" + significant(loss, 4) + "</p>"));
    CHECK_FALSE(contains(page, "<p class=\"big\">NaN"));
  }

  TEST_CASE("the page of a job that has ended keeps all last values, says so, and stays") {
    SimulatedSetup setup;
    setup.numerics = true;
    SimulatedJob job(setup);
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 30);
    const auto last = state.snapshot();
    const std::string training = status_page({last, UnixTime{job.now()}, {}});
    job.finishing = true;
    job.steps(state, 2);
    state.finish();
    const auto ended = state.snapshot();
    CHECK(ended->summary.loss == last->summary.loss);
    CHECK(ended->summary.phases[1].median == last->summary.phases[1].median);
    CHECK(ended->view<RanksView>().table == last->view<RanksView>().table);
    CHECK(ended->view<MemoryHeadroom>().least_bytes == last->view<MemoryHeadroom>().least_bytes);
    const std::string page = status_page({ended, UnixTime{job.now() + 1e6}, {}});
    CHECK(first_fault(page) == "");
    for (const std::string_view part : {"<h2>Where a step goes</h2>", "<h2>Ranks</h2>"}) {
      const std::size_t bar = training.find("<div class=\"", training.find(part));
      const std::string kept = training.substr(bar, training.find("</section>", bar) - bar);
      CAPTURE(kept);
      CHECK(kept.size() > 500);
      CHECK(contains(page, kept));
    }
    CHECK(contains(page, "■ finished"));
    CHECK(contains(page, "The job has ended. These are the last values"));
    CHECK(contains(page, "Round 30, step 30. Plan"));
    CHECK(contains(page, ", ended " + utc_text(ended->last_round_time) + ". </p>"));
    CHECK(contains(page, "0 of 4 training, 4 finished"));
    CHECK_FALSE(contains(page, "http-equiv=\"refresh\""));  // the server may be gone
    CHECK_FALSE(contains(page, " ago"));                    // would soon be wrong
  }

  TEST_CASE(
      "a job whose last step is known says how long it still takes, at the pace of its rounds") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 10);
    const auto shown = [&] { return Served{state.snapshot(), UnixTime{job.now()}, {}}; };
    CHECK_FALSE(contains(status_page(shown()), ", about "));
    CHECK(contains(respond({"GET", "/api/v1/status", ""}, shown()).body, "\"seconds_left\":null"));
    state.set_last_step(1010);
    job.step(state);
    const auto left = seconds_left(*state.snapshot());
    REQUIRE(left.has_value());
    CHECK(*left ==
          doctest::Approx(999 * state.snapshot()->summary.wall_seconds.median).epsilon(0.1));
    CHECK(contains(status_page(shown()), "step 11 of 1,010, closed"));
    CHECK(contains(status_page(shown()), ", about " + duration_text(*left) + " left. "));
    state.set_last_step(5);  // the job was told to continue beyond that step
    job.step(state);
    CHECK(seconds_left(*state.snapshot()) == 0.0);
    state.finish();
    CHECK_FALSE(contains(status_page(shown()), ", about "));
  }

  TEST_CASE("missing ranks, non-finite rounds and stalls are said in words") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 10);
    job.missing_rank = 3;
    job.nonfinite = true;
    job.step(state);
    const std::string page = status_page({state.snapshot(), UnixTime{job.now() + 500}, {}});
    CHECK(contains(page, "▲ stalled"));
    CHECK(contains(page, "no report for this round"));
    CHECK(contains(page, "Rank 0 had a loss or gradient that is not finite"));
  }

  TEST_CASE("the size of the page does not grow with the number of ranks") {
    SimulatedSetup large;
    large.ranks = 3000;
    SimulatedSetup small;
    small.ranks = 12;
    const auto size = [](SimulatedSetup setup) {
      return status_page(served_after(setup, 80)).size();
    };
    CHECK(size(large) < size(small) + 4000);
  }
}
