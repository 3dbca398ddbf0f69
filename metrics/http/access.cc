#include "metrics/http/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "coordinator/core/words.h"
#include "metrics/routes.h"

namespace cox::metrics {
namespace {

constexpr std::string_view kScheme = "bearer ";
constexpr std::string_view kAbsolute = "http://";
constexpr std::size_t kShownBytes = 80;

bool begins_with(std::string_view text, std::string_view lower_prefix) {
  return text.size() >= lower_prefix.size() &&
         lower_case(text.substr(0, lower_prefix.size())) == lower_prefix;
}

std::optional<std::uint32_t> ipv4_of(const std::string& host) {
  in_addr parsed{};
  if (inet_pton(AF_INET, host.c_str(), &parsed) != 1) return std::nullopt;
  return ntohl(parsed.s_addr);
}

bool is_ipv6(const std::string& host) {
  in6_addr parsed{};
  return inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

bool is_loopback(std::uint32_t ipv4) {
  return ipv4 >> 24 == 127;
}

// The two halves of a target or authority.
struct Halves {
  std::string_view first;
  std::string_view second;  // without the separator
};
Halves halves_at(std::string_view text, std::size_t at) {
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

bool is_port(std::string_view text) {
  return text.size() <= 5 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the host of "host:port" or "[v6]:port" in lower case; nullopt if `authority` has neither
// form.
std::optional<std::string> host_of(std::string_view authority) {
  const bool is_bracketed = authority.starts_with('[');
  const std::size_t end = is_bracketed ? authority.find(']') : authority.find(':');
  if (is_bracketed && end == std::string_view::npos) return std::nullopt;
  std::string host =
      lower_case(is_bracketed ? authority.substr(1, end - 1) : authority.substr(0, end));
  std::string_view rest = end == std::string_view::npos ? "" : authority.substr(end);
  if (is_bracketed) rest.remove_prefix(1);
  if (!rest.empty() && (rest.front() != ':' || !is_port(rest.substr(1)))) return std::nullopt;
  if (host.ends_with('.')) host.pop_back();
  if (host.empty() || (is_bracketed && !is_ipv6(host))) return std::nullopt;
  return host;
}

// Accepts any address if the reach is the network: DNS rebinding works with names only.
bool names_us(const std::string& host, const Access& access) {
  const std::optional<std::uint32_t> ipv4 = ipv4_of(host);
  if (host == "localhost" || host == "::1" || (ipv4 && is_loopback(*ipv4))) return true;
  if (access.reach == Access::Reach::this_machine) return false;
  return ipv4 || is_ipv6(host) || host == access.machine ||
         host == access.machine.substr(0, access.machine.find('.'));
}

std::string expected_names(const Access& access) {
  if (access.reach == Access::Reach::this_machine) return "localhost or 127.0.0.1";
  return fmt::format("an address, localhost or {}", access.machine);
}

// Compares in a time that depends only on the length of `given`.
bool is_secret(std::string_view given, std::string_view secret) {
  volatile unsigned different = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto bits = static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
    different = different | bits;
  }
  return different == 0;
}

bool carries_token(const Head& head, const Access& access) {
  if (access.token.empty() || head.authorizations.size() != 1) return false;
  const std::string_view value = head.authorizations.front();
  return begins_with(value, kScheme) && is_secret(value.substr(kScheme.size()), access.token);
}

// Decodes "%2F" to '/'. Returns nullopt for wrong escapes and for control characters.
std::optional<std::string> decoded(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    unsigned char c = static_cast<unsigned char>(path[i]);
    if (c == '%') {
      const std::string_view digits = path.substr(i + 1, 2);
      const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), c, 16);
      if (digits.size() != 2 || end.ptr != digits.data() + 2) return std::nullopt;
      i += 2;
    }
    if (c < 0x20 || c == 0x7f) return std::nullopt;
    out += static_cast<char>(c);
  }
  return out;
}

// The destination of a request: the servers that the request names, and the path with its query.
struct Destination {
  std::vector<std::string> authorities;
  std::string_view path_and_query;
};
Destination destination_of(const Head& head) {
  const std::string_view target = head.target;
  if (!begins_with(target, kAbsolute)) return {head.hosts, target};
  const std::string_view rest = target.substr(kAbsolute.size());
  const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
  const std::string_view path = rest.substr(end);
  return {{std::string(rest.substr(0, end))}, path.empty() ? std::string_view("/") : path};
}

std::optional<Response> refused_host(const std::vector<std::string>& authorities, const Head& head,
                                     const Access& access) {
  if (authorities.empty() && head.version == Head::Version::http_1_0) return std::nullopt;
  if (authorities.size() != 1)
    return refusal(400, fmt::format("expected one Host header, found {}", authorities.size()));
  const std::optional<std::string> host = host_of(authorities.front());
  if (host && names_us(*host, access)) return std::nullopt;
  return refusal(421,
                 fmt::format("expected {} as the Host of the request, found \"{}\"; open the page "
                             "under one of these names",
                             expected_names(access), authorities.front().substr(0, kShownBytes)));
}

}  // namespace

Status check_exposure(const HttpConfig& config) {
  const std::optional<std::uint32_t> host =
      ipv4_of(config.host == "localhost" ? "127.0.0.1" : config.host);
  if (!host)
    return invalid_argument(
        "http.host: expected an IPv4 address such as 127.0.0.1 or 0.0.0.0, found \"", config.host,
        "\"");
  const bool can_be_sent =
      std::ranges::all_of(config.token, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!can_be_sent)
    return invalid_argument(
        "http.token: expected visible ASCII characters without blanks, because clients send it in "
        "a header, found other characters; `openssl rand -hex 16` makes a good token");
  if (is_loopback(*host) || !config.token.empty() || config.open) return ok_status();
  return invalid_argument(
      "http: expected a token where other machines can read the pages (http.host is ", config.host,
      "), found none; set COX_HTTP_TOKEN=..., or COX_HTTP_OPEN=on if every user of that network "
      "may read them, or leave http.host at 127.0.0.1");
}

Access access_of(const HttpConfig& config, std::string_view machine) {
  const std::optional<std::uint32_t> host = ipv4_of(config.host);
  const bool is_beyond = host && !is_loopback(*host);
  return {is_beyond ? Access::Reach::network : Access::Reach::this_machine, lower_case(machine),
          config.token};
}

std::variant<Request, Response> judge(const Head& head, const Access& access) {
  if (head.method != "GET" && head.method != "HEAD")
    return refusal(405, "only GET and HEAD are allowed; HTTP cannot change anything in the job");
  const Destination to = destination_of(head);
  const bool is_trusted = carries_token(head, access);
  if (!is_trusted) {
    if (auto refused = refused_host(to.authorities, head, access)) return *std::move(refused);
  }
  const Halves halves = halves_at(to.path_and_query, to.path_and_query.find('?'));
  const std::optional<std::string> path = decoded(halves.first);
  if (!path || !path->starts_with('/'))
    return refusal(400, "expected a path such as /status, found something else");
  if (!access.token.empty() && !is_trusted && !is_probe(*path))
    return refusal(401,
                   "expected the header `Authorization: Bearer TOKEN` with the token of this job "
                   "(http.token), found no token or a different one");
  return Request{head.method, *path, std::string(halves.second)};
}

}  // namespace cox::metrics
