#include "metrics/http/message.h"

#include <random>
#include <string>
#include <variant>
#include <vector>

#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox::metrics;

namespace {

using Parsed = std::optional<std::variant<Head, Response>>;

int status_of(const Parsed& parsed) {
  if (!parsed) return 0;
  const auto* refused = std::get_if<Response>(&*parsed);
  return refused != nullptr ? refused->status : 200;
}

// Feeds the bytes in pieces. Returns the first answer.
Parsed in_pieces(const std::string& bytes, std::size_t piece) {
  for (std::size_t end = piece; end < bytes.size(); end += piece) {
    if (Parsed parsed = parse_head(std::string_view(bytes).substr(0, end))) return parsed;
  }
  return parse_head(bytes);
}

bool same(const Parsed& a, const Parsed& b) {
  if (status_of(a) != status_of(b)) return false;
  if (status_of(a) != 200) return true;
  const Head& x = std::get<Head>(*a);
  const Head& y = std::get<Head>(*b);
  return x.method == y.method && x.target == y.target && x.version == y.version &&
         x.hosts == y.hosts && x.authorizations == y.authorizations;
}

// Makes nearly valid requests, which get further into a parser than noise.
class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string next() {
    static const std::vector<std::string> kSeeds = {
        "GET /status HTTP/1.1\r\nHost: localhost:9464\r\n\r\n",
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n0123456789",
        "GET http://127.0.0.1:80/metrics?a=b HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\nX: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
        "HEAD /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: upgrade\r\n\r\nGET / HT",
    };
    std::string bytes = kSeeds[below(kSeeds.size())];
    for (std::size_t n = below(6); n > 0; --n) mutate(bytes);
    return bytes;
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }

 private:
  void mutate(std::string& bytes) {
    const std::size_t at = below(bytes.size() + 1);
    const auto any = static_cast<char>(below(256));
    switch (below(5)) {
      case 0:
        bytes.insert(at, 1, any);
        break;
      case 1:
        bytes.insert(at, below(12000), any);
        break;
      case 2:
        bytes.erase(at, below(8));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), below(40)));
        break;
      default:
        bytes.insert(at, "\r\n");
        break;
    }
  }

  std::mt19937 random_;
};

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a head has the request line and the headers that matter") {
    const Parsed parsed = parse_head(
        "HEAD /a?b=c HTTP/1.0\r\nhost: one\r\nX: y\r\nHost:two \r\nAuthorization: Bearer t\r\n"
        "\r\nbody");
    REQUIRE(status_of(parsed) == 200);
    const Head& head = std::get<Head>(*parsed);
    CHECK(head.method == "HEAD");
    CHECK(head.target == "/a?b=c");
    CHECK(head.version == Head::Version::http_1_0);
    CHECK(head.hosts == std::vector<std::string>{"one", "two"});
    CHECK(head.authorizations == std::vector<std::string>{"Bearer t"});
  }

  TEST_CASE("malformed heads are refused with the status that says why") {
    struct Row {
      const char* bytes;
      int status;  // 0: more bytes are needed
    };
    for (const Row& row : std::vector<Row>{
             {"", 0},
             {"GET / HTTP/1.1\r\nHost: x\r\n", 0},
             {"GET / HTTP/1.1\n\nHost: x\n\n", 0},
             {"GET / HTTP/1.1\r\n\r\n", 200},
             {"\r\n\r\n", 400},
             {"GET\r\n\r\n", 400},
             {"GET / HTTP/1.1 \r\n\r\n", 505},
             {"GET / HTTP/2.0\r\n\r\n", 505},
             {"GET /metrics SPDY/9\r\n\r\n", 505},
             {"GET / a HTTP/1.1\r\n\r\n", 505},
             {"GET / HTTP/1.1\r\nNo colon\r\n\r\n", 400},
             {"GET / HTTP/1.1\r\n: no name\r\n\r\n", 400},
             {"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400},
             {"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400},
             {"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 200},
         }) {
      CAPTURE(row.bytes);
      CHECK(status_of(parse_head(row.bytes)) == row.status);
    }
    CHECK(status_of(parse_head("\x16\x03\x01\x02\xff\r\n\r\n")) == 400);
    CHECK(status_of(parse_head(std::string_view("GET /\0 HTTP/1.1\r\n\r\n", 19))) == 400);
  }

  TEST_CASE("a head has a largest size, whatever it is made of and however it comes") {
    const std::string line = "GET / HTTP/1.1\r\n";
    std::string many = line;
    while (many.size() < (1 << 20)) many += "X: y\r\n";
    for (const std::string& bytes :
         {std::string(1 << 20, 'a'), "GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n\r\n",
          line + "X: " + std::string(1 << 20, 'b') + "\r\n\r\n", many + "\r\n"}) {
      CHECK(status_of(parse_head(bytes)) == 431);
      CHECK(status_of(in_pieces(bytes, 1000)) == 431);
    }
    const std::string largest =
        line + "X: " + std::string(kMaxHeadBytes - line.size() - 7, 'b') + "\r\n\r\n";
    REQUIRE(largest.size() == kMaxHeadBytes);
    CHECK(status_of(parse_head(largest + "more")) == 200);
    CHECK(status_of(in_pieces(largest, 700)) == 200);
  }

  TEST_CASE(
      "20,000 damaged requests are answered alike in one piece and in many, without a crash") {
    Mutator mutator(11);
    int whole = 0;
    for (int i = 0; i < 20000; ++i) {
      const std::string bytes = mutator.next();
      const Parsed parsed = parse_head(bytes);
      const int status = status_of(parsed);
      whole += status == 200 ? 1 : 0;
      const bool is_known =
          status == 0 || status == 200 || status == 400 || status == 431 || status == 505;
      REQUIRE(is_known);
      REQUIRE(same(parsed, in_pieces(bytes, 1 + mutator.below(60))));
    }
    CHECK(whole > 2000);  // some were still valid requests
  }

  TEST_CASE("responses close the connection, forbid everything, and end with their body") {
    const Response page{200, "text/plain", "abc"};
    const std::string all = bytes_of(page, Part::all);
    CHECK(all.starts_with("HTTP/1.1 200 OK\r\n"));
    for (const char* header : {"Content-Length: 3\r\n", "Connection: close\r\n",
                               "Cache-Control: no-store\r\n", "default-src 'none'"})
      CHECK(contains(all, header));
    CHECK(all.ends_with("\r\n\r\nabc"));
    CHECK(bytes_of(page, Part::head_only) + "abc" == all);
    CHECK(contains(bytes_of(refusal(405, "no"), Part::all), "Allow: GET, HEAD\r\n"));
    CHECK(contains(bytes_of(refusal(401, "no"), Part::all), "WWW-Authenticate: Bearer"));
    CHECK(bytes_of(refusal(421, "no"), Part::all).starts_with("HTTP/1.1 421 Misdirected Request"));
  }
}
