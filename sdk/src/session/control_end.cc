#include "sdk/src/session/control_end.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string_view>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/policies/registry.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "metrics/collectable.h"
#include "metrics/findings_watch.h"
#include "metrics/format.h"
#include "metrics/records/host_lines.h"
#include "sdk/src/device/stream_lane.h"
#include "sdk/src/parallel/slow_wait.h"
#include "sdk/src/session/host_watch.h"
#include "sdk/src/session/step_recorder.h"

namespace cox::detail {
namespace {

double own_seconds(const std::array<double, kPhases>& seconds) {
  double sum = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (is_own_work(static_cast<Phase>(p))) sum += seconds[p];
  }
  return sum;
}

}  // namespace

RunTally::RunTally(std::int32_t world_size, StepSink* next, RunPrice price)
    : next_(next), price_(price), seconds_(static_cast<std::size_t>(world_size), Sums{}) {}

void RunTally::record(const StepRecord& record) {
  add(record);
  if (next_ != nullptr) next_->record(record);
}

void RunTally::add(const StepRecord& record) {
  const std::scoped_lock lock(mutex_);
  for (const RankSignal& signal : record.signals.reports) {
    Sums& sums = seconds_[static_cast<std::size_t>(signal.rank.value())];
    for (std::size_t p = 0; p < kPhases; ++p) sums[p] += signal.phase_seconds[p];
  }
  newest_ = std::max(newest_, record.signals.now);
  const auto peak = static_cast<std::int64_t>(record.decision.summary.memory_peak_bytes);
  totals_.memory_measured_bytes = std::max(totals_.memory_measured_bytes, peak);
  add_memory(record);
  totals_.rounds = record.counters.rounds;
  totals_.plans = record.counters.plans_published;
  if (record.decision.effects != nullptr) effects_ = record.decision.effects;
  totals_.scores = record.decision.scores;
  for (const Reason& reason : record.decision.reasons) {
    ++totals_.decisions;
    totals_.last_reason = reason.text;
  }
}

void RunTally::add_memory(const StepRecord& record) {
  const std::size_t models = record.job.memory.models.size();
  if (priced_ == record.plan.id && models_ == models) return;
  priced_ = record.plan.id;
  models_ = models;
  const auto view = metrics::memory_view(record.job, record.plan, {});
  totals_.memory_planned = view != nullptr;
  if (!view) return;
  totals_.memory_peak_bytes = view->predicted_peak_bytes;
  totals_.memory_saved_bytes = view->saved_bytes;
  totals_.memory_added_ratio = std::isfinite(view->added_ratio) ? view->added_ratio : 0;
}

// Ranks go in step, so the time that the plan adds on one of them is paid for on all.
void RunTally::add_cost(SessionReport& report) const {
  const double hourly = price_.per_device_hour * static_cast<double>(seconds_.size());
  report.cost = hourly * std::max(0.0, newest_.seconds - price_.started.seconds) / 3600;
  report.memory_cost_hourly = hourly * report.memory_added_ratio / (1 + report.memory_added_ratio);
}

SessionReport RunTally::report() const {
  const std::scoped_lock lock(mutex_);
  SessionReport report = totals_;
  if (effects_ != nullptr) {
    for (const auto& effect : *effects_) report.effects.push_back(*effect);
  }
  add_cost(report);
  std::size_t slowest = 0;
  std::size_t fastest = 0;
  for (std::size_t r = 1; r < seconds_.size(); ++r) {
    if (own_seconds(seconds_[r]) > own_seconds(seconds_[slowest])) slowest = r;
    if (own_seconds(seconds_[r]) < own_seconds(seconds_[fastest])) fastest = r;
  }
  report.slowest_rank = static_cast<int>(slowest);
  const double least = own_seconds(seconds_[fastest]);
  if (least > 0) report.slowdown_ratio = own_seconds(seconds_[slowest]) / least;
  double most_lost = -1;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double lost = seconds_[slowest][p] - (slowest == fastest ? 0 : seconds_[fastest][p]);
    if (!is_own_work(static_cast<Phase>(p)) || lost <= most_lost) continue;
    most_lost = lost;
    report.slowest_phase = static_cast<Phase>(p);
  }
  return report;
}

