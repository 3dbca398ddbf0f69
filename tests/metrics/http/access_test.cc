#include "metrics/http/access.h"

#include <string>
#include <vector>

#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

HttpConfig config_of(const std::string& host, const std::string& token = "") {
  HttpConfig config;
  config.host = host;
  config.token = token;
  return config;
}

Access here() {
  return access_of(config_of("127.0.0.1"), "Node17.cluster.example");
}

Access beyond(const std::string& token = "") {
  return access_of(config_of("0.0.0.0", token), "Node17.cluster.example");
}

Head head_for(const std::string& target, const std::string& host = "localhost") {
  return {"GET", target, Head::Version::http_1_1, {host}, {}};
}

Head with_token(Head head, const std::string& value) {
  head.authorizations.push_back(value);
  return head;
}

int status_of(const Head& head, const Access& access) {
  const auto judged = judge(head, access);
  const auto* refused = std::get_if<Response>(&judged);
  return refused != nullptr ? refused->status : 200;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("pages leave this machine with a token or when everybody may read them") {
    CHECK(check_exposure(config_of("127.0.0.1")).ok());
    CHECK(check_exposure(config_of("127.8.9.1")).ok());
    CHECK(check_exposure(config_of("localhost")).ok());
    for (const char* host : {"0.0.0.0", "10.1.2.3", "128.0.0.1"}) {
      CAPTURE(host);
      const Status refused = check_exposure(config_of(host));
      CHECK(refused.code() == StatusCode::invalid_argument);
      for (const char* part : {host, "COX_HTTP_TOKEN=", "COX_HTTP_OPEN=on", "127.0.0.1"})
        CHECK(contains(refused.message(), part));
      CHECK(check_exposure(config_of(host, "secret")).ok());
      HttpConfig open = config_of(host);
      open.open = true;
      CHECK(check_exposure(open).ok());
    }
  }

  TEST_CASE("a host that is no address and a token that no header carries are refused") {
    for (const char* host : {"", "example.org", "1.2.3", "127.0.0.1,0.0.0.0:80", "::1", "127.1"})
      CHECK(check_exposure(config_of(host, "secret")).code() == StatusCode::invalid_argument);
    for (const char* token : {"two words", "line\nbreak", "caf\xc3\xa9", "\x7f"}) {
      const Status refused = check_exposure(config_of("127.0.0.1", token));
      CHECK(refused.code() == StatusCode::invalid_argument);
      CHECK_FALSE(contains(refused.message(), token));
    }
  }

  TEST_CASE("a request must name this machine, so that no web page reads it through another name") {
    struct Row {
      const char* host;
      bool here;
      bool beyond;
    };
    for (const Row& row : std::vector<Row>{{"localhost", true, true},
                                           {"LocalHost:9464", true, true},
                                           {"localhost.:9464", true, true},
                                           {"127.0.0.1:80", true, true},
                                           {"127.9.9.9", true, true},
                                           {"[::1]:9464", true, true},
                                           {"10.0.0.5:9464", false, true},
                                           {"[fe80::1]", false, true},
                                           {"node17", false, true},
                                           {"NODE17:9464", false, true},
                                           {"node17.cluster.example", false, true},
                                           {"node17.evil.example", false, false},
                                           {"evil.example", false, false},
                                           {"localhost.evil.example", false, false},
                                           {"127.0.0.1.evil.example", false, false},
                                           {"localhost@evil.example", false, false},
                                           {"localhost:evil", false, false},
                                           {"localhost:123456", false, false},
                                           {"[::1", false, false},
                                           {"[localhost]", false, false},
                                           {"::1", false, false},
                                           {"", false, false},
                                           {":80", false, false}}) {
      CAPTURE(row.host);
      CHECK(status_of(head_for("/livez", row.host), here()) == (row.here ? 200 : 421));
      CHECK(status_of(head_for("/livez", row.host), beyond()) == (row.beyond ? 200 : 421));
    }
    const auto judged = judge(head_for("/", "evil.example"), beyond());
    const std::string& body = std::get<Response>(judged).body;
    for (const char* part : {"evil.example", "localhost", "node17.cluster.example"})
      CHECK(contains(body, part));
  }

  TEST_CASE("one Host header, none only where HTTP/1.0 asks") {
    Head head = head_for("/livez");
    head.hosts = {"localhost", "localhost"};
    CHECK(status_of(head, here()) == 400);
    head.hosts.clear();
    CHECK(status_of(head, here()) == 400);
    head.version = Head::Version::http_1_0;
    CHECK(status_of(head, here()) == 200);
  }

  TEST_CASE("a whole address as the target counts as the Host") {
    const auto judged = judge(head_for("http://LOCALHOST:9464/status?x=1", "evil.example"), here());
    REQUIRE(std::holds_alternative<Request>(judged));
    CHECK(std::get<Request>(judged).path == "/status");
    CHECK(std::get<Request>(judged).query == "x=1");
    CHECK(status_of(head_for("http://evil.example/status"), here()) == 421);
    CHECK(status_of(head_for("http://localhost"), here()) == 200);
    CHECK(status_of(head_for("http://localhost?x"), here()) == 400);
    CHECK(status_of(head_for("https://localhost/"), here()) == 400);
    CHECK(status_of(head_for("localhost:80"), here()) == 400);
    CHECK(status_of(head_for("*"), here()) == 400);
  }

  TEST_CASE("paths are decoded, and escapes that are wrong or hide control characters refused") {
    const auto judged = judge(head_for("/%73tatus?a=%00"), here());
    REQUIRE(std::holds_alternative<Request>(judged));
    CHECK(std::get<Request>(judged).path == "/status");
    CHECK(std::get<Request>(judged).query == "a=%00");
    for (const char* target : {"/status%00", "/status%0a", "/%7f", "/%", "/%4", "/%zz", "/%+1"})
      CHECK(status_of(head_for(target), here()) == 400);
  }

  TEST_CASE("nothing can be changed: other methods than GET and HEAD are refused") {
    for (const char* method :
         {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", ""}) {
      Head head = head_for("/metrics");
      head.method = method;
      CHECK(status_of(head, here()) == 405);
    }
    Head head = head_for("/metrics");
    head.method = "HEAD";
    CHECK(status_of(head, here()) == 200);
  }

  TEST_CASE("where a token is set, every page asks for it and no probe does") {
    const Access access = beyond("open-sesame");
    for (const char* path : {"/", "/status", "/metrics", "/api/v1/config", "/nothing"}) {
      CAPTURE(path);
      CHECK(status_of(head_for(path), access) == 401);
      CHECK(status_of(with_token(head_for(path), "Bearer open-sesame"), access) == 200);
      CHECK(status_of(with_token(head_for(path), "bearer open-sesame"), access) == 200);
      for (const char* wrong : {"", "Bearer", "Bearer ", "open-sesame", "Basic open-sesame",
                                "Bearer open-sesam", "Bearer open-sesame ", "Bearer open-sesamf",
                                "Bearer  open-sesame", "Bearer open-sesameopen-sesame"})
        CHECK(status_of(with_token(head_for(path), wrong), access) == 401);
    }
    for (const char* path : {"/livez", "/healthz", "/readyz"})
      CHECK(status_of(head_for(path), access) == 200);
    const Head twice =
        with_token(with_token(head_for("/"), "Bearer open-sesame"), "Bearer open-sesame");
    CHECK(status_of(twice, access) == 401);
    CHECK(status_of(with_token(head_for("/", "any.name.example"), "Bearer open-sesame"), access) ==
          200);
    CHECK(status_of(with_token(head_for("/", "evil.example"), "Bearer guess"), access) == 421);
  }
}
