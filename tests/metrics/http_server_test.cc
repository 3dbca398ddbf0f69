#include "metrics/http_server.h"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "http_client.h"
#include "simulated_job.h"
#include "text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

struct Fixture {
  Fixture() : job({}), state(job.job(), UnixTime{1}, {"0.1.0", "abc"}) {
    job.steps(state, 5);
    Config config;
    config.http.port = 0;
    auto started = HttpServer::start(config, state);
    REQUIRE(started.ok());
    server = std::move(*started);
    REQUIRE(server->port() != 0);
  }
  std::uint16_t port() const { return server->port(); }

  SimulatedJob job;
  TelemetryState state;
  std::unique_ptr<HttpServer> server;
};

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a chosen free port is told, and metrics come with their content type") {
    const Fixture f;
    const std::string response = get(f.port(), "/metrics");
    CHECK(response.starts_with("HTTP/1.1 200 OK\r\n"));
    CHECK(contains(response, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    CHECK(contains(response, "coxswain_rounds_total 5"));
    CHECK(f.server->url() == "http://127.0.0.1:" + std::to_string(f.port()));
  }

  TEST_CASE("HEAD has the headers of GET and no body") {
    const Fixture f;
    const std::string response = response_to(f.port(), "HEAD /status HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(response.starts_with("HTTP/1.1 200"));
    CHECK(response.ends_with("\r\n\r\n"));
    CHECK(contains(response, "Content-Length: "));
  }

  TEST_CASE("other methods get 405, unknown paths 404, and no file is ever served") {
    const Fixture f;
    for (const char* method : {"POST", "PUT", "DELETE"}) {
      const std::string response =
          response_to(f.port(), std::string(method) +
                                    " /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
      CHECK(response.starts_with("HTTP/1.1 405"));
      CHECK(contains(response, "Allow: GET, HEAD"));
    }
    for (const char* path :
         {"/nothing", "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"})
      CHECK_FALSE(contains(get(f.port(), path), "root:"));
    CHECK(get(f.port(), "/nothing").starts_with("HTTP/1.1 404"));
  }

  TEST_CASE("malformed and oversized requests cost nothing but themselves") {
    const Fixture f;
    CHECK_FALSE(contains(response_to(f.port(), "\x16\x03\x01\x02\xff\r\n\r\n"), "200 OK"));
    CHECK_FALSE(contains(response_to(f.port(), "GET\r\n\r\n"), "200 OK"));
    CHECK_FALSE(contains(response_to(f.port(), "GET /metrics SPDY/9\r\n\r\n"), "200 OK"));
    CHECK_FALSE(contains(get(f.port(), "/" + std::string(20000, 'a')), "200 OK"));
    const std::string headers =
        "GET /metrics HTTP/1.1\r\nX: " + std::string(100000, 'b') + "\r\n\r\n";
    CHECK_FALSE(contains(response_to(f.port(), headers), "200 OK"));
    std::mt19937 random(3);
    for (int i = 0; i < 30; ++i) {
      std::string noise;
      for (int n = 0; n < 200; ++n) noise += static_cast<char>(random() % 256);
      response_to(f.port(), noise + "\r\n\r\n");
    }
    CHECK(get(f.port(), "/livez").starts_with("HTTP/1.1 "));
  }

  TEST_CASE("a few clients that send nothing leave room for the others") {
    const Fixture f;
    std::vector<std::unique_ptr<RawConnection>> idle;
    for (int i = 0; i < 3; ++i) {
      idle.push_back(std::make_unique<RawConnection>(f.port()));
      idle.back()->send("GET /metrics HTT");
    }
    CHECK(contains(get(f.port(), "/readyz"), "all 4 ranks have reported"));
  }

  TEST_CASE("more silent clients than threads are thrown out after the time limit") {
    const Fixture f;
    std::vector<std::unique_ptr<RawConnection>> idle;
    for (int i = 0; i < 6; ++i) {
      idle.push_back(std::make_unique<RawConnection>(f.port()));
      idle.back()->send("GET /");
    }
    std::string response;
    for (int tries = 0; tries < 3 && response.empty(); ++tries)
      response = get(f.port(), "/version");
    CHECK(contains(response, "\"version\":\"0.1.0\""));
  }

  TEST_CASE("a port in use gives one clear sentence") {
    const Fixture f;
    Config config;
    config.http.port = f.port();
    const auto second = HttpServer::start(config, f.state);
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().code() == StatusCode::unavailable);
    CHECK(contains(second.status().message(), "127.0.0.1:" + std::to_string(f.port())));
    CHECK(contains(second.status().message(), "already in use"));
    CHECK(contains(second.status().message(), "COX_HTTP_PORT"));
  }

  TEST_CASE("a host that is no address is refused") {
    SimulatedJob job({});
    const TelemetryState state(job.job(), UnixTime{1});
    for (const char* host : {"", "example.org", "1.2.3", "127.0.0.1,0.0.0.0:80", "::1"}) {
      Config config;
      config.http.host = host;
      config.http.port = 0;
      const auto server = HttpServer::start(config, state);
      REQUIRE_FALSE(server.ok());
      CHECK(server.status().code() == StatusCode::invalid_argument);
    }
  }

  TEST_CASE("pages answer while the control loop hangs, and livez says so") {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.set_now(1000);  // long ago
    job.steps(state, 5);
    Config config;
    config.http.port = 0;
    const auto server = HttpServer::start(config, state);
    REQUIRE(server.ok());
    const std::string response = get((*server)->port(), "/livez");
    CHECK(response.starts_with("HTTP/1.1 503"));
    CHECK(contains(response, "failed: stalled: no round since round 5"));
    CHECK(get((*server)->port(), "/status").starts_with("HTTP/1.1 200"));
  }

  TEST_CASE("scrapes while rounds are recorded are whole") {
    Fixture f;
    std::atomic<bool> stop{false};
    std::atomic<int> good{0};
    std::atomic<int> bad{0};
    std::vector<std::thread> clients;
    for (const char* path : {"/metrics", "/status", "/api/v1/ranks"}) {
      clients.emplace_back([&, path] {
        while (!stop) {
          const std::string response = get(f.port(), path);
          const auto length = response.find("Content-Length: ");
          const auto body = response.find("\r\n\r\n");
          const bool whole = length != std::string::npos && body != std::string::npos &&
                             response.size() - body - 4 == std::stoul(response.substr(length + 16));
          ++(whole ? good : bad);
        }
      });
    }
    for (int round = 0; round < 400 || (good < 30 && round < 200000); ++round) f.job.step(f.state);
    stop = true;
    for (std::thread& client : clients) client.join();
    CHECK(bad == 0);
    CHECK(good >= 30);
  }
}
