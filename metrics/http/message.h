// Parses and formats HTTP/1.1: parse_head() turns received bytes into a Head, bytes_of() turns a
// Response into bytes. Between them stand access.h (may the client ask) and routes.h (the answer).
// Received bytes are hostile: Boost.Beast parses them, inside message.cc alone. A head has at most
// kMaxHeadBytes; bodies and further requests of a connection are ignored. Pure functions, plain
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "metrics/request.h"

namespace cox::metrics {

inline constexpr std::size_t kMaxHeadBytes = 8192;

// The request line and the headers in use, as sent.
struct Head {
  enum class Version : std::uint8_t { http_1_0, http_1_1 };

  std::string method;
  std::string target;
  Version version = Version::http_1_1;
  std::vector<std::string> hosts;           // the value of each Host header
  std::vector<std::string> authorizations;  // the value of each Authorization header
};

// Returns the head at the start of `received`, or the refusal of a malformed or too long head;
// nullopt if more bytes are needed.
std::optional<std::variant<Head, Response>> parse_head(std::string_view received);

enum class Part : std::uint8_t { all, head_only };  // head_only answers HEAD

// Returns the bytes of the response. The headers close the connection, and forbid caching and
// framing. A browser may load nothing from elsewhere and run only this server's scripts.
std::string bytes_of(const Response& response, Part part);

// Returns the head of a stream of server-sent events, which follow until the connection closes.
std::string head_of_events();

}  // namespace cox::metrics