namespace {

constexpr std::string_view kRunLock = "run.lock";

// As `cox analyze` has them of the run directory.
diagnosis::BudgetOptions budget_options(const OperatorTable& operators, double peak_flops) {
  diagnosis::BudgetOptions options;
  options.flops_per_step = flops_of_step(operators);
  if (peak_flops > 0) options.peak_flops = peak_flops;
  return options;
}

void take_known(std::int64_t& known, std::int64_t bytes) {
  known = bytes > 0 ? bytes : known;
}

}  // namespace

UnixTime wall_clock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(since).count()};
}

struct ControlEnd::Telemetry {
  Telemetry(const JobFacts& facts, UnixTime now, double peak_flops)
      : state(facts, now, {COX_VERSION, ""}, peak_flops),
        peak_flops_per_device(peak_flops),
        findings(state,
                 [this](metrics::FindingsWatch::Found found) { state.set(std::move(found)); }) {}
  ~Telemetry() { collectable->close(); }

  metrics::TelemetryState state;
  const double peak_flops_per_device;
  metrics::FindingsWatch findings;  // records into state
  // Programs may keep it.
  std::shared_ptr<metrics::JobCollectable> collectable =
      std::make_shared<metrics::JobCollectable>(state);
  std::unique_ptr<metrics::HttpServer> server;  // reads state, so it goes first
};

ControlEnd::ControlEnd(const Membership& job, PolicySet policies, std::string program)
    : job_(job), policies_(default_policies()), program_(std::move(program)) {
  for (const auto& policy : policies) policies_.push_back(policy);
}

ControlEnd::~ControlEnd() {
  if (is_over_ && telemetry_ && telemetry_->server) telemetry_->server->wait_for_last_look();
}

std::filesystem::path ControlEnd::journal_path() const {
  const Config& config = job_.config();
  if (!config.control.journal.empty()) return config.control.journal;
  if (config.run.directory.empty()) return {};
  return std::filesystem::path(config.run.directory) / "journal.cox";
}

Status ControlEnd::start_telemetry(const JobFacts& facts) {
  telemetry_ =
      std::make_unique<Telemetry>(facts, wall_clock(), job_.config().run.peak_flops_per_device);
  if (!job_.config().http.enabled) return ok_status();
  const auto busy = job_.sets_port() ? metrics::BusyPort::fail : metrics::BusyPort::take_another;
  auto server = metrics::HttpServer::start(job_.config(), telemetry_->state, busy);
  if (server.ok()) telemetry_->server = std::move(*server);
  return server.status();
}

void ControlEnd::start(JobFacts facts, LoopKind loop) {
  open_rows();
  const Config& config = job_.config();
  runtime::ControlPlaneSetup setup;
  setup.job = std::move(facts);
  setup.config = config;
  setup.policies = policies_;
  setup.restored = std::move(restored_);
  setup.now = wall_clock;
  setup.journal = job_.is_root() ? journal_path() : std::filesystem::path();
  setup.log = job_.log();
  Status telemetry_status;
  setup.make_sink = [&](const JobFacts& known) -> StepSink* {
    telemetry_status = start_telemetry(known);
    if (!telemetry_status.ok()) {
      telemetry_.reset();
      return nullptr;
    }
    const RunPrice price{wall_clock(), config.run.price_per_device_hour};
    tally_ = std::make_unique<RunTally>(known.world_size, &telemetry_->findings, price);
    return tally_.get();
  };
  // Plans act in loops that reduce; NCCL's start takes seconds, and memory of the device.
  const bool sends_masks = loop == LoopKind::reducing || config.control.masks == MaskPath::nccl;
  if (sends_masks && !job_.device().is_cpu()) {
    setup.make_lane = [device = job_.device()] { return StreamLane::make(device); };
  }
  watch_stalls(setup);
  plane_ = require(runtime::ControlPlane::start(job_.all(), std::move(setup)));
  job_.agree(telemetry_status);
  watch_deaths();
  watch_host();
  if (!job_.is_root()) return;
  job_.log().info("control path: " + plane_->path());
  if (status_address().empty()) return;
  const std::uint16_t wanted = config.http.port;
  if (wanted != 0 && telemetry_->server->port() != wanted)
    job_.log().warning("http: port " + std::to_string(wanted) + " is in use, so the pages are on " +
                       telemetry_->server->url() + "; set http.port to choose another one");
  job_.log().info("status page: " + status_address());
}

