#include "sdk/src/session/termination.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <string_view>
#include <utility>

namespace cox::detail {
namespace {

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGXCPU, SIGUSR1};
constexpr std::size_t kUsual = 2;  // the first two; others are taken only if nothing handles them
// mpiexec and a terminal both forward one Ctrl-C. A second signal this soon is the same request.
constexpr std::int64_t kOneRequestNs = 1'000'000'000;

// StopSignals is the state of the handler of the stop signals.
struct StopSignals {
  std::atomic<bool> is_asked{false};
  std::atomic<bool> is_known{false};         // known to the loop, which may then finish its step
  std::atomic<std::int64_t> first_at_ns{0};  // 0 = no signal yet
  std::int64_t patience_seconds = 0;
  timer_t deadline{};
  bool has_deadline = false;
  struct sigaction former[std::size(kStopSignals)]{};  // in the order of kStopSignals
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// A handler can reach static state only. The state needs no initialisation at run time, so the
// handler may be the first to use it. All functions below are safe within a signal handler.
StopSignals& stop_signals() {
  static constinit StopSignals signals;
  return signals;
}

// `after` = 0 removes the deadline.
void set_deadline(std::chrono::seconds after) {
  const StopSignals& signals = stop_signals();
  itimerspec time{};
  time.it_value.tv_sec = after.count();
  if (signals.has_deadline) timer_settime(signals.deadline, 0, &time, nullptr);
}

void say_from_handler(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void end_by(int signal) {
  const int* const found = std::find(std::begin(kStopSignals), std::end(kStopSignals), signal);
  sigaction(signal, &stop_signals().former[found - kStopSignals], nullptr);
  raise(signal);  // delivered when the handler returns
}

void on_stop_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  StopSignals& signals = stop_signals();
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  const std::int64_t first = signals.first_at_ns;
  if (first == 0) {
    if (signal == SIGXCPU)
      say_from_handler("warning: the limit on CPU seconds (ulimit -t) asks this job to stop\n");
    signals.first_at_ns = now;
    signals.is_asked = true;
    if (!signals.is_known) set_deadline(std::chrono::seconds(signals.patience_seconds));
  } else if (info->si_code == SI_TIMER) {
    say_from_handler(
        "error: asked to stop, but no step has ended since then; this process ends now\n");
    end_by(signal);
  } else if (now - first >= kOneRequestNs && signal != SIGXCPU) {
    say_from_handler("error: asked to stop a second time; this process ends now, without a save\n");
    end_by(signal);
  }
  errno = error;
}

}  // namespace

bool Termination::requested() {
  if (!is_taken_over_) take_over();
  if (requested_ || !stop_signals().is_asked.load(std::memory_order_acquire)) return requested_;
  requested_elsewhere();
  return true;
}

// A launcher signals rank after rank, so this rank's own signal may come after another rank's
// notice.
void Termination::requested_elsewhere() {
  if (!is_taken_over_) take_over();
  requested_ = true;
  stop_signals().is_known = true;
  set_deadline(std::chrono::seconds(0));
}

void Termination::take_over() {
  StopSignals& signals = stop_signals();
  is_taken_over_ = true;
  signals.patience_seconds = patience_.count();
  signals.is_asked = signals.is_known = false;
  signals.first_at_ns = 0;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGTERM;
  signals.has_deadline = timer_create(CLOCK_MONOTONIC, &event, &signals.deadline) == 0;
  struct sigaction action {};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (std::size_t i = 0; i < std::size(kStopSignals); ++i) {
    struct sigaction found {};
    sigaction(kStopSignals[i], nullptr, &found);
    const bool is_ours = found.sa_sigaction == on_stop_signal;  // after a job that was stopped
    const bool is_plain = (found.sa_flags & SA_SIGINFO) == 0;
    const bool is_default = is_plain && found.sa_handler == SIG_DFL;
    const bool is_ignored = is_plain && found.sa_handler == SIG_IGN;
    if (!is_ours) signals.former[i] = found;
    if (!is_ours && (i < kUsual ? !is_ignored : is_default))
      sigaction(kStopSignals[i], &action, nullptr);
  }
}

Termination::~Termination() {
  if (!is_taken_over_) return;
  StopSignals& signals = stop_signals();
  if (std::exchange(signals.has_deadline, false)) timer_delete(signals.deadline);
  if (requested_ || signals.is_asked) return;
  for (std::size_t i = 0; i < std::size(kStopSignals); ++i) {
    struct sigaction now {};
    sigaction(kStopSignals[i], nullptr, &now);
    if (now.sa_sigaction == on_stop_signal) sigaction(kStopSignals[i], &signals.former[i], nullptr);
  }
}

struct ExitWatch::Shared {
  Leave leave;  // empty after the session's end
  std::atomic<bool> has_failed{false};
  const pid_t process = ::getpid();

  // A forked child shares this memory and none of the job's duties.
  int code_for(int code) {
    if (::getpid() != process) return code;
    if (const Leave once = std::exchange(leave, {})) code = once(code);
    return has_failed && code == 0 ? 1 : code;
  }

  static void run(int code, void* held) {
    const std::unique_ptr<std::shared_ptr<Shared>> shared(
        static_cast<std::shared_ptr<Shared>*>(held));
    const int chosen = (*shared)->code_for(code);
    if (chosen == code) return;
    std::fflush(nullptr);
    ::_exit(chosen);
  }
};

ExitWatch::ExitWatch(Leave leave) : shared_(std::make_shared<Shared>()) {
  shared_->leave = std::move(leave);
  auto held = std::make_unique<std::shared_ptr<Shared>>(shared_);
  if (::on_exit(&Shared::run, held.get()) == 0) static_cast<void>(held.release());
}

ExitWatch::~ExitWatch() {
  shared_->leave = {};
}

void ExitWatch::fail() {
  shared_->has_failed = true;
}

}  // namespace cox::detail
