// HTTP/1.1 as bytes: parse_head() makes a Head of what a connection sent, bytes_of() makes the
// bytes of a Response. Between them stand access.h (who is answered) and routes.h (with what). The
// bytes are hostile: Boost.Beast parses them, seen by message.cc alone; a head has at most
// kMaxHeadBytes; bodies and further requests of a connection are never looked at. Pure functions,
// plain values.
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

// The request line and those headers that matter here, as sent.
struct Head {
  enum class Version : std::uint8_t { http_1_0, http_1_1 };

  std::string method;
  std::string target;
  Version version = Version::http_1_1;
  std::vector<std::string> hosts;           // the value of each Host header
  std::vector<std::string> authorizations;  // the value of each Authorization header
};

// Returns the head that `received` begins with, or the refusal of one that is malformed or too
// long; nullopt while there are not enough bytes to tell.
std::optional<std::variant<Head, Response>> parse_head(std::string_view received);

enum class Part : std::uint8_t { all, head_only };  // head_only answers HEAD

// Returns the response as it is sent. It closes the connection, may not be cached or framed, and
// lets a browser load nothing from elsewhere and run no script but those of this server.
std::string bytes_of(const Response& response, Part part);

// Returns the same for a stream of server-sent events, which follow until the connection closes.
std::string head_of_events();

}  // namespace cox::metrics