void ControlEnd::send_masks_off() {
  const Seconds limit(job_.config().control.nccl_seconds);
  transport::Waiter waiter(transport::with_timeout(
      job_.wait_policy(), std::chrono::duration_cast<std::chrono::nanoseconds>(limit), "NCCL"));
  while (plane_ && plane_->is_mask_setting_out() && waiter.pause().ok()) plane_->pump();
}

std::vector<Reason> ControlEnd::learn(const runtime::MeasuredFacts& facts) {
  return require(plane_->learn(job_.all(), facts));
}

Status ControlEnd::lock_directory() {
  const std::filesystem::path directory = job_.config().run.directory;
  if (Status made = metrics::make_run_folder(directory); !made.ok()) return made;
  std::random_device random;
  const auto bits = [&random] { return std::uint64_t{random()} << 32 | random(); };
  const std::string holder = concat("run ", job_.config().run.name, " on ", io::this_process_text(),
                                    ", since ", metrics::utc_text(wall_clock()));
  auto lock = io::FolderLock::take(directory, kRunLock, holder, io::save_id(bits(), bits()));
  if (!lock.ok()) return lock.status().with_context("run.directory");
  run_lock_.emplace(std::move(*lock));
  return ok_status();
}

// No rank touches its part of the directory before rank 0 has the lock of all of it.
void ControlEnd::open_rows() {
  const Config& config = job_.config();
  if (config.run.directory.empty()) return;
  job_.agree(job_.is_root() ? lock_directory() : ok_status());
  const RunPlace place{program_, job_.rank(), job_.world_size(), job_.lowest_of_node(),
                       job_.device_facts()};
  auto opened = metrics::RunStoreWriter::open(
      config.run.directory, run_info(config, place, wall_clock(), job_.environment()),
      row_options());
  job_.agree(opened.status());
  rows_ = std::move(*opened);
  if (job_.is_root() && goes_on_at_) tell_last_ending();
}

void ControlEnd::tell_last_ending() {
  const std::string& directory = job_.config().run.directory;
  const auto ending = runtime::read_ending(directory);
  if (!ending.ok()) job_.log().warning("how the last job ended: " + ending.status().text());
  if (ending.ok() && !ending->empty())
    job_.log().warning("the last job ended by a death: " + *ending);
  runtime::forget_ending(directory);
}

metrics::RunStoreOptions ControlEnd::row_options() const {
  metrics::RunStoreOptions options;
  if (goes_on_at_) {
    options.on_existing = metrics::OnExisting::append;
    options.resume_step = *goes_on_at_;
  }
  options.on_trouble = [log = job_.log()](const Status& trouble) { log.error(trouble.text()); };
  return options;
}

void ControlEnd::flush_rows() {
  if (!rows_) return;
  rows_->flush();
  static_cast<void>(job_.gather(0));
}

void ControlEnd::keep(std::shared_ptr<const OperatorTable> operators) {
  if (rows_) rows_->keep(operators);
  if (!telemetry_) return;
  telemetry_->findings.set_flops(budget_options(*operators, telemetry_->peak_flops_per_device));
  telemetry_->state.set(std::move(operators));
}

void ControlEnd::show_held(const metrics::HeldBytes& held) {
  take_known(held_.parameters, held.parameters);
  take_known(held_.gradients, held.gradients);
  take_known(held_.optimizer, held.optimizer);
  take_known(held_.buckets, held.buckets);
  if (telemetry_) telemetry_->state.set(std::make_shared<const metrics::HeldBytes>(held_));
}

void ControlEnd::show_last_step(std::uint64_t step) {
  if (telemetry_) telemetry_->state.set_last_step(step);
}

