// Config: every setting of a job, typed and validated once at the start. Sources, later ones win:
// defaults, what the program sets itself, a file (`COX_CONFIG` or --cox.config=FILE), environment
// (COX_GUARD_MODE=on), flags (--cox.guard.mode=on). One table (config_options) names every
// key with its unit, range and help, and generates docs and messages. All ranks must have the same;
// fingerprint() is compared at start-up. Plain value; pure functions, the environment is passed in.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/memory_config.h"
#include "coordinator/core/parallel_config.h"
#include "coordinator/core/precision_config.h"
#include "coordinator/core/status.h"

namespace cox {

enum class ControlPath : std::uint8_t { automatic = 0, mailbox = 1, mpi = 2 };
enum class LogLevel : std::uint8_t { debug = 0, info = 1, warning = 2, error = 3, quiet = 4 };

struct GuardConfig {
  PolicyMode mode = PolicyMode::on;
  std::uint32_t nonfinite_streak = 5;  // skipped steps in a row before it acts
  double spike_sigmas = 8;             // loss above median + this many robust deviations ...
  double spike_ratio = 1.5;            // ... and above this many times the median
  std::uint32_t spike_rounds = 3;      // rounds in a row that must spike
  std::uint32_t window_rounds = 64;    // history compared with
  std::uint32_t hold_rounds = 50;      // knobs rest for that long after trouble
  std::uint32_t max_rollbacks = 3;     // of one job; 0 = only ever hold
};

struct StragglerConfig {
  PolicyMode mode = PolicyMode::on;
  std::uint32_t min_rounds = 12;             // reports of a rank before it can be named
  double slowdown_ratio = 1.05;              // smallest persistent slowdown worth naming
  double false_alarms_per_rank_step = 1e-6;  // stated rate for noise without stragglers
};

struct ControlConfig {
  ControlPath path = ControlPath::automatic;
  std::uint32_t ranks_per_node = 0;  // 0 = as the machine says; else pretend (tests)
  double late_seconds = 0.5;         // a rank not heard for that long is missing from its round
  std::string journal;               // file; empty = in the run directory
};

struct HttpConfig {
  bool enabled = true;
  std::string host = "127.0.0.1";
  std::uint16_t port = 9464;  // 0 = any free one, printed at start; a busy one is an error
};

struct RunConfig {
  std::string name = "run";
  std::string directory;  // run directory; empty = none is written
  LogLevel log = LogLevel::info;
  std::uint32_t warmup_steps = 0;  // left out of timing statistics
  std::uint64_t seed = 1;
  double price_per_device_hour = 0;  // of one rank's device, in any unit; 0 = not given
};

struct CheckpointConfig {
  std::string directory;              // empty = none
  std::uint32_t every_steps = 0;      // 0 = only at the end and on SIGTERM
  std::uint32_t keep = 2;             // newest ones kept, >= 1
  bool resume = false;                // continue from the newest whole one
  std::uint32_t snapshot_rounds = 0;  // in-memory snapshot for rollbacks; 0 = none
};

struct OverrideConfig {
  std::vector<std::uint32_t> shares;  // forced, one per rank; empty = policy or even
};

struct Config {
  RunConfig run;
  ControlConfig control;
  HttpConfig http;
  CheckpointConfig checkpoint;
  GuardConfig guard;
  StragglerConfig stragglers;
  OverrideConfig force;
  MemoryConfig memory;
  PrecisionConfig precision;
  LossScaleConfig loss_scale;
  ReductionConfig reduction;
  SharesConfig shares;
  AccumulationConfig accumulation;
  // Policies without further settings yet; keys "<policy>.mode".
  std::map<std::string, PolicyMode, std::less<>> policy_modes;
};

// One row of the table: how a key is called, what it accepts, what it is for.
struct ConfigOption {
  std::string key;       // "guard.hold_rounds"
  std::string kind;      // "integer", "number", "text", "switch", "mode", "list"
  std::string range;     // "1 .. 1000000", "off|observe|on"
  std::string unit;      // "rounds", "seconds", ""
  std::string fallback;  // the default as text
  std::string help;
};
std::vector<ConfigOption> config_options();

// Sets one key. invalid_argument for an unknown key (naming the nearest known one), a value of the
// wrong kind or out of range.
Status set_option(Config& config, std::string_view key, std::string_view value);

// Reads lines of `key = value`; '#' starts a comment. Errors carry `origin` and the line number.
Status apply_text(Config& config, std::string_view text, std::string_view origin);

// Takes every variable COX_<KEY> with dots as underscores (COX_HTTP_PORT). A COX_ variable that is
// no key is an error, apart from those of scripts and tests (listed in config_sources.cc) and
// COX_TEST_*. COX_CONTROL and COX_LOG are short for COX_CONTROL_PATH and COX_RUN_LOG.
Status apply_environment(Config& config, std::span<const std::string> environment);

// Takes "--cox.key=value" and "--cox.key value"; everything else is returned in `rest` in order.
struct FlagsApplied {
  std::vector<std::string> rest;
};
Result<FlagsApplied> apply_flags(Config& config, std::span<const std::string> arguments);

// Checks that span several keys. Every loader above must be followed by this once.
Status validate(const Config& config);

// "key = value" for every option in the order of the table; apply_text() reads it back.
std::string text(const Config& config);

// Equal on two ranks exactly if all settings that must be equal are: not run.log, and of folders
// only whether there is one.
std::uint64_t fingerprint(const Config& config);

// Mode of a policy by its name; `fallback` where nothing was said (`memory`: on where a budget or a
// forced action is set, else off; `precision`: on where any block may run in another format than
// fp32, else off).
PolicyMode mode_of(const Config& config, std::string_view policy, PolicyMode fallback);

}  // namespace cox
