// The command line of the example. Plain value; parsing is pure. `--cox.*` flags were taken out by
// the session before, and with them --memory-budget and --precision, which are short for two.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/examples/gpt2/config.h"
#include "sdk/examples/gpt2/slowdown.h"

namespace gpt2 {

struct Options {
  std::string text;        // file to train on, byte by byte
  std::string reference;   // folder to check against instead of training
  std::string save_model;  // folder for config.json and model.safetensors at the end
  std::string load_model;  // folder to start from
  std::uint64_t steps = 750;
  std::int64_t batch = 16;       // sequences a step over all ranks
  std::int64_t micro_batch = 0;  // sequences computed at once, 0 = a rank's whole share
  std::int64_t length = 128;     // bytes a sequence
  double learning_rate = 1e-3;
  double clip_norm = 1.0;
  std::vector<Slowdown> slow;  // ranks that are made slower
  bool hold = false;           // keep the status page up at the end until SIGTERM or Ctrl-C
  bool help = false;
  Config model;  // shape of a fresh model
};

// The arguments for the session: `--memory-budget SIZE` becomes `--cox.memory.budget=SIZE`, and
// `--precision FORMAT` becomes `--cox.precision.format=FORMAT`.
std::vector<std::string> session_arguments(std::span<const char* const> arguments);

// invalid_argument for an unknown option or a value out of range.
cox::Result<Options> parse_options(const std::vector<std::string>& arguments);

std::string usage();

}  // namespace gpt2
