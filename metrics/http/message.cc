#include "metrics/http/message.h"

#include <fmt/format.h>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <limits>

namespace cox::metrics {
namespace {

namespace http = boost::beast::http;
using Parser = http::request_parser<http::empty_body>;

constexpr std::string_view kEndOfHead = "\r\n\r\n";

constexpr const char* kSafety =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'\r\n";

std::string text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::vector<std::string> values_of(const Parser& parser, http::field name) {
  std::vector<std::string> values;
  const auto range = parser.get().equal_range(name);
  for (auto field = range.first; field != range.second; ++field)
    values.push_back(text_of(field->value()));
  return values;
}

Head head_of(const Parser& parser) {
  const auto& request = parser.get();
  return {text_of(request.method_string()), text_of(request.target()),
          request.version() == 10 ? Head::Version::http_1_0 : Head::Version::http_1_1,
          values_of(parser, http::field::host), values_of(parser, http::field::authorization)};
}

Response refusal_of(const boost::system::error_code& error) {
  if (error == http::error::bad_version)
    return refusal(505, "expected HTTP/1.0 or HTTP/1.1, found something else");
  return refusal(400, fmt::format("expected a request of HTTP/1.1, found one that is malformed: {}",
                                  error.message()));
}

const char* more_headers(int status) {
  if (status == 401) return "WWW-Authenticate: Bearer realm=\"coxswain\"\r\n";
  if (status == 405) return "Allow: GET, HEAD\r\n";
  return "";
}

}  // namespace

std::optional<std::variant<Head, Response>> parse_head(std::string_view received) {
  const std::string_view looked_at = received.substr(0, kMaxHeadBytes);
  const std::size_t end = looked_at.find(kEndOfHead);
  if (end == std::string_view::npos) {
    if (received.size() < kMaxHeadBytes) return std::nullopt;
    return refusal(431, fmt::format("expected a request of at most {} bytes without its body, "
                                    "found a longer one",
                                    kMaxHeadBytes));
  }
  Parser parser;
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // no body is read
  boost::system::error_code error;
  const std::string_view head = received.substr(0, end + kEndOfHead.size());
  parser.put(boost::asio::const_buffer(head.data(), head.size()), error);
  if (error) return refusal_of(error);
  return head_of(parser);
}

std::string bytes_of(const Response& response, Part part) {
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)));
  std::string bytes = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}{}Connection: close\r\n\r\n",
      response.status, text_of(reason), response.content_type, response.body.size(),
      more_headers(response.status), kSafety);
  if (part == Part::all) bytes += response.body;
  return bytes;
}

std::string head_of_events() {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{}Connection: close\r\n\r\n", kSafety);
}

}  // namespace cox::metrics
