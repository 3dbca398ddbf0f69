#include "coordinator/core/settings/run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/words.h"

namespace cox {
namespace {

using namespace settings;

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
constexpr std::string_view kPathNames[] = {"auto", "mailbox", "mpi"};
constexpr std::string_view kDeviceNames[] = {"auto", "cpu", "cuda"};
constexpr std::string_view kMaskPathNames[] = {"auto", "mpi", "nccl"};

Setting<BlocksConfig> texts(std::vector<std::string> BlocksConfig::*field, SettingName name,
                            std::string range) {
  const auto parse = [](std::string_view text) {
    return parse_list<std::string>(text, [](std::string_view part) -> Result<std::string> {
      if (part.empty()) return invalid_argument("expected texts between commas, found none");
      return std::string(part);
    });
  };
  const auto format = [](const std::vector<std::string>& values) {
    return format_list(values, [](const std::string& value) { return value; });
  };
  return parsed(field, std::move(name), "text", std::move(range), parse, format);
}

}  // namespace

std::vector<Setting<RunConfig>> run_settings() {
  using C = RunConfig;
  return {
      text(&C::name, {"name", "", "name of the run"}),
      path(&C::directory,
           {"directory", "", "run directory; empty = none is written", Scope::set_alike}),
      choice(&C::log, {"log", "", "least severe messages that are printed", Scope::rank},
             kLogLevelNames),
      integer(&C::log_width,
              {"log_width", "bytes", "longest line of level info; 0 = no limit", Scope::rank},
              {0, 10000}),
      choice(&C::device,
             {"device", "",
              "where ranks train; auto = on CUDA where every rank has a device, or else the CPU"},
             kDeviceNames),
      flag(&C::allow_other_programs,
           {"allow_other_programs", "",
            "ranks may run programs with other names than rank 0's; off = such ranks are refused"}),
      integer(&C::warmup_steps, {"warmup_steps", "steps", "left out of timing statistics"},
              {0, 1000000}),
      number(
          &C::host_seconds,
          {"host_seconds", "seconds",
           "between samples of the process and its machine for the host timeline, at least 0.01; "
           "0 = none"},
          {0, 3600}),
      integer(&C::seed, {"seed", "", "seed of all random numbers"}, {0, kAny}),
      number(&C::price_per_device_hour,
             {"price_per_device_hour", "price",
              "price of one rank's device, for the summary at the end; 0 = not given"},
             {0, 1e9}),
      number(&C::peak_flops_per_device,
             {"peak_flops_per_device", "FLOP/s",
              "peak of one rank's device in the format of training, for the ratio that is used "
              "(MFU); 0 = not given"},
             {0, 1e18}),
  };
}

std::vector<Setting<BlocksConfig>> blocks_settings() {
  using C = BlocksConfig;
  return {
      texts(&C::modules,
            {"modules", "",
             "modules that are blocks, such as `layers.*`; empty = found automatically"},
            "PATTERN,..."),
      texts(&C::scopes, {"scopes", "", "blocks that the program opens itself, by cox::block(name)"},
            "NAME,..."),
  };
}

std::vector<Setting<ControlConfig>> control_settings() {
  using C = ControlConfig;
  return {
      choice(&C::path, {"path", "", "how reports and plans travel within a node"}, kPathNames),
      choice(&C::masks,
             {"masks", "",
              "how plans reach CUDA ranks; auto = over NCCL, or over MPI if NCCL fails; mpi = over "
              "MPI; nccl = only over NCCL"},
             kMaskPathNames),
      number(&C::nccl_seconds,
             {"nccl_seconds", "seconds",
              "limit of NCCL's start and of sending a plan over NCCL (then plans go without NCCL), "
              "and of a step's sums (then the job ends)"},
             {0.01, 86400}),
      integer(&C::ranks_per_node,
              {"ranks_per_node", "ranks", "0 = as on the machine; above 0 = pretend, for tests"},
              {0, 4096}),
      number(&C::late_seconds,
             {"late_seconds", "seconds",
              "a rank without a report for one to three times that long misses its round"},
             {0.01, 3600}),
      number(&C::wait_seconds,
             {"wait_seconds", "seconds",
              "the job ends if ranks wait longer than this for another rank"},
             {1, 1e7}),
      path(&C::journal, {"journal", "", "file; empty = in the run directory", Scope::rank}),
  };
}

std::vector<Setting<HttpConfig>> http_settings() {
  using C = HttpConfig;
  return {
      flag(&C::enabled, {"enabled", "", "serve metrics and status", Scope::rank}),
      text(&C::host, {"host", "", "address to listen on", Scope::rank}),
      integer(&C::port, {"port", "", "0 = any free one, printed at start", Scope::rank},
              {0, 65535}),
      text(&C::token,
           {"token", "", "token that clients must send (Authorization: Bearer TOKEN); empty = none",
            Scope::rank}),
      flag(&C::open, {"open", "", "serve other machines without a token", Scope::rank}),
  };
}

std::vector<Setting<CheckpointConfig>> checkpoint_settings() {
  using C = CheckpointConfig;
  return {
      path(&C::directory,
           {"directory", "", "folder for saves of training state; empty = none", Scope::set_alike}),
      integer(&C::every_steps, {"every_steps", "steps", "0 = only at the end and on SIGTERM"},
              {0, 1000000000}),
      integer(&C::keep, {"keep", "saves", "newest saves that are kept"}, {1, 1000}),
      flag(&C::resume, {"resume", "", "continue from the newest undamaged save"}),
      flag(&C::strict,
           {"strict", "", "a damaged newest save is an error; off = the one before is tried"}),
      flag(&C::partial, {"partial", "",
                         "resume the matching part of a save of another model, and list the rest"}),
      integer(&C::snapshot_rounds,
              {"snapshot_rounds", "rounds", "in-memory snapshot that often; 0 = none"},
              {0, 1000000}),
  };
}

Status validate(const BlocksConfig& config) {
  for (std::size_t i = 0; i < config.scopes.size(); ++i) {
    const std::string& name = config.scopes[i];
    if (std::ranges::count(config.scopes, name) > 1) {
      return invalid_argument("blocks.scopes: expected each name once, found '", shown(name),
                              "' again");
    }
  }
  return ok_status();
}

Status validate(const HttpConfig& config) {
  if (!config.enabled || !config.host.empty()) return ok_status();
  return invalid_argument("http.host is empty; give an address or set http.enabled = off");
}

Status validate(const CheckpointConfig& config) {
  if (!config.directory.empty()) return ok_status();
  if (config.every_steps > 0) {
    return invalid_argument(
        "checkpoint.every_steps is set but checkpoint.directory is empty; set it to the folder for "
        "saves");
  }
  if (config.resume) {
    return invalid_argument(
        "checkpoint.resume is on but checkpoint.directory is empty; set it to the folder of the "
        "save");
  }
  return ok_status();
}

}  // namespace cox
