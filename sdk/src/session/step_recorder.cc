#include "sdk/src/session/step_recorder.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include "coordinator/core/settings/settings.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/blocks/measurement.h"

namespace cox::detail {
namespace {

constexpr const char* kTellingPrefixes[] = {"MKL_", "MPIR_CVAR_", "NCCL_", "OMP_"};

// Returns the variables that decide threads and transport, beside those of the configuration
// (COX_). No paths.
std::vector<metrics::NamedField> variables_of(const std::vector<std::string>& environment) {
  std::vector<metrics::NamedField> variables;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || entry.find('/') != std::string::npos) continue;
    const bool counts = std::any_of(std::begin(kTellingPrefixes), std::end(kTellingPrefixes),
                                    [&](const char* prefix) { return entry.starts_with(prefix); });
    if (counts) variables.push_back({entry.substr(0, equals), entry.substr(equals + 1)});
  }
  std::ranges::sort(variables, [](const auto& a, const auto& b) { return a.name < b.name; });
  return variables;
}

// Under the names that tools for the layout look for. No device is told of a job on the CPU.
void add_device(const DeviceFacts& device, std::vector<metrics::NamedField>& environment) {
  if (!device.name.empty()) environment.push_back({"gpu", device.name});
  environment.push_back({"gpu_count", static_cast<std::int64_t>(device.devices)});
  if (!device.cuda.empty()) environment.push_back({"cuda", device.cuda});
  const CudnnFlags flags = cudnn_flags();
  environment.push_back({"cudnn_benchmark", flags.benchmark});
  environment.push_back({"cudnn_deterministic", flags.deterministic});
  environment.push_back({"cudnn_allow_tf32", flags.allows_tf32});
}

metrics::FieldValue field_value(const std::string& kind, const std::string& text) {
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (kind == "integer") {
    const auto number = settings::parse_integer(text, {0, most});
    if (number.ok()) return static_cast<std::int64_t>(*number);
  } else if (kind == "number") {
    const double unlimited = std::numeric_limits<double>::max();
    const auto number = settings::parse_number(text, {-unlimited, unlimited});
    if (number.ok()) return *number;
  } else if (kind == "switch") {
    return text == "on";
  }
  return text;
}

// All settings in force, except texts: they may be paths.
std::vector<metrics::NamedField> settings_in_force(const Config& config) {
  std::vector<metrics::NamedField> fields;
  fields.push_back({"seed", static_cast<std::int64_t>(config.run.seed)});  // what tools look for
  for (const ConfigOption& option : config_options(config)) {
    if (option.kind == "text") continue;
    fields.push_back({option.key, field_value(option.kind, option.value)});
  }
  return fields;
}

}  // namespace

std::optional<std::uint64_t> queued_ns_in(std::string_view schedstat) {
  const std::size_t space = schedstat.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const char* const end = schedstat.data() + schedstat.size();
  const auto read = std::from_chars(schedstat.data() + space + 1, end, value);
  // A number that the buffer cuts off is another one.
  if (read.ec != std::errc() || read.ptr == end) return std::nullopt;
  return value;
}

