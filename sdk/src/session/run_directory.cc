#include "sdk/src/session/run_directory.h"

#include <sys/utsname.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <string_view>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/death_watch.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "metrics/format.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/tick_clock.h"

namespace cox::detail {
namespace {

constexpr std::string_view kRunLock = "run.lock";
constexpr const char* kTellingPrefixes[] = {"MKL_", "MPIR_CVAR_", "NCCL_", "OMP_"};

// Returns the variables that decide threads and transport, besides those of the configuration
// (COX_). Contains no paths.
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

// Adds the device under the names that tools for the layout expect. A job on the CPU reports no
// device.
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

// Returns all settings in force except texts, which may be paths.
std::vector<metrics::NamedField> settings_in_force(const Config& config) {
  std::vector<metrics::NamedField> fields;
  fields.push_back({"seed", static_cast<std::int64_t>(config.run.seed)});  // for tools
  for (const ConfigOption& option : config_options(config)) {
    if (option.kind == "text") continue;
    fields.push_back({option.key, field_value(option.kind, option.value)});
  }
  return fields;
}

// Collective; waits. Throws cox::Error.
RankId lowest_of_node(const Membership& job) {
  const auto node = require(job.all().split_by_node());
  std::int32_t lowest = job.rank().value();
  require(broadcast(*node, std::as_writable_bytes(std::span(&lowest, 1)), kRoot,
                    job.world().between_polls()));
  return RankId(lowest);
}

}  // namespace

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

Status RunDirectory::lock() {
  const std::filesystem::path directory = job_.config().run.directory;
  if (Status made = metrics::make_run_folder(directory); !made.ok()) return made;
  std::random_device random;
  const auto bits = [&random] { return std::uint64_t{random()} << 32 | random(); };
  const std::string holder = concat("run ", job_.config().run.name, " on ", io::this_process_text(),
                                    ", since ", metrics::utc_text(wall_clock()));
  auto lock = io::FolderLock::take(directory, kRunLock, holder, io::save_id(bits(), bits()),
                                   io::system_lock_calls(), io::kWhileProcessesEnd);
  if (!lock.ok()) return lock.status().with_context("run.directory");
  lock_.emplace(std::move(*lock));
  return ok_status();
}

// No rank opens its part of the directory before rank 0 has the lock on the whole directory.
void RunDirectory::open() {
  const Config& config = job_.config();
  if (config.run.directory.empty()) return;
  job_.agree(job_.is_root() ? lock() : ok_status());
  const RunPlace place{program_, job_.rank(), job_.world_size(), lowest_of_node(job_),
                       job_.place().facts};
  auto opened = metrics::RunStoreWriter::open(
      config.run.directory, run_info(config, place, wall_clock(), job_.environment()),
      row_options());
  job_.agree(opened.status());
  rows_ = std::move(*opened);
  if (job_.is_root() && goes_on_at_) tell_last_ending();
}

void RunDirectory::tell_last_ending() const {
  const std::string& directory = job_.config().run.directory;
  const auto ending = runtime::read_ending(directory);
  if (!ending.ok())
    job_.log().warning("cannot read how the last job ended: " + ending.status().text());
  if (ending.ok() && !ending->empty())
    job_.log().warning("the last job ended by a death: " + *ending);
  runtime::forget_ending(directory);
}

metrics::RunStoreOptions RunDirectory::row_options() const {
  metrics::RunStoreOptions options;
  if (goes_on_at_) {
    options.on_existing = metrics::OnExisting::append;
    options.resume_step = *goes_on_at_;
  }
  options.on_trouble = [log = job_.log()](const Status& trouble) { log.error(trouble.text()); };
  return options;
}

std::filesystem::path RunDirectory::journal_path() const {
  const Config& config = job_.config();
  if (!config.control.journal.empty()) return config.control.journal;
  if (config.run.directory.empty()) return {};
  return std::filesystem::path(config.run.directory) / "journal.cox";
}

void RunDirectory::flush() {
  if (!rows_) return;
  rows_->flush();
  static_cast<void>(job_.gather(0));
}

void RunDirectory::close() {
  if (!rows_) return;
  const Status closed = rows_->close();
  if (!closed.ok()) job_.log().error(closed.text());
  lock_.reset();
}

}  // namespace cox::detail
