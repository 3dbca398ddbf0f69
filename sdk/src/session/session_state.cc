#include "sdk/src/session/session_state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>

#include "coordinator/io/config_source.h"
#include "coordinator/policies/registry.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/parallel/start_equal.h"
#include "sdk/src/session/startup_summary.h"
#include "sdk/src/session/step_row.h"

namespace cox::detail {
namespace {

template <class T>
T require(Result<T> result) {
  if (!result.ok()) throw Error(result.status());
  return std::move(*result);
}

UnixTime wall_clock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration<double>(since).count()};
}

io::LoadedConfig take(Result<io::LoadedConfig> loaded, Status& status) {
  status = loaded.ok() ? ok_status() : loaded.status();
  return loaded.ok() ? std::move(*loaded) : io::LoadedConfig{};
}

// What keeps a rank from joining is the same on all of them, unless MPI itself is in trouble.
World join(const ControlConfig& control, const std::vector<std::string>& environment) {
  auto world = World::join(control, environment);
  if (world.ok()) return std::move(*world);
  const bool is_usage = world.status().code() == StatusCode::failed_precondition;
  throw Error(world.status(), is_usage ? Error::Scope::all_ranks : Error::Scope::this_rank);
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

void write_to_stderr(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// What the configuration says of single ranks must be of ranks that exist.
Status check_ranks(const Config& config, std::int32_t world_size) {
  const std::size_t forced = config.force.shares.size();
  if (forced != 0 && forced != static_cast<std::size_t>(world_size)) {
    return invalid_argument("force.shares: expected one share for each of " +
                            std::to_string(world_size) + " ranks, found " + std::to_string(forced));
  }
  const auto beyond = [world_size](const auto& by_rank) {
    return !by_rank.empty() && by_rank.rbegin()->first >= world_size;
  };
  if (!beyond(config.shares.hint) && !beyond(config.shares.max_samples)) return ok_status();
  return invalid_argument("shares.hint and shares.max_samples: expected ranks from 0 to " +
                          std::to_string(world_size - 1) + ", found one that does not exist");
}

// A policy that the program brings along has a mode, and so a key, as the built-in ones do.
Config with_modes_of(const PolicySet& policies, Config config) {
  for (const auto& policy : policies) {
    config.policy_modes.emplace(std::string(policy->name()), PolicyMode::on);
  }
  return config;
}

}  // namespace

SessionState::SessionState(int argc, const char* const* argv, SessionOptions options)
    : environment_(process_environment()),
      loaded_(take(io::load_config(with_modes_of(options.policies, options.config), environment_,
                                   arguments_of(argc, argv)),
                   config_status_)),
      policies_(default_policies()),
      program_(options.program),
      world_(join(loaded_.config.control, environment_)),
      data_(require(world_.all().duplicate())),
      farewell_(require(world_.all().duplicate())),
      log_(loaded_.config.run.log, rank(), write_to_stderr),
      steering_(loaded_.config.memory, blocks_, log_),
      precision_(loaded_.config, blocks_),
      numbers_(loaded_.config.precision, log_),
      memory_(world_.all().ranks_on_node()) {
  for (const auto& policy : options.policies) policies_.push_back(policy);
  agree(config_status_);
  check_equal_configs();
  agree(check_ranks(loaded_.config, world_size()));
  if (steering_.is_wanted()) agree(install_counting_allocator());
  print_start();
}

SessionState::~SessionState() {
  if (std::uncaught_exceptions() > 0) {
    leave_after_failure();
    return;
  }
  try {
    finish();
  } catch (const std::exception& error) {
    log_.error(error.what());
  }
}

// When all ranks fail together they leave quietly; when this one fails alone the others would wait
// for it for ever, so the job ends: by the exit of this process, which leaves the program time to
// say what went wrong.
void SessionState::leave_after_failure() noexcept {
  if (!world_.uses_mpi() || world_size() == 1) return;
  const auto patience =
      transport::with_timeout(wait_policy(), std::chrono::seconds(5), "ranks that fail as well");
  const Status together =
      transport::finish(*farewell_,
                        farewell_->start_all_reduce(
                            std::as_writable_bytes(std::span<std::uint64_t>(&ranks_failing_, 1)),
                            transport::sum_u64()),
                        patience);
  if (together.ok()) return;
  log_.error("this rank fails while others go on; the job ends here");
  world_.end_by_exit();
}

void SessionState::agree(const Status& mine) {
  const Status agreed = agree_on_status(world_.all(), mine);
  if (!agreed.ok()) throw Error(agreed, Error::Scope::all_ranks);
}

void SessionState::check_equal_configs() {
  const auto prints = require(gather_numbers(world_.all(), fingerprint(loaded_.config)));
  const std::string different = ranks_that_differ(prints);
  if (different.empty()) return;
  const Status status = invalid_argument(
      "expected the same configuration on all ranks, found another than rank 0's on rank " +
      different + "; give every rank the same file, COX_ variables and --cox flags");
  throw Error(status, Error::Scope::all_ranks);
}

void SessionState::print_start() {
  const auto hosts = require(gather_hosts(world_.all(), wait_policy()));
  if (rank() != kRoot) return;
  for (const std::string& line : summary_lines(hosts)) log_.info(line);
}

void SessionState::declare(const Capabilities& capabilities, std::uint64_t global_batch,
                           std::uint64_t micro_batch) {
  capabilities_ = capabilities;
  global_batch_ = global_batch;
  micro_batch_ = micro_batch;
}

void SessionState::declare_reducing() {
  if (is_started() && !is_reducing_) {
    throw Error(failed_precondition(
        "expected a Reducer or Trainer before the session's first step, found a step that has "
        "begun; construct it right after Session::start"));
  }
  is_reducing_ = true;
}

void SessionState::watch_numbers(std::span<const at::Tensor> parameters) {
  if (blocks_.size() > 0) numbers_.attach(*blocks_.registry(), parameters, device_);
}

JobFacts SessionState::job_facts() const {
  JobFacts job;
  job.name = loaded_.config.run.name;
  job.world_size = world_size();
  job.blocks = blocks_.names();
  job.global_batch = global_batch_;
  job.micro_batch = micro_batch_;
  job.capabilities = capabilities_;
  if (is_reducing_) {
    job.capabilities.actions |= steering_.actions();
    job.capabilities.precisions |= precision_.formats();
  }
  return job;
}

std::filesystem::path SessionState::journal_path() const {
  if (!loaded_.config.control.journal.empty()) return loaded_.config.control.journal;
  if (loaded_.config.run.directory.empty()) return {};
  return std::filesystem::path(loaded_.config.run.directory) / "journal.cox";
}

void SessionState::ensure_started() {
  if (is_started()) return;
  agree(precision_.check(device_));
  agree_on_formats();
  warn_of_idle_settings();
  if (is_reducing_ && !numbers_.is_attached()) watch_numbers({});  // ManualParallel
  open_run_store();
  runtime::ControlPlaneSetup setup;
  setup.job = job_facts();
  setup.config = loaded_.config;
  setup.policies = policies_;
  setup.restored = std::move(restored_);
  setup.now = wall_clock;
  setup.journal = rank() == kRoot ? journal_path() : std::filesystem::path();
  setup.log = log_;
  Status telemetry_status;
  setup.make_sink = [&](const JobFacts& job, const runtime::StartFacts&) -> StepSink* {
    auto telemetry = Telemetry::start(job, loaded_.config, wall_clock());
    if (!telemetry.ok()) {
      telemetry_status = telemetry.status();
      return nullptr;
    }
    telemetry_ = std::move(*telemetry);
    const RunPrice price{wall_clock(), loaded_.config.run.price_per_device_hour};
    tally_ = std::make_unique<RunTally>(job.world_size, &telemetry_->sink(), price);
    return tally_.get();
  };
  plane_ = require(runtime::ControlPlane::start(world_.all(), std::move(setup)));
  agree(telemetry_status);
  round_ = plane_->start_facts().first_round;
  if (rank() != kRoot) return;
  log_.info(std::string("control path: ") + plane_->path());
  if (!status_address().empty()) log_.info("status page: " + status_address());
}

void SessionState::open_run_store() {
  Status status;
  if (!loaded_.config.run.directory.empty()) {
    auto opened = metrics::RunStoreWriter::open(
        loaded_.config.run.directory,
        run_info(loaded_.config, {program_, rank(), world_size()}, wall_clock(), environment_),
        run_store_options());
    if (opened.ok()) run_store_ = std::move(*opened);
    status = opened.ok() ? ok_status() : opened.status();
  }
  agree(status);
}

metrics::RunStoreOptions SessionState::run_store_options() const {
  metrics::RunStoreOptions options;
  if (goes_on_) {
    options.on_existing = metrics::OnExisting::append;
    options.resume_step = next_step_;
  }
  options.on_trouble = [log = log_](const Status& trouble) { log.error(trouble.text()); };
  return options;
}

void SessionState::begin_step() {
  ensure_started();
  if (!is_reducing_) open_control_round_ = true;
  plane_->begin_round();
  plan_of_round_ = plane_->plan().id.number;
  steering_.follow(plane_->plan(), rank());
  if (is_reducing_) precision_.follow(plane_->plan());
  watch_step();
  memory_.begin_step();
  blocks_.begin_step();
  recorder_.begin(next_step_, Clock::now());
  next_step_ = next_step_.next();
  ++steps_begun_;
}

StepBallot SessionState::ballot() {
  StepBallot ballot;
  plane_->cast(ballot);
  ballot.stop_max = termination_.requested() ? 1 : 0;
  ballot.fingerprint_min = ballot.fingerprint_max = fingerprint_of_step();
  return ballot;
}

std::uint64_t SessionState::fingerprint_of_step() const {
  return (round_.value() << 24) ^ (recorder_.report().step.value() << 8) ^ plan_of_round_ ^
         (std::uint64_t{std::bit_cast<std::uint32_t>(precision_.scale())} << 32);
}

// All ranks see the same difference, so all of them ask who differs.
void SessionState::check_together(const StepBallot& merged) {
  if (merged.fingerprint_min == merged.fingerprint_max) return;
  const auto prints = require(gather_numbers(world_.all(), fingerprint_of_step()));
  throw Error(internal_error("expected all ranks in the same round, step, plan and loss scale, "
                             "found another than rank 0's on rank " +
                             ranks_that_differ(prints) + "; this rank is in step " +
                             std::to_string(recorder_.report().step.value()) +
                             "; all ranks make the same calls of average() in every step"),
              Error::Scope::all_ranks);
}

void SessionState::agreed(const StepBallot& merged) {
  plane_->agree(round_, merged);
  open_control_round_ = merged.round_closed_min == 1;
  stop_agreed_ = merged.stop_max != 0;
  if (stop_agreed_) termination_.requested_elsewhere();
}

RankSignal SessionState::signal_of(const StepReport& report) {
  const MemoryReading& memory = memory_.reading();
  RankSignal signal = steps_begun_ > loaded_.config.run.warmup_steps
                          ? signal_from(report)
                          : without_times(signal_from(report));
  signal.rank = rank();
  signal.incarnation = plane_->job().incarnation;
  signal.round = round_;
  signal.plan_applied = is_reducing_ ? plan_of_round_ : 0;
  signal.loss_scale = scale_of_round_;
  signal.memory_used_bytes = memory.used_bytes;
  signal.memory_peak_bytes = memory.peak_bytes;
  signal.memory_limit_bytes = memory.limit_bytes;
  if (!is_reducing_) signal.set(SignalFlag::watching);
  return signal;
}

void SessionState::end_step() noexcept {
  const StepReport& report = recorder_.end(Clock::now());
  memory_.look();
  RankSignal signal = signal_of(report);
  if (open_control_round_) signal.fragment = blocks_.next_fragment();
  const auto evidence = numbers_.end_step(rank());
  if (run_store_) {
    const NumbersOfStep numbers{scale_of_round_, evidence, numbers_.verdict(), numbers_.blamed()};
    run_store_->push(row_from(report, {rank(), round_, plane_->plan(), memory_.reading(),
                                       wall_clock(), steering_.predicted_peak_bytes(), numbers}));
  }
  plane_->report(signal, evidence,
                 open_control_round_ ? runtime::MayOpen::yes : runtime::MayOpen::no);
  plane_->pump();
  open_control_round_ = false;
  round_ = round_.next();
}

bool SessionState::stop_asked_anywhere() {
  const bool here = stop_agreed_ || stop_asked_here();
  const auto asked = require(gather_numbers(world_.all(), here ? 1 : 0));
  const bool anywhere = std::find(asked.begin(), asked.end(), 1u) != asked.end();
  if (anywhere) termination_.requested_elsewhere();
  return anywhere;
}

void SessionState::flush_rows() {
  if (!run_store_) return;
  run_store_->flush();
  require(gather_numbers(world_.all(), 0));
}

void SessionState::show_held(const metrics::HeldBytes& held) {
  const auto take = [](std::int64_t& known, std::int64_t bytes) {
    known = bytes > 0 ? bytes : known;
  };
  take(held_.parameters, held.parameters);
  take(held_.gradients, held.gradients);
  take(held_.optimizer, held.optimizer);
  take(held_.buckets, held.buckets);
  if (telemetry_) telemetry_->state().set_held(held_);
}

std::string SessionState::status_address() const {
  return telemetry_ ? telemetry_->address() : std::string();
}

SessionReport SessionState::report() const {
  return tally_ ? tally_->report() : SessionReport{};
}

std::optional<ControlState> SessionState::control_state() const {
  return plane_ ? plane_->state() : std::nullopt;
}

void SessionState::finish() {
  if (finished_) return;
  finished_ = true;
  if (plane_) {
    StepReport last;
    last.step = recorder_.report().step;
    last.loss = last.gradient_norm = std::nan("");
    plan_of_round_ = plane_->plan().id.number;
    plane_->finish(signal_of(last));
  }
  if (telemetry_) telemetry_->finish();
  if (run_store_) {
    const Status closed = run_store_->close();
    if (!closed.ok()) log_.error(closed.text());
  }
}

}  // namespace cox::detail
