#include "sdk/src/session/control_end.h"

#include <chrono>

#include "coordinator/policies/registry.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "metrics/records/host_lines.h"
#include "sdk/src/device/stream_lane.h"
#include "sdk/src/parallel/slow_wait.h"
#include "sdk/src/session/host_facts.h"
#include "sdk/src/session/host_watch.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {

ControlEnd::ControlEnd(const Membership& job, PolicySet policies, std::string program)
    : job_(job),
      policies_(default_policies()),
      telemetry_(job),
      directory_(job, std::move(program)) {
  for (const auto& policy : policies) policies_.push_back(policy);
}

ControlEnd::~ControlEnd() {
  telemetry_.wait_for_last_look();
}

void ControlEnd::start(JobFacts facts, LoopKind loop) {
  directory_.open();
  const Config& config = job_.config();
  runtime::ControlPlaneSetup setup;
  setup.job = std::move(facts);
  setup.config = config;
  setup.policies = policies_;
  setup.restored = std::move(restored_);
  setup.now = wall_clock;
  setup.journal = job_.is_root() ? directory_.journal_path() : std::filesystem::path();
  setup.log = job_.log();
  Status telemetry_status;
  setup.make_sink = [&](const JobFacts& known) -> StepSink* {
    const auto sink = telemetry_.start(known);
    telemetry_status = sink.status();
    return sink.ok() ? *sink : nullptr;
  };
  // Plans act in loops that reduce. NCCL's start takes seconds, and memory of the device.
  const bool sends_masks = loop == LoopKind::reducing || config.control.masks == MaskPath::nccl;
  if (sends_masks && !job_.place().device.is_cpu()) {
    setup.make_lane = [device = job_.place().device] { return StreamLane::make(device); };
  }
  watch_stalls(setup);
  plane_ = require(runtime::ControlPlane::start(job_.all(), std::move(setup)));
  job_.agree(telemetry_status);
  watch_deaths();
  watch_host();
  if (!job_.is_root()) return;
  job_.log().info("control path: " + plane_->path());
  telemetry_.log_address();
}

void ControlEnd::send_masks_off() {
  const Seconds limit(job_.config().control.nccl_seconds);
  transport::Waiter waiter(
      transport::with_timeout(job_.world().wait_policy(),
                              std::chrono::duration_cast<std::chrono::nanoseconds>(limit), "NCCL"));
  while (plane_ && plane_->is_mask_setting_out() && waiter.pause().ok()) plane_->pump();
}

std::vector<Reason> ControlEnd::learn(const runtime::MeasuredFacts& facts) {
  return require(plane_->learn(job_.all(), facts));
}

void ControlEnd::keep(std::shared_ptr<const OperatorTable> operators) {
  if (directory_.rows() != nullptr) directory_.rows()->keep(operators);
  telemetry_.keep(std::move(operators));
}

void ControlEnd::watch_stalls(runtime::ControlPlaneSetup& setup) {
  setup.on_stall = [this](const std::optional<Stall>& stall) { telemetry_.show_stall(stall); };
  setup.on_hopeless = [this, log = job_.log()](const std::string& why) {
    explain_end();
    if (deaths_) deaths_->end();  // open descriptors would hold up the launcher
    end_waiting(log, why);
  };
}

// The order of deaths on several nodes is not known.
void ControlEnd::watch_deaths() {
  const Config& config = job_.config();
  const runtime::NodeMarks& marks = plane_->node_marks();
  const bool is_one_node = marks.ranks.size() == static_cast<std::size_t>(job_.world_size());
  const bool is_wanted = job_.world_size() > 1 || !config.run.directory.empty();
  const bool is_watcher = job_.is_root() && is_one_node && is_wanted;
  Result<transport::LifelinePort> port = unavailable("no watch for deaths was started");
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
  if (!started.ok()) job_.log().info("deaths of ranks are not reported: " + started.message());
}

// Writes nothing without a run directory. Errors of the recorder do not end the job.
void ControlEnd::watch_host() {
  const double period = job_.config().run.host_seconds;
  if (directory_.rows() == nullptr || period <= 0) return;
  const runtime::NodeMarks& marks = plane_->node_marks();
  HostRecorder::Setup setup;
  setup.file = directory_.rows()->folder() / io::kHostFileName;
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

void ControlEnd::close() {
  host_.reset();
  deaths_.reset();
  line_.reset();
  telemetry_.finish();
  directory_.close();
}

}  // namespace cox::detail
