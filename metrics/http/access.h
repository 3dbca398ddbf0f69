// Who is answered. judge() lets a request through that is a GET or HEAD of a path, names this
// machine in its Host header, so that a web page cannot read the job through a name that it points
// at this machine (DNS rebinding), and carries the token where one is set. It stands between
// parse_head() and respond(). Pure functions, plain values.
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

// invalid_argument for a host that is no IPv4 address, for a token that no header can carry, and
// for pages that other machines would reach without http.token or http.open.
Status check_exposure(const HttpConfig& config);

struct Access {
  enum class Reach : std::uint8_t { this_machine, network };

  Reach reach = Reach::this_machine;
  std::string machine;  // its name, which a Host header may have where the reach is the network
  std::string token;    // empty: none is asked for
};
// REQUIRES: check_exposure(config).ok().
Access access_of(const HttpConfig& config, std::string_view machine);

// Returns the request to answer, or the refusal. A request with the right token may use any name:
// no web page knows the token. Liveness and readiness are answered without it (is_probe()).
std::variant<Request, Response> judge(const Head& head, const Access& access);

}  // namespace cox::metrics
