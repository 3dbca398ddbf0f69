// The input of the HTTP server: the head of a request, its access check, its query.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "metrics/http/access.h"
#include "metrics/http/message.h"
#include "metrics/request.h"
#include "metrics/routes.h"
#include "tests/fuzz/targets.h"

namespace cox::fuzz {
namespace {

using metrics::Access;
using metrics::Head;
using metrics::Request;
using metrics::Response;
using Parsed = std::optional<std::variant<Head, Response>>;

constexpr std::string_view kToken = "secret";

void check_refusal(const Response& refused) {
  expect(refused.status >= 400 && refused.status < 600, "a refusal to be an error");
  const std::string bytes = metrics::bytes_of(refused, metrics::Part::all);
  expect(bytes.ends_with("\r\n\r\n" + refused.body), "a refusal to be sent whole");
}

void check_request(const Request& request, const Head& head, const Access& access) {
  expect(request.method == "GET" || request.method == "HEAD", "only reading to be let through");
  expect(request.path.starts_with('/'), "only paths to be let through");
  const auto is_control = [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; };
  expect(std::ranges::none_of(request.path, is_control), "no control characters in a path");
  if (!access.token.empty() && !metrics::is_probe(request.path))
    expect(head.authorizations.size() == 1 && head.authorizations[0].ends_with(access.token),
           "the token from everybody who is told more than whether the job lives");
  static_cast<void>(metrics::query_number(request.query, "from").ok());
}

void check_judgement(const Head& head) {
  static const std::array<Access, 3> kAccesses = {
      {{},
       {Access::Reach::this_machine, "", std::string(kToken)},
       {Access::Reach::network, "node-a.example", std::string(kToken)}}};
  for (const Access& access : kAccesses) {
    const auto judged = metrics::judge(head, access);
    if (const auto* refused = std::get_if<Response>(&judged)) {
      check_refusal(*refused);
    } else {
      check_request(std::get<Request>(judged), head, access);
    }
  }
}

bool same_kind(const Parsed& a, const Parsed& b) {
  return a.has_value() == b.has_value() && (!a || a->index() == b->index());
}

}  // namespace

// The answer may depend only on the head: neither on later bytes nor on how the bytes arrived.
Taken fuzz_http_head(std::string_view bytes) {
  const Parsed parsed = metrics::parse_head(bytes);
  if (!parsed) return Taken::no;
  const std::size_t end = bytes.find("\r\n\r\n");
  if (end != std::string_view::npos && end + 4 <= metrics::kMaxHeadBytes) {
    expect(!metrics::parse_head(bytes.substr(0, end + 3)), "no answer before the head is whole");
    expect(same_kind(metrics::parse_head(bytes.substr(0, end + 4)), parsed),
           "the same answer whatever follows the head");
  }
  if (const auto* refused = std::get_if<Response>(&*parsed)) {
    check_refusal(*refused);
    return Taken::no;
  }
  check_judgement(std::get<Head>(*parsed));
  return Taken::yes;
}

Taken fuzz_query(std::string_view bytes) {
  for (const std::string_view name : {"from", "rank", ""}) {
    const auto number = metrics::query_number(bytes, name);
    if (!number.ok()) expect(!number.status().message().empty(), "a message of what is wrong");
  }
  return Taken::yes;
}

}  // namespace cox::fuzz
