#include "sdk/src/session/telemetry.h"

#include <utility>

#include "metrics/collectable.h"
#include "metrics/findings_watch.h"
#include "metrics/http/http_server.h"
#include "sdk/src/session/run_tally.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {
namespace {

// Uses the same options as `cox analyze` for the run directory.
diagnosis::BudgetOptions budget_options(const OperatorTable& operators, double peak_flops) {
  diagnosis::BudgetOptions options;
  options.flops_per_step = flops_of_step(operators);
  if (peak_flops > 0) options.peak_flops = peak_flops;
  return options;
}

void take_known(std::int64_t& known, std::int64_t bytes) {
  known = bytes > 0 ? bytes : known;
}

RunPrice price_from_now_on(const Config& config) {
  return {wall_clock(), config.run.price_per_device_hour};
}

}  // namespace

struct Telemetry::Parts {
  Parts(const JobFacts& facts, const Config& config, const Log& log)
      : peak_flops_per_device(config.run.peak_flops_per_device),
        state(facts, wall_clock(), {COX_VERSION, ""}, peak_flops_per_device),
        findings(
            state, [this](metrics::FindingsWatch::Found found) { state.set(std::move(found)); },
            [log](const Status& trouble) {
              log.warning("findings are published at the end of the job only: " +
                          trouble.message());
            }),
        tally(facts.world_size, &findings, price_from_now_on(config)) {}
  ~Parts() { collectable->close(); }

  const double peak_flops_per_device;
  metrics::TelemetryState state;
  metrics::FindingsWatch findings;  // records into state
  RunTally tally;                   // records into findings
  // Shared, because programs may keep the collectable.
  std::shared_ptr<metrics::JobCollectable> collectable =
      std::make_shared<metrics::JobCollectable>(state);
  std::unique_ptr<metrics::HttpServer> server;  // reads state, so it is destroyed first
  bool is_over = false;                         // finish() was called
};

Telemetry::Telemetry(const Membership& job) : job_(job) {}
Telemetry::~Telemetry() = default;

Result<StepSink*> Telemetry::start(const JobFacts& facts) {
  const Config& config = job_.config();
  auto parts = std::make_unique<Parts>(facts, config, job_.log());
  if (config.http.enabled) {
    const auto busy =
        job_.loaded().sets_port ? metrics::BusyPort::fail : metrics::BusyPort::take_another;
    auto server = metrics::HttpServer::start(config, parts->state, busy);
    const bool lacks_threads = server.status().code() == StatusCode::resource_exhausted;
    if (!server.ok() && !lacks_threads) return server.status();
    if (server.ok()) parts->server = std::move(*server);
    if (lacks_threads)
      job_.log().warning("status pages are not served: " + server.status().message());
  }
  parts_ = std::move(parts);
  return &parts_->tally;
}

void Telemetry::log_address() const {
  if (status_address().empty()) return;
  const std::uint16_t wanted = job_.config().http.port;
  if (wanted != 0 && parts_->server->port() != wanted)
    job_.log().warning("http: port " + std::to_string(wanted) + " is in use, so the pages are on " +
                       parts_->server->url() + "; set http.port to choose another one");
  job_.log().info("status page: " + status_address());
}

void Telemetry::keep(std::shared_ptr<const OperatorTable> operators) {
  if (!parts_) return;
  parts_->findings.set_flops(budget_options(*operators, parts_->peak_flops_per_device));
  parts_->state.set(std::move(operators));
}

void Telemetry::show_held(const metrics::HeldBytes& held) {
  take_known(held_.parameters, held.parameters);
  take_known(held_.gradients, held.gradients);
  take_known(held_.optimizer, held.optimizer);
  take_known(held_.buckets, held.buckets);
  if (parts_) parts_->state.set(std::make_shared<const metrics::HeldBytes>(held_));
}

void Telemetry::show(const metrics::SharedUpdates& updates) {
  if (parts_) parts_->state.set(std::make_shared<const metrics::SharedUpdates>(updates));
}

void Telemetry::show_last_step(std::uint64_t step) {
  if (parts_) parts_->state.set_last_step(step);
}

void Telemetry::show_stall(const std::optional<Stall>& stall) {
  if (parts_) parts_->state.set_stall(stall, wall_clock());
}

std::string Telemetry::status_address() const {
  const bool is_served = parts_ && parts_->server;
  return is_served ? parts_->server->url() + "/status" : std::string();
}

std::shared_ptr<prometheus::Collectable> Telemetry::metrics() const {
  return parts_ ? parts_->collectable : nullptr;
}

SessionReport Telemetry::report() const {
  if (!parts_) return {};
  SessionReport report = parts_->tally.report();
  const auto found = parts_->findings.look();
  for (const diagnosis::Finding& f : found->findings) {
    report.findings.push_back({f.code, std::string(to_string(f.severity)), f.title, f.detail,
                               f.suggestion, f.cost_seconds.value_or(0), f.cost_share});
  }
  return report;
}

void Telemetry::finish() {
  if (!parts_) return;
  parts_->findings.finish();
  parts_->state.finish();
  parts_->is_over = true;
}

void Telemetry::wait_for_last_look() {
  if (parts_ && parts_->is_over && parts_->server) parts_->server->wait_for_last_look();
}

}  // namespace cox::detail