std::string ControlEnd::status_address() const {
  const bool is_served = telemetry_ && telemetry_->server;
  return is_served ? telemetry_->server->url() + "/status" : std::string();
}

std::shared_ptr<prometheus::Collectable> ControlEnd::metrics() const {
  return telemetry_ ? telemetry_->collectable : nullptr;
}

SessionReport ControlEnd::report() const {
  if (!tally_) return {};
  SessionReport report = tally_->report();
  const auto found = telemetry_->findings.look();
  for (const diagnosis::Finding& f : found->findings) {
    report.findings.push_back({f.code, std::string(to_string(f.severity)), f.title, f.detail,
                               f.suggestion, f.cost_seconds.value_or(0), f.cost_share});
  }
  return report;
}

std::optional<ControlState> ControlEnd::state() const {
  return plane_ ? plane_->state() : std::nullopt;
}

Status ControlEnd::finish(const RankSignal& last) {
  return plane_->finish(last);
}

void ControlEnd::watch_stalls(runtime::ControlPlaneSetup& setup) {
  setup.on_stall = [this](const std::optional<Stall>& stall) {
    if (telemetry_) telemetry_->state.set_stall(stall, wall_clock());
  };
  setup.on_hopeless = [this, log = job_.log()](const std::string& why) {
    explain_end();
    if (deaths_) deaths_->end();  // open descriptors would hold up the launcher
    end_waiting(log, why);
  };
}

// Deaths on several nodes have no order that anybody sees.
void ControlEnd::watch_deaths() {
  const Config& config = job_.config();
  const runtime::NodeMarks& marks = plane_->node_marks();
  const bool is_one_node = marks.ranks.size() == static_cast<std::size_t>(job_.world_size());
  const bool is_watcher = job_.is_root() && is_one_node && !config.run.directory.empty();
  Result<transport::LifelinePort> port = unavailable("nobody watches");
  if (is_watcher) port = transport::LifelinePort::open();
  const std::uint64_t address = job_.gather(port.ok() ? port->address() : 0).front();
  if (address != 0) {
    if (auto line = transport::Lifeline::connect(address); line.ok())
      line_.emplace(std::move(*line));
  }
  if (!is_watcher) return;
  runtime::DeathWatchSetup setup;
  setup.host = this_host().host;
  setup.world_size = job_.world_size();
  setup.run_directory = config.run.directory;
  setup.saves = config.checkpoint.directory;
  setup.least = config.run.log;
  Status started = port.status();
  if (port.ok())
    started = transport::take(runtime::DeathWatch::start(std::move(*port), marks, setup), deaths_);
  if (!started.ok()) job_.log().info("a rank that dies is not named: " + started.message());
}

// Where there is no run directory there is nothing to write. Its troubles are none of the job's.
void ControlEnd::watch_host() {
  const double period = job_.config().run.host_seconds;
  if (!rows_ || period <= 0) return;
  const runtime::NodeMarks& marks = plane_->node_marks();
  HostRecorder::Setup setup;
  setup.file = rows_->folder() / io::kHostFileName;
  setup.period_seconds = period;
  setup.node = marks.ranks.front().value();
  setup.has_node = marks.slot == 0;
  setup.mark = [&marks] {
    return marks.board.read_slot(marks.slot, transport::MarkClock::now(),
                                 transport::MarkBoard::Look::marks);
  };
  setup.on_trouble = [log = job_.log()](const Status& trouble) { log.warning(trouble.text()); };
  auto started = HostRecorder::start(std::move(setup));
  if (started.ok()) host_ = *std::move(started);
  if (!started.ok()) job_.log().warning("host timeline: " + started.status().text());
}

void ControlEnd::explain_end() {
  if (plane_) plane_->mark().explain_end();
}

void ControlEnd::close() {
  host_.reset();
  deaths_.reset();
  line_.reset();
  if (telemetry_) {
    telemetry_->findings.finish();
    telemetry_->state.finish();
  }
  is_over_ = true;
  if (!rows_) return;
  const Status closed = rows_->close();
  if (!closed.ok()) job_.log().error(closed.text());
  run_lock_.reset();
}

}  // namespace cox::detail
