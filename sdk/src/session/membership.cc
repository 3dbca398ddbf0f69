#include "sdk/src/session/membership.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <thread>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/policy.h"
#include "coordinator/transport/launch.h"
#include "coordinator/transport/solo.h"
#include "coxswain/error.h"
#include "sdk/src/device/choice.h"

namespace cox::detail {
namespace {

// "NAME=value" entries.
std::vector<std::string> process_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

std::string value_of(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

template <std::size_t N>
void copy_into(char (&target)[N], const std::string& text) {
  std::snprintf(target, N, "%s", text.c_str());
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

bool same_machine_type(const HostFacts& a, const HostFacts& b) {
  return std::strcmp(a.processor, b.processor) == 0 && a.cores == b.cores &&
         a.memory_bytes == b.memory_bytes && a.threads == b.threads &&
         a.cuda_devices == b.cuda_devices;
}

std::string count_of(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string describe(const HostFacts& facts) {
  const std::string devices =
      facts.cuda_devices > 0 ? count_of(facts.cuda_devices, "CUDA device") : "no GPU";
  return std::string(facts.processor) + ", " + count_of(facts.cores, "core") + ", " +
         fixed(static_cast<double>(facts.memory_bytes) / (1ull << 30), 1) + " GiB, " + devices +
         ", " + count_of(facts.threads, "thread") + " a rank";
}

std::string describe_device(const HostFacts& facts) {
  const double gibibytes = static_cast<double>(facts.device_bytes) / (1ull << 30);
  return std::string(facts.device) +
         (facts.device_bytes > 0 ? ", " + fixed(gibibytes, 1) + " GiB" : "");
}

// Devices of one kind and the ranks that train on them, in the order of their first ranks.
struct DeviceKind {
  std::string text;
  std::vector<std::size_t> ranks;
};

std::vector<DeviceKind> device_kinds(const std::vector<HostFacts>& hosts) {
  std::vector<DeviceKind> kinds;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (hosts[r].device[0] == '\0') continue;
    const std::string text = describe_device(hosts[r]);
    auto kind = std::ranges::find(kinds, text, &DeviceKind::text);
    if (kind == kinds.end()) kind = kinds.insert(kind, {text, {}});
    kind->ranks.push_back(r);
  }
  return kinds;
}

constexpr std::size_t kMostKinds = 8;

// Nothing on the CPU.
void add_device_lines(const std::vector<HostFacts>& hosts, std::vector<std::string>& lines) {
  const std::vector<DeviceKind> kinds = device_kinds(hosts);
  if (kinds.empty()) return;
  if (kinds.size() == 1 && kinds.front().ranks.size() == hosts.size()) {
    lines.push_back("all ranks train on " + kinds.front().text);
    return;
  }
  lines.emplace_back(
      "the ranks' devices differ, so numbers may differ in the last bit and speeds will:");
  for (const DeviceKind& kind : std::span(kinds).first(std::min(kinds.size(), kMostKinds)))
    lines.push_back(ranks_text(kind.ranks, hosts.size()) + ": " + kind.text);
}

io::LoadedConfig take(Result<io::LoadedConfig> loaded, Status& status) {
  status = loaded.status();
  return loaded.ok() ? std::move(*loaded) : io::LoadedConfig{};
}

// All ranks fail alike to join, unless MPI itself is in trouble.
World join(const ControlConfig& control, const std::vector<std::string>& environment,
           const WrapRanks& wrap_ranks) {
  auto world = World::join(control, environment, wrap_ranks);
  if (world.ok()) return std::move(*world);
  const bool is_usage = world.status().code() == StatusCode::failed_precondition;
  throw Error(world.status(), is_usage ? Error::Scope::all_ranks : Error::Scope::this_rank);
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  return {argv + std::min(argc, 1), argv + argc};
}

void write_to_stderr(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
}

struct RankSetting {
  std::string_view key;
  std::int64_t last_rank = -1;  // that it names
};

// Settings of single ranks must name ranks that exist.
Status check_ranks(const Config& config, std::int32_t world_size) {
  const std::size_t forced = config.force.shares.size();
  if (forced != 0 && forced != static_cast<std::size_t>(world_size)) {
    return invalid_argument("force.shares: expected one share for each of " +
                            std::to_string(world_size) + " ranks, found " + std::to_string(forced) +
                            "; list one number a rank, separated by commas");
  }
  const auto last = [](const auto& by_rank) {
    return by_rank.empty() ? std::int64_t{-1} : std::int64_t{by_rank.rbegin()->first};
  };
  const std::array<RankSetting, 3> settings = {
      RankSetting{"shares.hint", last(config.shares.hint)},
      RankSetting{"shares.max_samples", last(config.shares.max_samples)},
      RankSetting{"memory.budget_of_rank", last(config.memory.budget_of_rank)}};
  for (const RankSetting& setting : settings) {
    if (setting.last_rank < world_size) continue;
    return invalid_argument(setting.key, ": expected ranks from 0 to ", world_size - 1,
                            ", found rank ", setting.last_rank);
  }
  return ok_status();
}

// A policy that the program brings along has a mode, and so a key, as the built-in ones do.
Config with_modes_of(const PolicySet& policies, Config config) {
  for (const auto& policy : policies) {
    config.policy_modes.emplace(std::string(policy->name()), PolicyMode::on);
  }
  return config;
}

constexpr int kStopSignals[] = {SIGTERM, SIGINT};
// mpiexec and a terminal both pass one Ctrl-C on: what comes this soon is the same request.
constexpr std::int64_t kOneRequestNs = 1'000'000'000;

// What the handler of the stop signals knows.
struct StopSignals {
  std::atomic<bool> is_asked{false};
  std::atomic<bool> is_known{false};         // to the loop, which may take its time from then on
  std::atomic<std::int64_t> first_at_ns{0};  // 0 = no signal yet
  std::int64_t patience_seconds = 0;
  timer_t deadline{};
  bool has_deadline = false;
  struct sigaction former[2]{};  // in the order of kStopSignals
};
StopSignals signals;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// 0 = none. Safe within a signal handler, as all that follows.
void set_deadline(std::chrono::seconds after) {
  itimerspec time{};
  time.it_value.tv_sec = after.count();
  if (signals.has_deadline) timer_settime(signals.deadline, 0, &time, nullptr);
}

void say_from_handler(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void end_by(int signal) {
  sigaction(signal, &signals.former[signal == kStopSignals[0] ? 0 : 1], nullptr);
  raise(signal);  // delivered when the handler returns
}

void on_stop_signal(int signal, siginfo_t* info, void*) {
  const int error = errno;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  const std::int64_t first = signals.first_at_ns;
  if (first == 0) {
    signals.first_at_ns = now;
    signals.is_asked = true;
    if (!signals.is_known) set_deadline(std::chrono::seconds(signals.patience_seconds));
  } else if (info->si_code == SI_TIMER) {
    say_from_handler("error: asked to stop, but no step ended since; this process ends now\n");
    end_by(signal);
  } else if (now - first >= kOneRequestNs) {
    say_from_handler("error: asked to stop a second time; this process ends now, without a save\n");
    end_by(signal);
  }
  errno = error;
}

// Before MPI has started (or when it is another one) only the environment knows the rank.
std::string rank_of_this_process() {
  const auto environment = process_environment();
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const std::string rank = value_of(environment, name);
    if (!rank.empty()) return rank;
  }
  return {};
}

// TorchScript makes a traceback of what an operator throws, which ends with it.
std::string line_of(std::string_view text) {
  constexpr std::string_view kTraceback = "The following operation failed in the TorchScript";
  constexpr std::string_view kCause = "RuntimeError: ";
  const std::size_t cause = text.starts_with(kTraceback) ? text.rfind(kCause) : text.npos;
  return first_line(cause == text.npos ? text : text.substr(cause + kCause.size()));
}

}  // namespace

bool Termination::requested() {
  if (!is_taken_over_) take_over();
  if (requested_ || !signals.is_asked.load(std::memory_order_acquire)) return requested_;
  requested_elsewhere();
  return true;
}

// A launcher signals rank after rank, so this rank's own signal may come after it was told.
void Termination::requested_elsewhere() {
  if (!is_taken_over_) take_over();
  requested_ = true;
  signals.is_known = true;
  set_deadline(std::chrono::seconds(0));
}

void Termination::take_over() {
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
    const bool is_ignored = (found.sa_flags & SA_SIGINFO) == 0 && found.sa_handler == SIG_IGN;
    if (!is_ours) signals.former[i] = found;
    if (!is_ours && !is_ignored) sigaction(kStopSignals[i], &action, nullptr);
  }
}

Termination::~Termination() {
  if (!is_taken_over_) return;
  if (std::exchange(signals.has_deadline, false)) timer_delete(signals.deadline);
  if (requested_ || signals.is_asked) return;
  for (std::size_t i = 0; i < std::size(kStopSignals); ++i)
    sigaction(kStopSignals[i], &signals.former[i], nullptr);
}

Result<World> World::join(const ControlConfig& control, const std::vector<std::string>& environment,
                          const WrapRanks& wrap_ranks) {
  World world;
  auto launch = transport::launch_of(environment);
  if (!launch.ok()) return launch.status();
  if (*launch == transport::Launch::mpi) {
    auto runtime = transport::MpiRuntime::start(nullptr, nullptr);
    if (!runtime.ok()) return runtime.status();
    world.mpi_.emplace(std::move(*runtime));
    transport::MpiOptions options;
    options.ranks_per_node = static_cast<std::int32_t>(control.ranks_per_node);
    const std::string folder = value_of(environment, "COX_SHM_DIR");
    if (!folder.empty()) options.shared_folder = folder;
    auto all = world.mpi_->world(options);
    if (!all.ok()) return all.status();
    world.all_ = std::move(*all);
  } else {
    world.all_ = transport::solo_communicator();
  }
  if (wrap_ranks) world.all_ = wrap_ranks(std::move(world.all_));
  world.wait_policy_ =
      transport::wait_policy(world.all_->ranks_on_node(), transport::usable_cores());
  return world;
}

void World::end_by_exit() {
  if (!mpi_->initialized_here()) transport::MpiRuntime::abort_all(1);
  mpi_->leave_to_exit();
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(1);
  }).detach();
}

