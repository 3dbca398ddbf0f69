// The command line of the example. Plain values; parsing is pure, except CLI11's check that a file
// exists. Built without LibTorch, whose headers carry a {fmt} of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "sdk/examples/gpt2/config.h"
#include "sdk/examples/gpt2/slowdown.h"

namespace gpt2 {

inline constexpr std::uint32_t kLineWidth = 100;  // bytes of a line of the story, and of its tables

// Faults are the faults to plant in a run, so that a person sees Coxswain's findings.
// planted_faults.h plants them; slowdown.h describes slow ranks.
struct Faults {
  double slow_data_seconds = 0;  // added to the loading of a step's batch, on every rank
  double slow_save_seconds = 0;  // added to a save
  std::int64_t leak_mib = 0;     // leaked in each step, on every rank
  // Steps whose gradients are not finite: both ends included, from 0. None if `from` is above `to`.
  std::uint64_t overflow_from = 1;
  std::uint64_t overflow_to = 0;

  bool overflows(std::uint64_t step) const { return overflow_from <= step && step <= overflow_to; }
};

struct Options {
  std::string text;        // file to train on, byte by byte
  std::string reference;   // folder to check against instead of training
  std::string save_model;  // folder for config.json and model.safetensors at the end
  std::string load_model;  // folder to start from
  std::uint64_t steps = 600;
  std::int64_t batch = 16;       // sequences a step over all ranks
  std::int64_t micro_batch = 0;  // sequences computed at once, 0 = a rank's whole share
  std::int64_t length = 128;     // bytes a sequence
  double learning_rate = 1e-3;
  double clip_norm = 1.0;
  std::vector<Slowdown> slow;  // ranks that are slowed down
  Faults faults;
  bool story = false;    // set up a run in which the coordinator has something to do
  bool verbose = false;  // print reasons, intervals and advice in the closing tables
  bool hold = false;     // keep the status page up at the end until SIGTERM or Ctrl-C
  Config model;          // shape of a fresh model

  // Settings of the session that were given by a shorter name: `--memory-budget SIZE` stands for
  // `--cox.memory.budget=SIZE`.
  std::vector<std::string> settings;
  std::string help;  // text to print instead of training; empty = not requested
};

// Moves settings of the session, --cox.KEY=VALUE or --cox.KEY VALUE, out of the arguments.
std::vector<std::string> take_settings(std::vector<std::string>& arguments);

// Parses the arguments, without the program's name and without settings. Returns invalid_argument
// for an unknown option or a value out of range.
cox::Result<Options> parse_options(std::vector<std::string> arguments);

// Returns the program's own settings; the user's settings override them.
cox::Config default_config(const Options& options);

// Returns the ranks that are slowed down. If the user names none, a story slows the last of several
// ranks: twice the work in the middle third of the steps.
std::vector<Slowdown> slowdowns_of(const Options& options, int world_size);

}  // namespace gpt2
