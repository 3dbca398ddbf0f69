// Config: every setting of a job, typed and checked once at the start. Sources, later ones win:
// defaults, values that the program sets, a file (`COX_CONFIG` or --cox.config=FILE), environment
// (COX_GUARD_MODE=on), flags (--cox.guard.mode=on). core/settings/ lists each setting beside the
// struct member for its value; documentation and messages follow from these rows. All ranks must
// have the same settings; fingerprint() is compared at start-up. Plain value; pure functions:
// environment and file text are arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/settings/guard.h"
#include "coordinator/core/settings/memory.h"
#include "coordinator/core/settings/parallel.h"
#include "coordinator/core/settings/precision.h"
#include "coordinator/core/settings/run.h"
#include "coordinator/core/status.h"

namespace cox {

struct Config {
  RunConfig run;
  BlocksConfig blocks;
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
  ShardConfig shard;
  // The modes of the program's own policies; keys "<policy>.mode". Names of sections do not count.
  std::map<std::string, PolicyMode, std::less<>> policy_modes;
};

// Calls visit(name, section, settings) with each section of Config, in the order of their settings.
template <class Visit>
void for_each_section(const Visit& visit) {
  visit("run", &Config::run, run_settings);
  visit("blocks", &Config::blocks, blocks_settings);
  visit("control", &Config::control, control_settings);
  visit("http", &Config::http, http_settings);
  visit("checkpoint", &Config::checkpoint, checkpoint_settings);
  visit("guard", &Config::guard, guard_settings);
  visit("stragglers", &Config::stragglers, straggler_settings);
  visit("force", &Config::force, force_settings);
  visit("memory", &Config::memory, memory_settings);
  visit("precision", &Config::precision, precision_settings);
  visit("loss_scale", &Config::loss_scale, loss_scale_settings);
  visit("reduction", &Config::reduction, reduction_settings);
  visit("shares", &Config::shares, shares_settings);
  visit("accumulation", &Config::accumulation, accumulation_settings);
  visit("shard", &Config::shard, shard_settings);
}

// ConfigOption describes one setting: key, accepted values, purpose, and value.
struct ConfigOption {
  std::string key;       // "guard.hold_rounds"
  std::string kind;      // "integer", "number", "text", "switch", "mode", "list", ...
  std::string range;     // "1 .. 1000000", "off|observe|on"
  std::string unit;      // "rounds", "seconds", ""
  std::string fallback;  // the default as text
  std::string help;
  std::string value;  // in the given Config, as text
};
std::vector<ConfigOption> config_options(const Config& config = {});

// Sets one key. Returns invalid_argument for an unknown key (with the nearest known one) and for a
// value of the wrong kind or out of range. The Config is unchanged after an error.
Status set_option(Config& config, std::string_view key, std::string_view value);

// Reads lines of `key = value`; '#' starts a comment. Errors carry `origin` and the line number.
Status apply_text(Config& config, std::string_view text, std::string_view origin);

// Applies every variable COX_<KEY> with dots as underscores (COX_HTTP_PORT). A COX_ variable that
// is not a key is an error, except variables of scripts and tests (listed in config.cc) and
// COX_TEST_*. COX_CONTROL and COX_LOG are short for COX_CONTROL_PATH and COX_RUN_LOG.
Status apply_environment(Config& config, std::span<const std::string> environment);

// Applies "--cox.key=value" and "--cox.key value"; returns other arguments in `rest`, in order.
struct FlagsApplied {
  std::vector<std::string> rest;
};
Result<FlagsApplied> apply_flags(Config& config, std::span<const std::string> arguments);

// Returns the file named by --cox.config=FILE or else by COX_CONFIG; empty if neither is set.
std::string config_file(std::span<const std::string> environment,
                        std::span<const std::string> arguments);

// Checks every value against its range, and the rules between keys. Call once, after the last
// source.
Status validate(const Config& config);

// Makes the paths of files and folders absolute, relative to the directory `from`, so that later
// changes of the working directory do not matter. Returns failed_precondition for a relative path
// if `from` is empty, which means that the working directory was removed.
Status make_paths_absolute(Config& config, const std::filesystem::path& from);

// Returns "key = value" for every setting; apply_text() reads the text back.
std::string text(const Config& config);

// Returns a hash that is equal on two ranks exactly if all settings that must be equal are equal.
// run.log and run.log_width do not count. A folder counts only as set or unset.
std::uint64_t fingerprint(const Config& config);

// Returns whether the policy's mode is a setting of a section, not an entry of
// Config::policy_modes.
bool has_mode_setting(std::string_view policy);

// Returns the mode of a policy by its name. An unset `memory.mode` is on if a budget or a forced
// action is set; an unset `precision.mode` is on if any block may run in another format than fp32.
// A policy of the program without a mode is on.
PolicyMode mode_of(const Config& config, std::string_view policy);

}  // namespace cox
