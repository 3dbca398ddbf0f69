#include "recorded_loop.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "coordinator/core/text.h"

#include <doctest/doctest.h>

namespace sdk_test {
namespace {

using namespace cox;

class Script final : public Policy {
 public:
  explicit Script(std::map<std::uint64_t, PlanChange> changes) : changes_(std::move(changes)) {}
  PolicyKind kind() const override { return PolicyKind::custom; }
  std::string_view name() const override { return "script"; }
  PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
    PolicyOutput output;
    output.state = std::move(state);
    const auto due = changes_.find(input.signals.round.value());
    if (due == changes_.end()) return output;
    Reason why;
    why.policy = PolicyKind::custom;
    why.code = ReasonCode::custom;
    why.text = "the script says so";
    output.proposals.push_back({due->second, why, Motive::necessity});
    return output;
  }

 private:
  std::map<std::uint64_t, PlanChange> changes_;
};

}  // namespace

PolicySet scripted(std::map<std::uint64_t, PlanChange> changes) {
  return {std::make_shared<Script>(std::move(changes))};
}

PolicySet holding() {
  return scripted({{kHoldRound, HoldUntil{RoundId(kHoldRound + 10)}}});
}

TwoBlocksImpl::TwoBlocksImpl() {
  torch::manual_seed(3);
  a = register_module("a", torch::nn::Linear(4, 64));
  b = register_module("b", torch::nn::Linear(4, 64));
  calls = register_buffer("calls", torch::zeros({}, torch::kLong));
  total = register_buffer("total", torch::zeros({}));
}

at::Tensor TwoBlocksImpl::forward(const at::Tensor& x) {
  calls.add_(1);
  total.add_(x.sum());
  return a(x) + b(2 * x);
}

at::Tensor inputs(std::int64_t rows, std::int64_t first) {
  return torch::remainder(
      torch::arange(4 * rows, torch::kFloat).view({rows, 4}) + static_cast<double>(first), 5);
}

at::Tensor mean_of(const at::Tensor& outputs) {
  return outputs.sum() / static_cast<double>(outputs.size(0));
}

at::Tensor loss_of(TwoBlocks& model, const at::Tensor& x) {
  return mean_of(model(x));
}

bool is_last() {
  return Recording::rank() == Recording::world_size() - 1;
}

void note_sums(Recording& recording, const char* of, const std::vector<at::Tensor>& tensors) {
  std::string text = of;
  for (const at::Tensor& each : tensors)
    text += " " + fixed(each.detach().to(at::kDouble).sum().item<double>(), 1);
  recording.note(std::move(text));
}

void note_weights(Recording& recording, const torch::nn::Module& model) {
  note_sums(recording, "weights", model.parameters());
  note_sums(recording, "buffers", model.buffers());
}

void check_record(const Recording& recording, const std::string& kind) {
  const std::string text = recording.text_of_all();
  if (Recording::rank() != 0) return;
  const auto path = std::filesystem::path(STEP_RECORDS) /
                    (kind + "." + std::to_string(Recording::world_size()) + ".txt");
  const char* mode = std::getenv("STEP_RECORDS");
  if (mode != nullptr && std::string_view(mode) == "write") {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  std::stringstream expected;
  expected << file.rdbuf();
  std::stringstream found(text);
  std::string expected_line, found_line;
  for (int line = 1; std::getline(expected, expected_line); ++line) {
    if (!std::getline(found, found_line)) found_line = "the end of the record";
    if (found_line == expected_line) continue;
    // Reports the first difference. A session must not end by an exception on one rank.
    FAIL_CHECK(path.string(), ":", line, ": expected ", expected_line, ", found ", found_line,
               "; the whole record found:\n", text);
    return;
  }
  CHECK_MESSAGE(!std::getline(found, found_line), "not in ", path.string(), ": ", found_line);
}

}  // namespace sdk_test
