// Runs a small program under plain autograd and under tapes, and compares all results bit for bit:
// loss, gradients, buffers and the random state. Programs are functions of a Workbench. A call of
// cut() in a taped run begins another region.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "sdk/src/stream/tape.h"

namespace cox::detail {

struct TapePlan {
  bool is_taped = true;
  double keep_probability = 0;  // for each saved tensor
  std::uint64_t seed = 1;       // for these choices
  TapeRules rules{};
  bool holds_tapes = false;  // beyond the graph, to count replays in backward
};

// Returns the device of programs, which is that of tensors without a named device.
at::Device trial_device();

// Uses up numbers of graph nodes, as so many operators do. Autograd runs the node with the highest
// number first, and each thread numbers its own nodes. Gradients of gradients on a device have
// nodes of two threads, so the order of their sums depends on the numbers used so far. A trial
// therefore begins with its own thread far ahead.
void take_node_numbers(int count);

class Workbench {
 public:
  explicit Workbench(const TapePlan& plan);
  ~Workbench();
  Workbench(const Workbench&) = delete;
  Workbench& operator=(const Workbench&) = delete;

  at::Tensor x;                       // [4, 8], requires gradients
  std::array<at::Tensor, 4> weights;  // [8, 8], require gradients
  at::Tensor mean, variance;          // [8], buffers
  std::array<float, 32> raw{};        // memory of the program itself
  std::vector<at::Tensor> held;       // beyond the backward pass

  at::Tensor rows(std::size_t weight) const { return weights[weight].narrow(0, 0, 4); }  // [4, 8]
  // Begins another region.
  void cut();
  // Ends the last region and the recording.
  void stop();
  TapeCounts counts() const;  // all regions so far

 private:
  const TapePlan plan_;
  std::mt19937_64 choices_;
  std::vector<std::weak_ptr<Tape>> tapes_;
  std::vector<std::shared_ptr<Tape>> held_tapes_;
  std::shared_ptr<Tape> tape_;
  std::optional<TapeScope> scope_;
  TapeCounts counts_;
};

struct Program {
  const char* name;
  std::function<at::Tensor(Workbench&)> loss;
  std::function<void(Workbench&)> before_backward = {};
};

struct TrialOutcome {
  std::vector<at::Tensor> bits;
  std::string error;  // the exception's text; empty if there is none
  TapeCounts counts;
};

enum class Backward { once, twice, thrice_differentiated };
TrialOutcome run_program(const Program& program, const TapePlan& plan, Backward backward);

// Returns the first difference; empty if there is none.
std::string difference(const TrialOutcome& plain, const TrialOutcome& taped);

}  // namespace cox::detail
