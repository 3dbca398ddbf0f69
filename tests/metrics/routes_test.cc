#include "metrics/routes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "metrics/catalogue.h"
#include "metrics/telemetry_state.h"
#include "served_job.h"
#include "simulated_job.h"
#include "tests/support/decimal_comma.h"
#include "text_search.h"
#include "well_formed.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("every endpoint that the index lists answers, before the first round and later") {
    for (const int rounds : {0, 1, 120}) {
      const Served served = served_after({}, rounds);
      const std::string index = respond({"GET", "/", ""}, served).body;
      for (const Endpoint& endpoint : endpoints()) {
        CAPTURE(endpoint.path);
        const Response response = respond({"GET", endpoint.path, ""}, served);
        const bool may_refuse = endpoint.path == "/readyz" && rounds == 0;
        CHECK(response.status == (may_refuse ? 503 : 200));
        CHECK_FALSE(response.body.empty());
        CHECK(contains(index, "href=\"" + endpoint.path + "\""));
      }
    }
  }

  TEST_CASE("no endpoint answers with the decimal commas of the program's locale") {
    SimulatedSetup setup;
    setup.uneven = true;
    const Served served = served_after(setup, 60);
    std::vector<std::string> plain;
    for (const Endpoint& endpoint : endpoints())
      plain.push_back(respond({"GET", endpoint.path, ""}, served).body);
    const cox::test::DecimalComma commas;
    if (!commas.has_c_locale()) MESSAGE("skipped for the C locale: none with a decimal comma");
    const Served again = served_after(setup, 60);
    for (std::size_t i = 0; i < endpoints().size(); ++i) {
      CAPTURE(endpoints()[i].path);
      CHECK(respond({"GET", endpoints()[i].path, ""}, again).body == plain[i]);
    }
  }

  TEST_CASE("only known paths exist, and those of probes are told apart") {
    const Served served = served_after({}, 1);
    for (const char* path : {"/livez", "/healthz", "/readyz"}) CHECK(is_probe(path));
    for (const char* path : {"/", "/metrics", "/livez/", "/api/v1/config"})
      CHECK_FALSE(is_probe(path));
    CHECK(respond({"HEAD", "/metrics", ""}, served).status == 200);
    for (const char* path : {"/metrics/", "/../etc/passwd", "", "/api", "/api/v1/ranks/1"})
      CHECK(respond({"GET", path, ""}, served).status == 404);
  }

  TEST_CASE("metrics carry the content type with its version") {
    const Response response = respond({"GET", "/metrics", ""}, served_after({}, 1));
    CHECK(response.content_type == "text/plain; version=0.0.4; charset=utf-8");
  }

  TEST_CASE("ranks are paged, and pages meet without gap or overlap") {
    SimulatedSetup setup;
    setup.ranks = 25;
    const Served served = served_after(setup, 3);
    const std::string first = respond({"GET", "/api/v1/ranks", "offset=0&limit=10"}, served).body;
    CHECK(count(first, "\"rank\":") == 10);
    CHECK(contains(first, "\"next_offset\":10"));
    const std::string last = respond({"GET", "/api/v1/ranks", "offset=20&limit=10"}, served).body;
    CHECK(count(last, "\"rank\":") == 5);
    CHECK(contains(last, "\"next_offset\":null"));
    const std::string beyond = respond({"GET", "/api/v1/ranks", "offset=99999999999"}, served).body;
    CHECK(count(beyond, "\"rank\":") == 0);
  }

  TEST_CASE("a page never exceeds its cap") {
    SimulatedSetup setup;
    setup.ranks = 1500;
    const Served served = served_after(setup, 1);
    const std::string page =
        respond({"GET", "/api/v1/ranks", "limit=18446744073709551615"}, served).body;
    CHECK(count(page, "\"rank\":") == 1000);
  }

  TEST_CASE("parameters that are no whole numbers are refused with a sentence") {
    const Served served = served_after({}, 1);
    for (const char* query : {"offset=x", "offset=-1", "offset=", "offset=1e3", "limit=1 ",
                              "offset=99999999999999999999"})
      CHECK(respond({"GET", "/api/v1/ranks", query}, served).status == 400);
    const Response response = respond({"GET", "/api/v1/decisions", "since=now"}, served);
    CHECK(response.status == 400);
    CHECK(contains(response.body, "expected a whole number"));
    CHECK(respond({"GET", "/api/v1/decisions", "since=3&x=y"}, served).status == 200);
  }

  TEST_CASE("decisions since a round leave out older ones") {
    const Served served = served_after({}, 100);
    const std::string all = respond({"GET", "/api/v1/decisions", ""}, served).body;
    const std::string newer = respond({"GET", "/api/v1/decisions", "since=56"}, served).body;
    CHECK(contains(all, "\"straggler_found\""));
    CHECK_FALSE(contains(newer, "\"straggler_found\""));
    CHECK(contains(newer, "\"vetoed\""));
  }

  TEST_CASE("slow ranks are those of the estimates, with phase, ratio and since when") {
    const std::string before = respond({"GET", "/api/v1/status", ""}, served_after({}, 50)).body;
    CHECK(contains(before, "\"slow\":[]"));
    const std::string after = respond({"GET", "/api/v1/status", ""}, served_after({}, 60)).body;
    CHECK(contains(after,
                   "\"slow\":[{\"rank\":2,\"state\":\"confirmed\",\"phase\":\"forward\","
                   "\"slowdown_ratio\":1.17,\"slowdown_low\":1.15,\"slowdown_high\":1.19,"
                   "\"since_round\":41,"));
  }

  TEST_CASE("the plan names every block with its precision") {
    const std::string plan = respond({"GET", "/api/v1/plan", ""}, served_after({}, 100)).body;
    CHECK(contains(
        plan, "{\"name\":\"h.0\",\"precision\":\"bf16\",\"ranks_by_action\":{\"recompute\":4}}"));
    CHECK(contains(plan,
                   "{\"name\":\"ln_f\",\"precision\":\"fp32\",\"ranks_by_action\":{\"keep\":4}}"));
    CHECK(count(plan, "\"recompute\":") == 4);
    CHECK(contains(plan, "\"activated_round\":61"));
  }

  TEST_CASE("uneven parts of a batch are shown for the job and for each rank") {
    SimulatedSetup setup;
    setup.uneven = true;  // 8, 16, 24 and 8 samples
    const Served served = served_after(setup, 3);
    const std::string status = respond({"GET", "/api/v1/status", ""}, served).body;
    for (const char* part :
         {"\"data_parallel\":{\"step_samples\":56,\"planned_step_samples\":56,"
          "\"job_step_samples\":32,\"micro_batch_samples\":4,\"fewest_micro_batches\":2,",
          "\"rank_samples\":{\"min\":8,\"median\":12,",
          "\"repeated_rounds\":0,\"shared_updates\":{\"updates\":0,"}) {
      CAPTURE(part);
      CHECK(contains(status, part));
    }
    const std::string ranks = respond({"GET", "/api/v1/ranks", ""}, served).body;
    CHECK(contains(ranks, "\"samples_per_step\":24,\"share_ratio\":0.42857142857142855,"));
    CHECK(count(ranks, "\"reduction_exposed_seconds\":0.00") == 4);
    const std::string plan = respond({"GET", "/api/v1/plan", ""}, served).body;
    CHECK(contains(plan, ",\"step_samples\":56,\"hold_until\":0,\""));
    CHECK(plan.ends_with("],\"shares\":[2,4,6,2],\"rollback\":{\"ticket\":0,\"before_round\":0}}"));
    const std::string metrics = respond({"GET", "/metrics", ""}, served).body;
    for (const char* line :
         {"\ncoxswain_step_samples 56\n", "\ncoxswain_plan_step_samples 56\n",
          "\ncoxswain_rank_step_samples{stat=\"max\"} 24\n", "\ncoxswain_accumulation_anchor 2\n",
          "\ncoxswain_reduction_hidden_ratio 0.8", "\ncoxswain_repeated_rounds_total 0\n"}) {
      CAPTURE(line);
      CHECK(contains(metrics, line));
    }
  }

  TEST_CASE("without a batch of its own or a reduction, what is not known is null") {
    JobFacts facts;
    facts.world_size = 2;
    TelemetryState state(facts, UnixTime{1});
    const Served served{state.snapshot(), UnixTime{1}, {}};
    const std::string status = respond({"GET", "/api/v1/status", ""}, served).body;
    CHECK(contains(status,
                   "\"data_parallel\":{\"step_samples\":0,\"planned_step_samples\":null,"
                   "\"job_step_samples\":null,\"micro_batch_samples\":null,"
                   "\"fewest_micro_batches\":null,"));
    CHECK(contains(status, "\"reduction_hidden_ratio\":null"));
    CHECK_FALSE(contains(respond({"GET", "/metrics", ""}, served).body,
                         "\ncoxswain_reduction_hidden_ratio "));
  }

  TEST_CASE("the configuration is shown without paths") {
    Config config;
    config.run.directory = "/home/somebody/runs";
    config.checkpoint.directory = "/secret/place";
    Served served = served_after({}, 1);
    served.settings = settings_of(config);
    const std::string body = respond({"GET", "/api/v1/config", ""}, served).body;
    CHECK(contains(body, "\"guard.hold_rounds\""));
    CHECK(contains(body, "\"(set)\""));
    CHECK_FALSE(contains(body, "somebody"));
    CHECK_FALSE(contains(body, "/secret"));
  }

  TEST_CASE("numbers that are not finite are null in JSON") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.nonfinite = true;
    job.steps(state, 2);
    const Served served{state.snapshot(), UnixTime{job.now()}, {}};
    const std::string ranks = respond({"GET", "/api/v1/ranks", ""}, served).body;
    CHECK(contains(ranks, "\"loss\":null"));
    CHECK_FALSE(contains(ranks, "nan"));
  }

  TEST_CASE("random requests never crash") {
    const Served served = served_after({}, 5);
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
      std::string path = "/api/v1/ranks";
      std::string query;
      for (unsigned n = random() % 40; n > 0; --n) query += static_cast<char>(random() % 256);
      if (i % 2 == 0) path += static_cast<char>(random() % 256);
      const int status = respond({"GET", path, query}, served).status;
      CHECK((status == 200 || status == 400 || status == 404));
    }
  }
}

TEST_SUITE("metrics.rank_page") {
  TEST_CASE("a rank has a page of its own, and who asks for none that there is gets a sentence") {
    SimulatedSetup setup;
    setup.name = "<b>";
    const Served served = served_after(setup, 120);
    const std::string page = respond({"GET", "/status/rank", "rank=2"}, served).body;
    CHECK(first_fault(page) == "");
    for (const char* part :
         {"<h1>Rank 2 of 4</h1>", "<dt>Own work</dt>", "&lt;b&gt;", "<svg class=\"spark\"",
          "<h2>Decided about it</h2>", "http-equiv=\"refresh\""})
      CHECK_MESSAGE(contains(page, part), part);
    CHECK_FALSE(contains(page, "<b>"));
    const Response refused = respond({"GET", "/status/rank", "rank=4"}, served);
    CHECK(refused.status == 400);
    CHECK(contains(refused.body, "expected a rank from 0 to 3"));
    CHECK(respond({"GET", "/status/rank", "rank=x"}, served).status == 400);
  }
}
