// The options of e2e_trainer. Steps, ranks and blocks count from 0.
//   e2e_trainer [--steps N] [--size N] [--samples DIR] [--sleep-ms N] [--nan-steps FIRST LAST]
//               [--throw-on RANK] [--throw-at STEP] [--odd-model-on RANK] [--blocks N] [--width N]
//               [--inject STEP RANK BLOCK forward|backward FACTOR]...
//               [--request STEP RANK NAME force|forbid|release FORMAT ROUNDS]... [--hold]
//               [--device-ms FP32 BF16 FP16 FP8] [--slow RANK FACTOR FROM STEPS]
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/precision_format.h"

namespace e2e {

// A block multiplies one of its values, or the value's gradient, in one step on one rank.
struct Injection {
  std::uint64_t step = 0;
  int rank = 0;
  std::size_t block = 0;
  bool is_backward = false;
  float factor = 1;
};

// A rank requests a format at the beginning of a step.
struct FormatRequest {
  std::uint64_t step = 0;
  int rank = 0;
  std::string block;
  std::string what;
  cox::Precision format = cox::Precision::fp32;
  std::uint32_t rounds = 0;
};

// From a step on, a rank's device takes `factor` times as long, until its block was in 8 bits for
// some steps. Training ends when the block has left 8 bits again.
struct SlowDevice {
  int rank = -1;
  double factor = 1;
  std::uint64_t from = 0;
  std::uint64_t steps_in_8_bits = 0;
};

struct Options {
  std::uint64_t steps = 50;
  std::int64_t size = 100;
  std::string samples;  // folder for rank<k>.txt, a line "step: sample sample ..." each step
  int sleep_ms = 0;
  std::uint64_t first_nan = 1;  // none by default
  std::uint64_t last_nan = 0;
  int throw_on = -1;
  std::uint64_t throw_at = 0;
  int odd_model_on = -1;
  std::size_t blocks = 0;   // 0: a model without blocks
  std::int64_t width = 16;  // for a model with blocks
  std::vector<Injection> injections;
  std::vector<FormatRequest> requests;
  // The device time of the first block, by format; none by default.
  std::array<double, cox::kPrecisions> device_ms{};
  SlowDevice slow;
  bool hold = false;  // serve the status page after the last step, until SIGTERM
};

Options parse(const std::vector<std::string>& arguments);

}  // namespace e2e
