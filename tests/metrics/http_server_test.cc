#include "metrics/http/http_server.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "http_client.h"
#include "served_job.h"
#include "simulated_job.h"
#include "tests/support/file_limit.h"
#include "tests/support/no_threads.h"
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

  TEST_CASE("HEAD has the headers of GET and no body, also where it is refused") {
    const Fixture f;
    for (const char* path : {"/status", "/nothing", "/status%00"}) {
      const std::string tail = std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
      const std::string all = response_to(f.port(), "GET " + tail);
      const std::string head = response_to(f.port(), "HEAD " + tail);
      CHECK(head.ends_with("\r\n\r\n"));
      CHECK(head.substr(0, 12) == all.substr(0, 12));
      CHECK(contains(head, "Content-Length: "));
      CHECK_FALSE(contains(head, "Content-Length: 0\r\n"));
    }
  }

  TEST_CASE("other methods get 405, unknown paths 404, and no file is ever served") {
    const Fixture f;
    for (const char* method : {"POST", "PUT", "DELETE"}) {
      const std::string response = response_to(
          f.port(), std::string(method) +
                        " /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
      CHECK(response.starts_with("HTTP/1.1 405"));
      CHECK(contains(response, "Allow: GET, HEAD"));
    }
    for (const char* path :
         {"/nothing", "/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"})
      CHECK_FALSE(contains(get(f.port(), path), "root:"));
    CHECK(get(f.port(), "/nothing").starts_with("HTTP/1.1 404"));
    CHECK(get(f.port(), "/status%00").starts_with("HTTP/1.1 400"));
  }

  TEST_CASE("a foreign name in the Host header gets no page") {
    const Fixture f;
    const std::string response =
        response_to(f.port(), "GET /status HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n");
    CHECK(response.starts_with("HTTP/1.1 421"));
    CHECK(contains(response, "evil.example"));
    CHECK_FALSE(contains(response, "<html"));
    CHECK(response_to(f.port(), "GET http://localhost/readyz HTTP/1.1\r\nHost: a\r\n\r\n")
              .starts_with("HTTP/1.1 200"));
  }

  TEST_CASE("malformed and oversized requests cost nothing but themselves") {
    const Fixture f;
    CHECK(response_to(f.port(), "\x16\x03\x01\x02\xff\r\n\r\n").starts_with("HTTP/1.1 400"));
    CHECK(response_to(f.port(), "GET\r\n\r\n").starts_with("HTTP/1.1 400"));
    CHECK(response_to(f.port(), "GET /metrics SPDY/9\r\n\r\n").starts_with("HTTP/1.1 505"));
    const std::string line = "GET /metrics HTTP/1.1\r\n";
    CHECK_FALSE(contains(get(f.port(), "/" + std::string(20000, 'a')), "200 OK"));
    CHECK_FALSE(
        contains(response_to(f.port(), line + "X: " + std::string(1 << 20, 'b')), "200 OK"));
    std::string flood = line;
    for (int i = 0; i < 100000; ++i) flood += "X: y\r\n";
    CHECK_FALSE(contains(response_to(f.port(), flood), "200 OK"));
    std::mt19937 random(3);
    for (int i = 0; i < 200; ++i) {
      std::string noise;
      for (int n = 0; n < 200; ++n) noise += static_cast<char>(random() % 256);
      response_to(f.port(), noise + "\r\n\r\n");
    }
    CHECK(get(f.port(), "/livez").starts_with("HTTP/1.1 "));
  }

  TEST_CASE("a connection is for one request: what comes behind it is not answered") {
    const Fixture f;
    std::string many;
    for (int i = 0; i < 1000; ++i) many += "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    CHECK(count(response_to(f.port(), many), "HTTP/1.1 200") == 1);
    const std::string body =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 44\r\n\r\n";
    CHECK(count(response_to(f.port(), body + many), "HTTP/1.1 ") == 1);
  }

  TEST_CASE("idle and slow clients and bodies that drip starve neither probes nor scrapes") {
    const Fixture f;
    std::vector<std::unique_ptr<RawConnection>> clients;
    const auto add = [&](int how_many, const std::string& bytes) {
      for (int i = 0; i < how_many; ++i) {
        clients.push_back(std::make_unique<RawConnection>(f.port()));
        REQUIRE(clients.back()->connected());
        clients.back()->send(bytes);
      }
    };
    add(198, "");
    add(40, "GET /metrics HTT");
    add(8, "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
    for (int i = 0; i < 20; ++i) {
      for (auto& client : clients) client->send("x");
      CHECK(contains(get(f.port(), "/readyz"), "all 4 ranks have reported"));
      CHECK(contains(get(f.port(), "/metrics"), "\ncoxswain_rounds_total 5\n"));
    }
  }

  TEST_CASE("a request and a body that come byte by byte are cut off, however long they are") {
    const Fixture f;
    for (const char* begin :
         {"GET /metrics HTTP/1.1\r\nX: ",
          "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"}) {
      RawConnection slow(f.port());
      bool is_taken = slow.send(begin);
      while (is_taken) {
        is_taken = slow.send("x");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    CHECK(get(f.port(), "/readyz").starts_with("HTTP/1.1 200"));
  }

  TEST_CASE("more clients than there is room for: the newest gets in") {
    std::unique_ptr<Fixture> f;
    {
      const test::FileLimit few(64);
      f = std::make_unique<Fixture>();
    }
    std::vector<std::unique_ptr<RawConnection>> idle;
    for (int i = 0; i < 100; ++i) {
      idle.push_back(std::make_unique<RawConnection>(f->port()));
      idle.back()->send("GET /");
      CHECK(contains(get(f->port(), "/readyz"), "HTTP/1.1 200"));
    }
    CHECK(idle.front()->receive_all().empty());
  }

  TEST_CASE("a process without free descriptors closes an idle client for a probe") {
    const Fixture f;
    std::vector<std::unique_ptr<RawConnection>> idle;
    for (int i = 0; i < 3; ++i) idle.push_back(std::make_unique<RawConnection>(f.port()));
    CHECK(contains(get(f.port(), "/readyz"), "200 OK"));  // the idle connections are open by now
    const test::FileLimit few(256);
    std::vector<int> taken;
    for (int file = ::dup(2); file >= 0; file = ::dup(2)) taken.push_back(file);
    REQUIRE(taken.size() > 4);
    ::close(taken.back());  // frees a descriptor for the client
    taken.pop_back();
    CHECK(contains(get(f.port(), "/readyz"), "200 OK"));
    for (const int file : taken) ::close(file);
  }

  TEST_CASE("without a thread there is no server, and the reason is told") {
    const cox::test::NoThreads none;
    HttpConfig config;
    config.port = 0;
    const Status refused = HttpServer::start(config, [] { return Served{}; }).status();
    CHECK(refused.code() == StatusCode::resource_exhausted);
    CHECK(contains(refused.message(),
                   "http: its thread could not be started: no room for its stack"));
  }

  TEST_CASE("the program's SIGPIPE stays as it is while pages are served and clients leave") {
    const auto disposition = [] {
      struct sigaction now {};
      ::sigaction(SIGPIPE, nullptr, &now);
      return now.sa_handler == SIG_DFL;
    };
    REQUIRE(disposition());
    {
      const Fixture f;
      for (int i = 0; i < 20; ++i) {
        RawConnection client(f.port());
        client.send("GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
      }
      CHECK(disposition());
      CHECK(contains(get(f.port(), "/livez"), "HTTP/1.1 "));
    }
    CHECK(disposition());
  }

  TEST_CASE("a page that takes long delays no probe") {
    const Served served = served_after({}, 5);
    std::atomic<int> asked{0};
    std::atomic<bool> may_go_on{false};
    HttpConfig config;
    config.port = 0;
    const auto server = HttpServer::start(config, [&] {
      if (asked++ == 0) may_go_on.wait(false);
      return served;
    });
    REQUIRE(server.ok());
    std::string page;
    std::thread client([&] { page = get((*server)->port(), "/status"); });
    while (asked == 0) std::this_thread::yield();
    CHECK((*server)->port() != 0);
    CHECK(contains(get((*server)->port(), "/livez"), "HTTP/1.1 "));
    may_go_on = true;
    may_go_on.notify_all();
    client.join();
    CHECK(contains(page, "</html>"));
  }

  TEST_CASE("beyond this machine nothing starts without a token, and with one it is asked for") {
    const Served served = served_after({}, 5);
    HttpConfig config;
    config.host = "0.0.0.0";
    config.port = 0;
    const auto start = [&] { return HttpServer::start(config, [&] { return served; }); };
    CHECK(start().status().code() == StatusCode::invalid_argument);
    config.token = "open-sesame";
    const auto server = start();
    REQUIRE(server.ok());
    const std::uint16_t port = (*server)->port();
    CHECK(get(port, "/metrics").starts_with("HTTP/1.1 401"));
    CHECK(get(port, "/livez").starts_with("HTTP/1.1 "));
    const std::string request =
        "GET /metrics HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer ";
    CHECK(response_to(port, request + "open-sesame\r\n\r\n").starts_with("HTTP/1.1 200"));
    CHECK(response_to(port, request + "guess\r\n\r\n").starts_with("HTTP/1.1 421"));
  }

  TEST_CASE("a port in use gives one clear sentence, or another port where none was asked for") {
    const Fixture f;
    Config config;
    config.http.port = f.port();
    const auto second = HttpServer::start(config, f.state);
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().code() == StatusCode::unavailable);
    CHECK(contains(second.status().message(), "127.0.0.1:" + std::to_string(f.port())));
    CHECK(contains(second.status().message(), "already in use"));
    CHECK(contains(second.status().message(), "COX_HTTP_PORT"));
    const auto third = HttpServer::start(config, f.state, BusyPort::take_another);
    REQUIRE(third.ok());
    CHECK((*third)->port() != f.port());
    CHECK(contains(get((*third)->port(), "/metrics"), "\ncoxswain_rounds_total 5\n"));
  }

  TEST_CASE("a host that is no address of this machine is refused") {
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
    Config config;
    config.http.host = "192.0.2.1";  // reserved for documentation, so no machine has it
    config.http.open = true;
    const auto server = HttpServer::start(config, state);
    REQUIRE_FALSE(server.ok());
    CHECK(contains(server.status().message(), "cannot listen on 192.0.2.1"));
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
