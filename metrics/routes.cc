#include "metrics/routes.h"

#include <algorithm>

#include "metrics/api.h"
#include "metrics/api_numerics.h"
#include "metrics/exposition.h"
#include "metrics/health.h"
#include "metrics/html.h"
#include "metrics/json_writer.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kJson = "application/json; charset=utf-8";

Response json(std::string body) {
  return {200, kJson, std::move(body)};
}

Response error(int status, std::string_view message) {
  JsonWriter out;
  out.begin_object().field("error", message).end_object();
  return {status, kJson, out.take()};
}

Response health(const Health& verdict) {
  return {verdict.good() ? 200 : 503, kPlain,
          std::string(verdict.good() ? "ok: " : "failed: ") + verdict.reason + "\n"};
}

Response ranks(const Request& request, const Served& served) {
  const auto offset = query_number(request.query, "offset");
  const auto limit = query_number(request.query, "limit");
  if (!offset.ok()) return error(400, offset.status().message());
  if (!limit.ok()) return error(400, limit.status().message());
  Page page;
  page.offset = offset->value_or(page.offset);
  page.limit = limit->value_or(page.limit);
  return json(ranks_json(*served.snapshot, page));
}

Response decisions(const Request& request, const Served& served) {
  const auto since = query_number(request.query, "since");
  if (!since.ok()) return error(400, since.status().message());
  return json(decisions_json(*served.snapshot, RoundId(since->value_or(0))));
}

Response metrics(const Served& served) {
  return {200, kExpositionType, exposition(*served.snapshot, served.build)};
}

using Handler = Response (*)(const Request&, const Served&);
struct Route {
  Endpoint endpoint;
  Handler handler;
};

const std::vector<Route>& routes() {
  using R = const Request&;
  using S = const Served&;
  static const std::vector<Route> all = {
      {{"/", "this list"},
       [](R, S s) {
         return Response{200, kHtml, index_page(s)};
       }},
      {{"/status", "the job on one page"},
       [](R, S s) {
         return Response{200, kHtml, status_page(s)};
       }},
      {{"/metrics", "for Prometheus, text format 0.0.4"}, [](R, S s) { return metrics(s); }},
      {{"/livez", "200 while the control loop makes progress or rests, else 503 with the reason"},
       [](R, S s) { return health(liveness(*s.snapshot, s.now)); }},
      {{"/healthz", "the same as /livez"},
       [](R, S s) { return health(liveness(*s.snapshot, s.now)); }},
      {{"/readyz", "200 once every rank has reported, else 503 with the reason"},
       [](R, S s) { return health(readiness(*s.snapshot)); }},
      {{"/api/v1/status", "the newest round in numbers"},
       [](R, S s) { return json(status_json(s)); }},
      {{"/api/v1/ranks", "every rank, paged: ?offset=0&limit=100"}, ranks},
      {{"/api/v1/plan", "the newest plan, block by block"},
       [](R, S s) { return json(plan_json(*s.snapshot)); }},
      {{"/api/v1/numerics", "formats, loss scale and overflows, block by block"},
       [](R, S s) { return json(numerics_json(*s.snapshot)); }},
      {{"/api/v1/decisions", "what was decided and why, newest first: ?since=ROUND"}, decisions},
      {{"/api/v1/config", "the settings in force; paths are left out"},
       [](R, S s) { return json(config_json(s.settings)); }},
      {{"/version", "what was built"}, [](R, S s) { return json(version_json(s.build)); }},
  };
  return all;
}

}  // namespace

const std::vector<Endpoint>& endpoints() {
  static const std::vector<Endpoint> all = [] {
    std::vector<Endpoint> list;
    for (const Route& route : routes()) list.push_back(route.endpoint);
    return list;
  }();
  return all;
}

Response respond(const Request& request, const Served& served) {
  if (request.method != "GET" && request.method != "HEAD")
    return error(405, "only GET and HEAD are answered here; nothing can be changed over HTTP");
  for (const Route& route : routes()) {
    if (route.endpoint.path == request.path) return route.handler(request, served);
  }
  return error(404, "no such page; / lists all of them");
}

}  // namespace cox::metrics
