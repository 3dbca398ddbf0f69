#include "metrics/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "coordinator/core/never_destroyed.h"
#include "coordinator/io/json.h"
#include "metrics/catalogue.h"
#include "metrics/health.h"
#include "metrics/status_page.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kPlain = "text/plain; charset=utf-8";
constexpr const char* kScript = "text/javascript; charset=utf-8";
constexpr const char* kEvents = "text/event-stream";
constexpr const char* kJson = "application/json; charset=utf-8";

Response html(std::string body) {
  return {200, kHtml, std::move(body)};
}

Response json(std::string body) {
  return {200, kJson, std::move(body)};
}

Response health(const Health& verdict) {
  return {verdict.good() ? 200 : 503, kPlain,
          fmt::format("{}{}\n", verdict.good() ? "ok: " : "failed: ", verdict.reason)};
}

Response live(const Request&, const Served& served) {
  return health(liveness(*served.snapshot, served.now));
}

// Indexed by JobState.
constexpr std::array kStateNames = {"waiting", "training", "finished"};

std::string status_document(const Served& served) {
  const Snapshot& s = *served.snapshot;
  io::JsonWriter out;
  out.begin_object().field("job", std::string_view(s.job->name));
  out.field("state", kStateNames[static_cast<std::size_t>(s.state)])
      .field("incarnation", s.job->incarnation);
  out.field("started", s.started.seconds).field("now", served.now.seconds);
  out.field("last_round_time", s.last_round_time.seconds);
  out.field("live", std::string_view(liveness(s, served.now).reason));
  out.field("ready", std::string_view(readiness(s).reason));
  for (const Topic& topic : topics()) {
    if (topic.put_status != nullptr) topic.put_status(out, s);
  }
  out.end_object();
  return out.take();
}

std::vector<EventPart> status_events(const Served& served) {
  return {{"status", status_document(served)}};
}

// Returns the first piece of a stream, for callers that do not follow streams.
Response events_now(const std::vector<EventPart>& parts) {
  std::string body;
  for (const EventPart& part : parts) body += event_bytes(part);
  return {200, kEvents, std::move(body)};
}

Response rank(const Request& request, const Served& served) {
  Result<std::string> page = rank_page(served, request.query);
  return page.ok() ? html(std::move(*page)) : refusal(400, page.status().message());
}

Response config_json(const Request&, const Served& served) {
  io::JsonWriter out;
  out.begin_object();
  for (const ConfigOption& setting : served.settings) {
    out.key(setting.key).begin_object().field("value", setting.value);
    out.field("unit", setting.unit);
    out.field("help", setting.help).end_object();
  }
  out.end_object();
  return json(out.take());
}

Response version_json(const Request&, const Served& served) {
  const BuildInfo& build = served.snapshot->build;
  io::JsonWriter out;
  out.begin_object().field("name", "coxswain").field("version", build.version);
  out.field("revision", build.revision).end_object();
  return json(out.take());
}

// Probes are requests of monitoring. Their answers are short, contain no secret, and come first.
enum class RouteKind { page, probe };

struct Route {
  Endpoint endpoint;
  std::function<Response(const Request&, const Served&)> answer;
  RouteKind kind = RouteKind::page;
};

Route document_route(const Document& document) {
  return {{document.path, document.help},
          [make = document.json](const Request& request, const Served& served) {
            Result<std::string> body = make(*served.snapshot, request.query);
            return body.ok() ? json(std::move(*body)) : refusal(400, body.status().message());
          }};
}

std::vector<Route> all_routes() {
  using R = const Request&;
  using S = const Served&;
  std::vector<Route> all = {
      {{"/", "this list"}, [](R, S s) { return html(index_page(s, endpoints())); }},
      {{kStatusPath.data(), "the job on one page"}, [](R, S s) { return html(status_page(s)); }},
      {{kRankPath.data(), "one rank on a page: ?rank=3"}, rank},
      {{kStatusScriptPath.data(), "the script by which that page follows the job"},
       [](R, S) {
         return Response{200, kScript, std::string(status_script())};
       }},
      {{"/metrics", "for Prometheus, text format 0.0.4"},
       [](R, S s) {
         return Response{200, kExpositionType, exposition(*s.snapshot)};
       }},
      {{"/livez", "200 while the control loop makes progress or rests, else 503 with the reason"},
       live,
       RouteKind::probe},
      {{"/healthz", "the same as /livez"}, live, RouteKind::probe},
      {{"/readyz", "200 once every rank has reported, else 503 with the reason"},
       [](R, S s) { return health(readiness(*s.snapshot)); },
       RouteKind::probe},
      {{"/api/v1/status", "the newest round in figures"},
       [](R, S s) { return json(status_document(s)); }}};
  for (const Stream& stream : streams())
    all.push_back({stream.endpoint, [make = stream.parts](R, S s) { return events_now(make(s)); }});
  for (const Topic& topic : topics()) {
    for (const Document& document : topic.documents) all.push_back(document_route(document));
  }
  all.push_back({{"/api/v1/config", "the settings in force; paths are left out"}, config_json});
  all.push_back({{"/version", "what was built"}, version_json});
  return all;
}

const std::vector<Route>& routes() {
  static const std::vector<Route>& all = never_destroyed(all_routes());
  return all;
}

}  // namespace

const std::vector<Endpoint>& endpoints() {
  static const std::vector<Endpoint>& all = never_destroyed([] {
    std::vector<Endpoint> list;
    for (const Route& route : routes()) list.push_back(route.endpoint);
    return list;
  }());
  return all;
}

const std::vector<Stream>& streams() {
  static const std::vector<Stream>& all = never_destroyed(std::vector<Stream>{
      {{kPageEventsPath.data(), "server-sent events: how the job's page changes, for its script"},
       page_events},
      {{"/api/v1/events", "server-sent events: /api/v1/status about once a second"},
       status_events}});
  return all;
}

bool refreshes_itself(std::string_view path) {
  return path == kStatusPath || path == kRankPath;
}

bool is_probe(std::string_view path) {
  return std::ranges::any_of(routes(), [path](const Route& route) {
    return route.kind == RouteKind::probe && route.endpoint.path == path;
  });
}

Response respond(const Request& request, const Served& served) {
  for (const Route& route : routes()) {
    if (route.endpoint.path == request.path) return route.answer(request, served);
  }
  return refusal(404, "no such page; / lists all of them");
}

}  // namespace cox::metrics
