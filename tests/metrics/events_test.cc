// Server-sent events over real sockets: the followers' events, their largest number, and a follower
// that reads nothing, which must cost the others nothing.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "http_client.h"
#include "metrics/http/http_server.h"
#include "simulated_job.h"
#include "text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

constexpr std::size_t kMostFollowers = 64;
const std::string kEnd = "event: end\ndata: \n\n";

struct FollowedJob {
  explicit FollowedJob(SimulatedSetup setup = {})
      : job(std::move(setup)), state(job.job(), UnixTime{1}, {"0.1.0", "abc"}) {
    job.steps(state, 5);
    Config config;
    config.http.port = 0;
    auto started = HttpServer::start(config, state);
    REQUIRE(started.ok());
    server = std::move(*started);
  }

  std::unique_ptr<RawConnection> follow(const std::string& path) const {
    auto connection = std::make_unique<RawConnection>(server->port());
    CHECK(connection->send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    return connection;
  }

  SimulatedJob job;
  TelemetryState state;
  std::unique_ptr<HttpServer> server;
};

}  // namespace

TEST_SUITE("metrics.events") {
  TEST_CASE("a page's script gets every part, then those that change, then the end") {
    FollowedJob f;
    const auto follower = f.follow("/status/events");
    const std::string first = follower->receive_until("part-1\ndata: <");
    CHECK(first.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
    CHECK_FALSE(contains(first, "Content-Length"));
    for (const char* part : {"event: part\ndata: title\ndata: gpt2-dictionary",
                             "event: part\ndata: part-head\ndata: <header", "Round 5, step 5"})
      CHECK_MESSAGE(contains(first, part), part);
    f.job.step(f.state);
    CHECK(contains(follower->receive_until("Round 6, step 6"), "Round 6, step 6"));
    f.state.finish();
    const std::string last = follower->receive_all();
    CHECK(contains(last, "■ finished"));
    CHECK(last.ends_with(kEnd));
    CHECK(count(last, "event: end") == 1);
  }

  TEST_CASE("programs follow the figures as JSON") {
    FollowedJob f;
    const auto follower = f.follow("/api/v1/events");
    const std::string first = follower->receive_until("\"round\":5");
    CHECK(contains(first, "event: status\ndata: {\"job\":"));
    f.state.finish();
    CHECK(contains(follower->receive_all(), "\"state\":\"finished\""));
  }

  TEST_CASE("who comes after the end gets the last values and the end") {
    FollowedJob f;
    f.state.finish();
    for (int i = 0; i < 2; ++i) {
      const std::string all = f.follow("/status/events")->receive_all();
      CHECK(contains(all, "■ finished"));
      CHECK(all.ends_with(kEnd));
    }
  }

  TEST_CASE("HEAD of a stream has no events") {
    const FollowedJob f;
    const std::string head =
        response_to(f.server->port(), "HEAD /status/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    CHECK(contains(head, "Content-Type: text/event-stream\r\n"));
    CHECK(head.ends_with("\r\n\r\n"));
  }

  TEST_CASE("so many may follow, one more is told so, and has room when somebody leaves") {
    FollowedJob f;
    std::vector<std::unique_ptr<RawConnection>> followers;
    for (std::size_t i = 0; i < kMostFollowers; ++i) {
      followers.push_back(f.follow("/status/events"));
      CHECK(contains(followers.back()->receive_until("text/event-stream"), "200 OK"));
    }
    const std::string refused = get(f.server->port(), "/api/v1/events");
    CHECK(refused.starts_with("HTTP/1.1 503"));
    CHECK(contains(refused, "expected at most 64 followers"));
    CHECK(get(f.server->port(), "/status").starts_with("HTTP/1.1 200"));
    followers.pop_back();
    std::string again = "503";
    while (contains(again, "503"))  // until the server has noticed the closed connection
      again = f.follow("/api/v1/events")->receive_until("HTTP/1.1 200");
    CHECK(contains(again, "200"));
    f.state.finish();
    for (const auto& follower : followers) CHECK(follower->receive_all().ends_with(kEnd));
  }

  TEST_CASE("fifty who never read delay neither those who do, nor probes, nor the end") {
    SimulatedSetup setup;
    setup.blocks = 300;
    setup.ranks = 200;
    FollowedJob f(setup);
    std::vector<std::unique_ptr<RawConnection>> deaf;
    for (int i = 0; i < 50; ++i) deaf.push_back(f.follow("/status/events"));
    const auto follower = f.follow("/status/events");
    follower->receive_until("Round 5, step 5");
    for (int i = 6; i < 9; ++i) {
      f.job.step(f.state);
      const std::string round = "Round " + std::to_string(i) + ", step ";
      CHECK(contains(follower->receive_until(round), round));
      CHECK(get(f.server->port(), "/readyz").starts_with("HTTP/1.1 200"));
    }
    f.state.finish();
    CHECK(follower->receive_all().ends_with(kEnd));
    f.server.reset();  // waits for answers, but not for events
  }
}