HostFacts this_host() {
  HostFacts facts;
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  copy_into(facts.host, name);
  copy_into(facts.processor, processor_name());
  facts.memory_bytes = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  facts.cores = transport::usable_cores();
  facts.threads = at::get_num_threads();
  facts.cuda_devices = static_cast<std::int32_t>(torch::cuda::device_count());
  return facts;
}

std::vector<std::string> summary_lines(const std::vector<HostFacts>& hosts) {
  std::map<std::string, std::size_t> ranks_on;
  for (const HostFacts& facts : hosts) ++ranks_on[facts.host];
  std::string where;
  for (const auto& [host, ranks] : ranks_on) {
    where += (where.empty() ? "" : ", ") + host + ": " + std::to_string(ranks);
    if (where.size() > 200) {
      where += ", ...";
      break;
    }
  }
  std::vector<std::string> lines = {count_of(hosts.size(), "rank") + " on " +
                                    count_of(ranks_on.size(), "host") + " (" + where + ")"};
  std::vector<std::string> kinds;
  for (std::size_t r = 0; r < hosts.size() && kinds.size() < kMostKinds; ++r) {
    const bool is_new =
        std::none_of(hosts.begin(), hosts.begin() + static_cast<long>(r),
                     [&](const HostFacts& h) { return same_machine_type(h, hosts[r]); });
    if (is_new) kinds.push_back("rank " + std::to_string(r) + ": " + describe(hosts[r]));
  }
  if (kinds.size() == 1) {
    lines.push_back("all ranks alike: " + describe(hosts.front()));
  } else {
    lines.push_back("ranks differ, so numbers may differ in the last bit and speeds will:");
    lines.insert(lines.end(), kinds.begin(), kinds.end());
  }
  add_device_lines(hosts, lines);
  return lines;
}

