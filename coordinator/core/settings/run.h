// The settings of a run: `run.*`, `blocks.*` (the blocks of a model), `control.*` (the way of
// reports and plans), `http.*` (metrics and status) and `checkpoint.*`. Part of Config; see
// settings.h for the rows. Plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/settings/section.h"
#include "coordinator/core/status.h"

namespace cox {

enum class MaskPath : std::uint8_t { automatic = 0, mpi = 1, nccl = 2 };
enum class ControlPath : std::uint8_t { automatic = 0, mailbox = 1, mpi = 2 };
// The device for training. automatic: CUDA if every rank has a device, else the CPU.
enum class DeviceSetting : std::uint8_t { automatic = 0, cpu = 1, cuda = 2 };
enum class LogLevel : std::uint8_t { debug = 0, info = 1, warning = 2, error = 3, quiet = 4 };
inline constexpr std::string_view kLogLevelNames[] = {"debug", "info", "warning", "error", "quiet"};

struct RunConfig {
  std::string name = "run";
  std::string directory;  // run directory; empty = none
  LogLevel log = LogLevel::info;
  std::uint32_t log_width = 0;  // longest line of level info, in bytes; 0 = no limit
  DeviceSetting device = DeviceSetting::automatic;
  bool allow_other_programs = false;  // ranks may run programs of other names
  std::uint32_t warmup_steps = 0;     // left out of timing statistics
  double host_seconds = 0.1;  // between samples of process and machine, for host.jsonl; 0 = none
  std::uint64_t seed = 1;
  double price_per_device_hour = 0;  // of one rank's device, in any unit; 0 = not given
  double peak_flops_per_device = 0;  // FLOP/s that one rank's device can do; 0 = not given
};
std::vector<Setting<RunConfig>> run_settings();

struct BlocksConfig {
  // Modules that are blocks, by patterns of their paths. Empty = the program's choice, or else the
  // elements of the largest container of equal modules.
  std::vector<std::string> modules;
  std::vector<std::string> scopes;  // names that the program opens by itself (coxswain/block.h)
};
std::vector<Setting<BlocksConfig>> blocks_settings();

struct ControlConfig {
  ControlPath path = ControlPath::automatic;
  MaskPath masks = MaskPath::automatic;  // plans over NCCL if all ranks have a device
  double nccl_seconds = 60;              // limit for NCCL's start, and for sending one mask
  std::uint32_t ranks_per_node = 0;      // 0 = by the machine; else pretended (tests)
  double late_seconds = 0.5;             // a rank without a report for that long misses its round
  double wait_seconds = 3600;            // a rank that delays the others for longer ends the job
  std::string journal;                   // file; empty = in the run directory
};
std::vector<Setting<ControlConfig>> control_settings();

struct HttpConfig {
  bool enabled = true;
  std::string host = "127.0.0.1";
  std::uint16_t port = 9464;  // 0 = any free one, printed at start; a busy one is an error
  std::string token;          // required from clients; empty = no token
  bool open = false;          // listens beyond this machine without a token
};
std::vector<Setting<HttpConfig>> http_settings();

struct CheckpointConfig {
  std::string directory;              // empty = none
  std::uint32_t every_steps = 0;      // 0 = only at the end and on SIGTERM
  std::uint32_t keep = 2;             // newest ones kept, >= 1
  bool resume = false;                // continue from the newest whole one
  bool strict = false;                // refuse to resume when the newest save is damaged
  bool partial = false;               // resume from another model's save the parts that fit
  std::uint32_t snapshot_rounds = 0;  // rounds between snapshots for rollbacks; 0 = none
};
std::vector<Setting<CheckpointConfig>> checkpoint_settings();

// Returns invalid_argument for settings that contradict each other.
Status validate(const BlocksConfig& config);
Status validate(const HttpConfig& config);
Status validate(const CheckpointConfig& config);

}  // namespace cox
