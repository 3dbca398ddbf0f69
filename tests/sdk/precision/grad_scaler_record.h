// The recorded sequences of torch's Python GradScaler (grad_scaler.txt, written by
// record_grad_scaler.py), one entry a step.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/core/loss_scale.h"

namespace grad_scaler {

inline constexpr std::array<float, 4> kTarget = {0.5f, -1.25f, 3.0f, 0.0625f};
inline constexpr std::array<float, 4> kStart = {1.0f, 0.75f, -2.0f, 0.33f};

struct Step {
  float factor = 1;  // factor for the loss
  float scale = 0;   // after the step, like all fields below
  std::uint32_t tracker = 0;
  bool skipped = false;
  std::array<float, 4> weights{};  // if recorded
};

struct Sequence {
  std::string name;
  cox::ScalerRules rules;
  std::string optimizer;  // "sgd" or "adamw"
  bool has_weights = false;
  std::vector<Step> steps;
};

// Returns GradScaler's configuration: no floor, no hysteresis, and a largest scale that stops only
// overflow of fp32 (GradScaler keeps a scale whose growth would overflow).
inline cox::ScalerRules rules(float initial, float growth, float backoff, std::uint32_t interval) {
  return {.initial_scale = initial,
          .growth_factor = growth,
          .backoff_factor = backoff,
          .growth_interval = interval,
          .min_scale = 0,
          .max_scale = 0x1p127f,
          .hysteresis = 1,
          .headroom_bits = 0};
}

inline float number(std::istream& in) {
  std::string word;
  in >> word;
  return std::strtof(word.c_str(), nullptr);
}

inline Sequence header(std::istream& in) {
  Sequence sequence;
  in >> sequence.name;
  const float initial = number(in), growth = number(in), backoff = number(in);
  std::uint32_t interval = 0;
  in >> interval >> sequence.optimizer >> sequence.has_weights;
  sequence.rules = rules(initial, growth, backoff, interval);
  return sequence;
}

inline void add_run(std::istream& in, Sequence& sequence) {
  std::uint32_t count = 0;
  Step step;
  in >> count;
  step.factor = number(in);
  step.scale = number(in);
  in >> step.tracker >> step.skipped;
  if (sequence.has_weights) {
    for (float& weight : step.weights) weight = number(in);
  }
  for (std::uint32_t i = 0; i < count; ++i, ++step.tracker) sequence.steps.push_back(step);
}

inline std::vector<Sequence> read(const std::string& path) {
  std::ifstream file(path);
  std::vector<Sequence> sequences;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string kind;
    in >> kind;
    if (kind == "sequence") sequences.push_back(header(in));
    if (kind == "run") add_run(in, sequences.back());
  }
  return sequences;
}

}  // namespace grad_scaler