Membership::Membership(int argc, const char* const* argv, const SessionOptions& options,
                       const WrapRanks& wrap_ranks)
    : environment_(process_environment()),
      loaded_(take(io::load_config(with_modes_of(options.policies, options.config), environment_,
                                   arguments_of(argc, argv)),
                   config_status_)),
      world_(join(loaded_.config.control, environment_, wrap_ranks)),
      data_(require(world_.all().duplicate())),
      farewell_(require(world_.all().duplicate())),
      log_(loaded_.config.run.log, rank(), write_to_stderr) {
  agree(config_status_);
  check_equal_configs();
  agree(check_ranks(loaded_.config, world_size()));
  devices_ = std::make_unique<DeviceLink>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(config().control.nccl_seconds)));
  device_ = agreed_device();
  ranks_on_device_ = count_on_device();
  make_current(device_);
  device_facts_ = facts_of(device_);
  clocks_.emplace(require(NodeClocks::make(*data_)));
}

RankId Membership::lowest_of_node() const {
  const auto node = require(all().split_by_node());
  std::int32_t lowest = rank().value();
  require(broadcast(*node, std::as_writable_bytes(std::span(&lowest, 1)), kRoot, between_polls()));
  return RankId(lowest);
}

// The ranks of one job train on devices of one kind, unless a program decides otherwise.
c10::Device Membership::agreed_device() const {
  const DeviceSetting setting = config().run.device;
  if (setting == DeviceSetting::cpu) return at::kCPU;
  const CudaFacts cuda = find_cuda();
  const auto node = require(all().split_by_node());
  const auto mine = choose_device(setting, cuda, node->rank().value());
  agree(mine.status());
  const auto kinds = gather(mine->is_cuda() ? 1 : 0);
  const bool has_all = std::ranges::count(kinds, std::uint64_t{0}) == 0;
  if (!cuda.why_unusable.empty()) log_.warning("CUDA is left out: " + cuda.why_unusable);
  if (cuda.devices == 0) log_.debug("no CUDA device: " + cuda.why_none);
  return has_all ? *mine : c10::Device(at::kCPU);
}

