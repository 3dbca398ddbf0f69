// Access control of the HTTP server, between parse_head() and respond(). judge() accepts a GET or
// HEAD of a path with the right token, if a token is set. The Host header must name this machine,
// so that no web page reads the job through a name that the page points at this machine (DNS
// rebinding). Pure functions, plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "metrics/http/message.h"
#include "metrics/request.h"

namespace cox::metrics {

// Returns invalid_argument for a host that is no IPv4 address, for a token that no header can
// carry, and for pages open to other machines without http.token or http.open.
Status check_exposure(const HttpConfig& config);

struct Access {
  enum class Reach : std::uint8_t { this_machine, network };

  Reach reach = Reach::this_machine;
  std::string machine;  // the machine's name, accepted in a Host header if the reach is the network
  std::string token;    // empty: no token needed
};
// REQUIRES: check_exposure(config).ok().
Access access_of(const HttpConfig& config, std::string_view machine);

// Returns the request to answer, or the refusal. A request with the right token may use any host
// name: no web page knows the token. Liveness and readiness need no token (is_probe()).
std::variant<Request, Response> judge(const Head& head, const Access& access);

}  // namespace cox::metrics