std::optional<RunQueue> RunQueue::of_this_thread(const std::string& proc) {
  const int file = ::open((proc + "/thread-self/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  RunQueue queue(file);
  std::array<char, 96> text{};
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  if (got <= 0 || !queued_ns_in({text.data(), static_cast<std::size_t>(got)})) return std::nullopt;
  return queue;
}

RunQueue::~RunQueue() {
  if (file_ >= 0) ::close(file_);
}

Seconds RunQueue::queued() {
  std::array<char, 96> text{};
  const ssize_t got = ::pread(file_, text.data(), text.size(), 0);
  if (got > 0)
    last_ns_ = queued_ns_in({text.data(), static_cast<std::size_t>(got)}).value_or(last_ns_);
  return Seconds(static_cast<double>(last_ns_) * 1e-9);
}

void StepRecorder::begin(StepId step, Clock::time_point now) {
  report_ = StepReport{};
  report_.step = step;
  report_.save_seconds = std::exchange(saved_, 0);
  report_.phase_seconds[static_cast<std::size_t>(Phase::host)] = std::exchange(host_, 0);
  report_.loss = std::numeric_limits<double>::quiet_NaN();
  report_.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  loss_sum_ = 0;
  queued_elsewhere_ = queued_in_calls_ = waited_ = 0;
  has_called_ = false;
  is_waiting_known_ = true;
  if (queued_) queued_until_ = queued_();
  depth_ = 0;
  started_ = booked_until_ = now;
  if (events_) with_events([](PhaseEvents& events) { events.begin_step(); });
  open_ = true;
  between_ = Activity::outside;
  aside_ = Activity::other;
  tell(now);
}

Phase StepRecorder::phase() const {
  return depth_ == 0 ? Phase::other : stack_[std::min(depth_, kMaxDepth) - 1];
}

Activity StepRecorder::activity() const {
  if (!open_) return between_;
  return depth_ == 0 ? aside_ : activity_of(phase());
}

void StepRecorder::with_events(const std::function<void(PhaseEvents&)>& work) {
  try {
    work(*events_);
  } catch (const std::exception&) {
    events_.reset();
  }
}

void StepRecorder::tell(Clock::time_point now) {
  if (mark_ != nullptr) mark_->enter(activity(), report_.step, now);
}

void StepRecorder::begin_waiting(Clock::time_point now) {
  if (open_) return enter(Phase::communication, now);
  before_waiting_ = between_;
  do_between_steps(Activity::waiting, now);
}

void StepRecorder::end_waiting(Clock::time_point now) {
  if (open_) return leave(now);
  do_between_steps(before_waiting_, now);
}

void StepRecorder::do_between_steps(Activity activity, Clock::time_point now) {
  if (!open_ && between_ == Activity::saving) saved_ += Seconds(now - between_since_).count();
  between_since_ = now;
  between_ = activity;
  if (!open_) tell(now);
}

Activity StepRecorder::do_aside(Activity activity, Clock::time_point now) {
  if (!open_) return aside_;
  const Activity before = std::exchange(aside_, activity);
  tell(now);
  return before;
}

// Moments come from two readers of one clock, which may differ by some nanoseconds: time never goes
// back.
void StepRecorder::book_until(Clock::time_point now) {
  now = std::max(now, booked_until_);
  const Phase phase = this->phase();
  double seconds = Seconds(now - booked_until_).count();
  booked_until_ = now;
  if (queued_) {
    const double queued = take_queued(seconds);
    (phase == Phase::communication ? queued_in_calls_ : queued_elsewhere_) += queued;
    report_.phase_seconds[static_cast<std::size_t>(Phase::communication)] += queued;
    seconds -= queued;
  }
  report_.phase_seconds[static_cast<std::size_t>(phase)] += seconds;
}

void StepRecorder::leave_out_queueing(std::function<Seconds()> queued) {
  queued_ = std::move(queued);
  queued_until_ = queued_();
}

double StepRecorder::take_queued(double booked_seconds) {
  const Seconds now = queued_();
  const double queued = Seconds(now - queued_until_).count();
  queued_until_ = now;
  return std::clamp(queued, 0.0, std::max(0.0, booked_seconds));
}

void StepRecorder::waited(std::optional<double> seconds) {
  if (!open_) return;
  has_called_ = true;
  is_waiting_known_ = is_waiting_known_ && seconds.has_value();
  waited_ += seconds.value_or(0);
}

// A thread that waits for others gives its core up and queues for it again, so within calls the two
// overlap, and the longer one stands for both.
void StepRecorder::add_up_waiting() {
  if (queued_) flag(SignalFlag::without_queueing);
  if (!is_waiting_known_ || !has_called_) return;
  flag(SignalFlag::waiting_measured);
  const double communication =
      report_.phase_seconds[static_cast<std::size_t>(Phase::communication)];
  const double waiting = queued_elsewhere_ + std::max(waited_, queued_in_calls_);
  report_.waiting_seconds = std::min(waiting, communication);
}

void StepRecorder::enter(Phase phase, Clock::time_point now) {
  book_until(now);
  if (depth_ < kMaxDepth) stack_[depth_] = phase;
  ++depth_;
  if (events_) with_events([&](PhaseEvents& events) { events.change(phase); });
  tell(now);
}

void StepRecorder::leave(Clock::time_point now) {
  book_until(now);
  if (depth_ > 0) --depth_;
  if (events_) with_events([this](PhaseEvents& events) { events.change(phase()); });
  tell(now);
}

void StepRecorder::leave_out(Clock::time_point from, Clock::time_point to) {
  if (!open_) return;
  book_until(from);
  booked_until_ = to;
  if (events_) events_->spoil();
  if (queued_) queued_until_ = queued_();
  started_ += to - from;
}

void StepRecorder::loss(double mean, double weight) {
  if (weight == 0) return;  // the mean of no samples is no number
  loss_sum_ += mean * weight;
  report_.weight += weight;
  report_.loss = loss_sum_ / report_.weight;
  if (!std::isfinite(mean)) flag(SignalFlag::nonfinite_loss);
}

void StepRecorder::log(std::string_view name, double value) {
  const std::string_view key = name.substr(0, sizeof(UserScalar::name) - 1);
  for (std::size_t i = 0; i < report_.scalar_count; ++i) {
    if (key == report_.scalars[i].name.data()) {
      report_.scalars[i].value = value;
      return;
    }
  }
  if (report_.scalar_count == kUserScalars) return;
  UserScalar& scalar = report_.scalars[report_.scalar_count++];
  std::copy(key.begin(), key.end(), scalar.name.begin());
  scalar.value = value;
}

const StepReport& StepRecorder::end(Clock::time_point now) {
  book_until(now);
  add_up_waiting();
  report_.wall_seconds = Seconds(booked_until_ - started_).count();
  if (events_) with_events([this](PhaseEvents&) { take_device_times(); });
  open_ = false;
  if (aside_ == Activity::epoch) between_ = Activity::epoch;
  tell(now);
  return report_;
}

void StepRecorder::take_device_times() {
  events_->end_step(
      {report_.wall_seconds, report_.waiting_seconds, report_.has(SignalFlag::waiting_measured)});
  const auto times = events_->take();
  report_.has_times = times.has_value();
  if (!times) return;
  constexpr auto kHost = static_cast<std::size_t>(Phase::host);
  const double host = report_.phase_seconds[kHost];
  report_.phase_seconds = times->phase_seconds;
  report_.phase_seconds[kHost] = host;
  report_.wall_seconds = times->host.wall_seconds;
  report_.waiting_seconds = times->host.waiting_seconds;
  const auto known = static_cast<std::uint16_t>(SignalFlag::waiting_measured);
  report_.flags = static_cast<std::uint16_t>(report_.flags & ~known);
  if (times->host.is_waiting_known) flag(SignalFlag::waiting_measured);
}

RankSignal signal_from(const StepReport& report) {
  RankSignal signal;
  signal.step = report.step;
  signal.flags = report.flags;
  signal.loss = report.loss;
  signal.weight = report.weight;
  signal.gradient_norm = report.gradient_norm;
  signal.wall_seconds = report.wall_seconds;
  std::ranges::copy(report.phase_seconds, signal.phase_seconds.begin());
  signal.rounds = 1;
  signal.samples = saturated(report.samples);
  signal.tokens = report.tokens;
  signal.nonfinite_values = report.nonfinite_values;
  signal.reduction_seconds = report.reduction_seconds;
  signal.reduction_exposed_seconds = report.reduction_exposed_seconds;
  signal.waiting_seconds = static_cast<float>(report.waiting_seconds);
  signal.save_seconds = static_cast<float>(report.save_seconds);
  return signal;
}

RankSignal without_times(RankSignal signal) {
  signal.rounds = 0;
  signal.wall_seconds = 0;
  signal.phase_seconds = {};
  signal.waiting_seconds = 0;
  signal.save_seconds = 0;
  return signal;
}

metrics::StepRow row_from(const StepReport& report, RoundId round, UnixTime now) {
  metrics::StepRow row;
  row.step = report.step;
  row.round = round;
  row.timestamp = now.seconds;
  std::ranges::copy(report.phase_seconds, row.phase_seconds.begin());
  if (report.has(SignalFlag::waiting_measured))
    row.waiting_seconds = static_cast<float>(report.waiting_seconds);
  row.save_seconds = static_cast<float>(report.save_seconds);
  row.reduction_seconds = report.reduction_seconds;
  row.reduction_exposed_seconds = report.reduction_exposed_seconds;
  const bool has_loss = report.weight > 0 || !std::isnan(report.loss);
  if (has_loss) row.loss = report.loss;
  if (report.has_gradient_norm) row.gradient_norm = report.gradient_norm;
  row.overflow = report.nonfinite_values;
  row.was_skipped = report.has(SignalFlag::step_skipped);
  for (std::size_t i = 0; i < report.scalar_count; ++i) {
    const UserScalar& scalar = report.scalars[i];
    if (std::string_view(scalar.name.data()) == "lr") {
      row.learning_rate = scalar.value;
    } else {
      row.add_scalar(scalar.name.data(), scalar.value);
    }
  }
  return row;
}

metrics::RunInfo run_info(const Config& config, const RunPlace& place, UnixTime now,
                          const std::vector<std::string>& environment) {
  metrics::RunInfo info;
  info.name = config.run.name;
  info.rank = place.rank;
  info.world_size = place.world_size;
  info.started = now.seconds;
  info.config = settings_in_force(config);
  utsname system{};
  uname(&system);
  const std::string machine = system.machine;
  info.environment = {{"program", place.program},
                      {"platform", std::string(system.sysname) + "-" + system.release},
                      {"machine", machine},
                      {"host", std::string(system.nodename)},
                      {"node", static_cast<std::int64_t>(place.node.value())},
                      {"cpu_count", static_cast<std::int64_t>(transport::usable_cores())},
                      {"torch", std::string(TORCH_VERSION)},
                      {"torch_threads", static_cast<std::int64_t>(at::get_num_threads())},
                      {"cuda_available", torch::cuda::is_available()},
                      {"coxswain", std::string(COX_VERSION)}};
  if (place.device) add_device(*place.device, info.environment);
  info.variables = variables_of(environment);
  return info;
}

}  // namespace cox::detail