std::int32_t Membership::count_on_device() const {
  if (device_.is_cpu()) return 1;
  const auto node = require(all().split_by_node());
  std::string address = device_address(device_);
  if (address.empty()) address = device_.str();
  Fnv1a64 hash;
  hash.add(address);
  const auto addresses = require(gather_values(*node, hash.value(), between_polls()));
  const auto mine = addresses[static_cast<std::size_t>(node->rank().value())];
  const auto ranks = static_cast<std::int32_t>(std::ranges::count(addresses, mine));
  const auto first = std::ranges::find(addresses, mine) - addresses.begin();
  if (ranks > 1 && first == node->rank().value()) {
    log_.warning(concat(ranks, " ranks of a node train on one CUDA device, ", address,
                        ": each plans with its part of the memory that is free there; NCCL wants a "
                        "device for each"));
  }
  return ranks;
}

void Membership::agree(const Status& mine) const {
  require(agree_on_status(all(), mine, between_polls()), Error::Scope::all_ranks);
}

std::vector<std::uint64_t> Membership::gather(std::uint64_t mine) const {
  return require(gather_values(all(), mine, between_polls()));
}

std::string Membership::ranks_unlike_root(std::uint64_t mine) const {
  return ranks_that_differ(gather(mine));
}

void Membership::check_equal_configs() const {
  const std::string different = ranks_unlike_root(fingerprint(loaded_.config));
  if (different.empty()) return;
  const Status status = invalid_argument(
      "expected the same configuration on all ranks, found another than rank 0's on rank " +
      different + "; give every rank the same file, COX_ variables and --cox flags");
  throw Error(status, Error::Scope::all_ranks);
}

void Membership::log_hosts() const {
  HostFacts mine = this_host();
  if (device_facts_) {
    copy_into(mine.device, device_facts_->name.empty() ? device_.str() : device_facts_->name);
    mine.device_bytes = device_facts_->memory_bytes;
  }
  const auto hosts = require(gather_values(all(), mine));
  if (!is_root()) return;
  for (const std::string& line : summary_lines(hosts)) log_.info(line);
}

void Membership::leave_after_failure() noexcept {
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

}  // namespace cox::detail

namespace cox {

int report(const std::exception& error) {
  const std::string rank = detail::rank_of_this_process();
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool on_all_ranks = ours != nullptr && ours->scope() == Error::Scope::all_ranks;
  const int exit_code = static_cast<int>(ours == nullptr ? ExitCode::failure : ours->exit_code());
  if (on_all_ranks && !rank.empty() && rank != "0") return exit_code;
  const std::string where = on_all_ranks || rank.empty() ? "" : "rank " + rank + ": ";
  const std::string text =
      ours != nullptr ? ours->status().message() : detail::line_of(error.what());
  std::fprintf(stderr, "error: %s%s\n", where.c_str(), text.c_str());
  return exit_code;
}

}  // namespace cox
