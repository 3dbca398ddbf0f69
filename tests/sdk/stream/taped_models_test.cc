// Every unchanged model of models.h, trained for two steps with and without a tape for each visit
// of a block. Losses, gradients, buffers, parameters and the random state have the same bits,
// whatever the tapes drop. No memory stays after a pass.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <malloc.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sdk/src/stream/block_map.h"
#include "tests/sdk/stream/models.h"
#include "tests/sdk/stream/tape_trial.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;
using stream_models::ModelCase;

struct RegionPlan {
  enum class Span { forward, step };  // the content of the scope
  double keep_probability = 0;        // for each saved tensor
  std::uint64_t seed = 1;
  Span span = Span::forward;
};

// Assigns the operators of its thread to one tape after another. A new tape begins when an operator
// touches a parameter of another block.
class Regions final : public OperatorListener, public SavedTensorFrame {
 public:
  Regions(const BlockMap& blocks, const RegionPlan& plan) : blocks_(blocks), plan_(plan) {
    begin_region();
  }
  ~Regions() override { end_region(); }
  TapeCounts counts() const { return counts_; }

  void touch(const c10::OperatorHandle&, const Tensor& argument) override {
    if (!argument.has_storage()) return;
    const auto block =
        blocks_.block_of(argument.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!block || block == block_) return;
    block_ = block;
    end_region();
    begin_region();
  }
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override { tape_->begin(call); }
  void end(std::span<const c10::IValue> results) override { tape_->end(results); }
  void failed() noexcept override { tape_->failed(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return tape_->make_hooks();
  }

 private:
  void begin_region() {
    const auto choice = [random = std::mt19937_64(plan_.seed + 100 * regions_++),
                         keep = plan_.keep_probability](const SavedValue&) mutable {
      return std::uniform_real_distribution<>(0, 1)(random) < keep ? Hold::keep : Hold::drop;
    };
    tape_ = Tape::make(block_ ? "block " + blocks_.name(*block_) : "before all blocks", choice);
  }
  void end_region() {
    tape_->close();
    const TapeCounts counts = tape_->counts();
    counts_.operators += counts.operators;
    counts_.kept += counts.kept;
    counts_.dropped += counts.dropped;
  }

  const BlockMap& blocks_;
  const RegionPlan plan_;
  std::uint64_t regions_ = 0;
  std::optional<BlockId> block_;
  std::shared_ptr<Tape> tape_;
  TapeCounts counts_;
};

// Records during its lifetime.
class RegionScope {
 public:
  RegionScope(const BlockMap& blocks, const RegionPlan& plan) : regions_(blocks, plan) {}
  const Regions& regions() const { return regions_; }

 private:
  Regions regions_;
  SavedTensorScope saving_{regions_};
  StreamScope stream_{{&regions_}};
};

// bf16, with the cast cache of a user's autocast.
class AutocastScope {
 public:
  AutocastScope() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~AutocastScope() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
};

// The backward passes of a step.
enum class Way {
  once,
  accumulated,  // two batches, one backward pass each
  together,     // two batches, one backward pass for both
  retained,     // two backward passes through one graph
};
enum class Casts { none, bf16 };

// A model that is trained repeatedly from its first state.
class Trainee {
 public:
  explicit Trainee(ModelCase model)
      : model_(std::move(model)), blocks_(BlockMap::make(*model_.model, {}).value()) {
    for (const Tensor& tensor : state()) start_.push_back(tensor.detach().clone());
  }
  std::string name() const { return model_.name; }

  // Trains without tapes if there is no plan.
  TrialOutcome train(Way way, Casts casts, const std::optional<RegionPlan>& plan) {
    start_again();
    TrialOutcome outcome;
    torch::optim::SGD optimizer(model_.model->parameters(),
                                torch::optim::SGDOptions(0.02).momentum(0.9));
    try {
      for (std::uint64_t step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        run_step(way, casts, plan, 10 * step, outcome);
        collect(outcome.bits);
        optimizer.step();
      }
    } catch (const std::exception& error) {
      outcome.error = std::string(error.what()).substr(0, 200);
    }
    for (const Tensor& tensor : state()) outcome.bits.push_back(tensor.detach().clone());
    outcome.bits.push_back(at::detail::getDefaultCPUGenerator().get_state());
    return outcome;
  }

 private:
  std::vector<Tensor> state() const {
    std::vector<Tensor> tensors = model_.model->parameters();
    for (const Tensor& buffer : model_.model->buffers()) tensors.push_back(buffer);
    return tensors;
  }

  void start_again() {
    const at::NoGradGuard no_grad;
    const std::vector<Tensor> now = state();
    for (std::size_t i = 0; i < now.size(); ++i) now[i].copy_(start_[i]);
    torch::manual_seed(7);
  }

  void run_step(Way way, Casts casts, const std::optional<RegionPlan>& plan,
                std::uint64_t first_batch, TrialOutcome& outcome) {
    std::optional<RegionScope> whole;
    const bool is_whole = plan && plan->span == RegionPlan::Span::step;
    if (is_whole) whole.emplace(blocks_, *plan);
    const auto loss_of = [&](std::uint64_t batch) {
      std::optional<RegionScope> forward;
      if (plan && !is_whole) forward.emplace(blocks_, *plan);
      std::optional<AutocastScope> autocast;
      if (casts == Casts::bf16) autocast.emplace();
      const Tensor loss = model_.loss(first_batch + batch);
      if (forward) outcome.counts.dropped += forward->regions().counts().dropped;
      outcome.bits.push_back(loss.detach());
      return loss;
    };
    if (way == Way::together) {
      const Tensor first = loss_of(1);
      (first + loss_of(2)).backward();
      return;
    }
    const Tensor loss = loss_of(1);
    if (way == Way::retained) loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    if (way == Way::accumulated) loss_of(2).backward();
  }

  void collect(std::vector<Tensor>& bits) const {
    for (const Tensor& parameter : model_.model->parameters())
      bits.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
    for (const Tensor& buffer : model_.model->buffers()) bits.push_back(buffer.clone());
  }

  ModelCase model_;
  BlockMap blocks_;
  std::vector<Tensor> start_;
};

TEST_SUITE_BEGIN("taped models");

struct TrainingCase {
  std::string text;
  Way way;
  Casts casts;
  std::uint64_t seeds;  // plans of each probability
};

const std::vector<TrainingCase> kTrainings = {
    {"one batch a step", Way::once, Casts::none, 5},
    {"two batches a step", Way::accumulated, Casts::none, 2},
    {"two batches, one backward pass", Way::together, Casts::none, 2},
    {"a retained graph", Way::retained, Casts::none, 2},
    {"one batch, bf16 autocast", Way::once, Casts::bf16, 2},
    {"two batches, bf16 autocast", Way::accumulated, Casts::bf16, 2},
    {"a retained graph, bf16 autocast", Way::retained, Casts::bf16, 1},
};

TEST_CASE("models trained under random plans have the bits of plain training") {
  torch::set_num_threads(1);
  REQUIRE(install_saved_tensor_engine().ok());
  int plans = 0;
  for (ModelCase& model : stream_models::all_models(5)) {
    Trainee trainee(std::move(model));
    for (const TrainingCase& training : kTrainings) {
      const TrialOutcome expected = trainee.train(training.way, training.casts, std::nullopt);
      REQUIRE_MESSAGE(expected.error == "", trainee.name() << ", " << training.text);
      for (std::uint64_t i = 0; i < 3 * training.seeds; ++i) {
        const RegionPlan plan{
            .keep_probability = 0.3 * static_cast<double>(i % 3),
            .seed = i + 1,
            .span = i % 2 == 0 ? RegionPlan::Span::forward : RegionPlan::Span::step};
        const TrialOutcome taped = trainee.train(training.way, training.casts, plan);
        const std::string different = difference(expected, taped);
        CHECK_MESSAGE(different == "", trainee.name() << ", " << training.text << ", kept "
                                                      << plan.keep_probability << ", seed "
                                                      << plan.seed << ": " << different);
        if (plan.span == RegionPlan::Span::forward) CHECK(taped.counts.dropped > 0);
        ++plans;
      }
    }
  }
  CHECK(plans >= 300);
}

// y = (x * w).tanh() with its own backward pass.
struct OwnTanh : torch::autograd::Function<OwnTanh> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& w) {
    const Tensor y = (x * w).tanh();
    context->save_for_backward({x, w, y});
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor inner = gradients[0] * (1 - saved[2] * saved[2]);
    return {inner * saved[1], inner * saved[0]};
  }
};

// Returns a tensor that another thread made from one of the region's, so the history leads back
// into the region.
Tensor made_on_another_thread(const Tensor& from) {
  Tensor made;
  std::thread([&] { made = from.sigmoid() * from; }).join();
  return made;
}

enum class Ending { backward, thrown_away };

std::weak_ptr<Tape> taped_pass(const Tensor& x, const Tensor& w, Ending ending) {
  const std::shared_ptr<Tape> tape = Tape::make("block test");
  Tensor loss;
  {
    const TapeScope scope(*tape);
    const Tensor h = x.matmul(w);
    const Tensor custom = OwnTanh::apply(h, w.narrow(0, 0, x.size(0)));
    loss = torch::gelu(custom * made_on_another_thread(h)).sum();
  }
  tape->close();
  if (ending == Ending::backward) loss.backward();
  return tape;
}

std::size_t heap_bytes() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

TEST_CASE("a thousand taped passes leave nothing in memory") {
  torch::set_num_threads(1);
  REQUIRE(install_saved_tensor_engine().ok());
  const Tensor x = torch::randn({16, 32}).requires_grad_();
  const Tensor w = torch::randn({32, 32}).requires_grad_();
  constexpr int kPart = 400;
  const auto passes = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const Ending ending = i % 4 == 0 ? Ending::thrown_away : Ending::backward;
      REQUIRE(taped_pass(x, w, ending).expired());
    }
  };
  passes(100);
  // malloc grows by some thousand bytes before it settles; a leak grows in every part.
  auto least = std::numeric_limits<std::int64_t>::max();
  for (int part = 0; part < 3; ++part) {
    const auto before = static_cast<std::int64_t>(heap_bytes());
    passes(kPart);
    least = std::min(least, static_cast<std::int64_t>(heap_bytes()) - before);
  }
  CHECK(least < 8 * kPart);  // bytes: one number kept in each pass; a tensor would be 0.8 MB
}

// ---- Limits stated on the page about the stream.

struct Gradient {
  Tensor value;
  std::string error;
};

// Returns the gradient of `loss_of` under a tape that drops everything, or without a tape.
template <class Loss>
Gradient gradient_of(const Tensor& x, const Loss& loss_of, const std::shared_ptr<Tape>& tape) {
  x.mutable_grad().reset();
  Gradient gradient;
  try {
    const Tensor loss = loss_of(tape);
    loss.backward();
    gradient.value = x.grad().clone();
  } catch (const std::exception& error) {
    gradient.error = error.what();
  }
  return gradient;
}

TEST_CASE("a tensor from before the region that is changed after it is an error with the block") {
  REQUIRE(install_saved_tensor_engine().ok());
  const Tensor x = torch::randn({4, 8}).requires_grad_();
  const auto loss_of = [&](const std::shared_ptr<Tape>& tape) {
    const Tensor in = x * 1.0;
    Tensor out;
    {
      std::optional<TapeScope> scope;
      if (tape != nullptr) scope.emplace(*tape);
      out = torch::gelu(in + 2);
    }
    in.detach().add_(1);  // no operator saved it, so autograd accepts the write
    return out.sum();
  };
  CHECK(gradient_of(x, loss_of, nullptr).error == "");
  const std::string error = gradient_of(x, loss_of, Tape::make("block h.0")).error;
  CHECK(error.find("block h.0: a tensor of sizes [4, 8]") != std::string::npos);
  CHECK(error.find("changed in place") != std::string::npos);
}

TEST_CASE("a parameter that gets another storage after the region is an error with the block") {
  REQUIRE(install_saved_tensor_engine().ok());
  Tensor w = torch::randn({4, 8}).requires_grad_();
  const auto tape = Tape::make("block h.0");
  Tensor out;
  {
    const TapeScope scope(*tape);
    out = torch::gelu(w + 2);
  }
  w.set_data(torch::randn({4, 8}));
  try {
    out.sum().backward();
    FAIL("the new values were read for those of the forward pass");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("another storage") != std::string::npos);
  }
}

TEST_CASE("a script whose optimiser is on has the same gradient, or an error that says why not") {
  REQUIRE(install_saved_tensor_engine().ok());
  const auto script = torch::jit::compile(R"JIT(
def gate(x):
    return torch.tanh(x) * torch.sigmoid(x) + x * torch.relu(x)
)JIT");
  const Tensor x = torch::randn({4, 8}).requires_grad_();
  const auto loss_of = [&](const std::shared_ptr<Tape>& tape) {
    std::optional<TapeScope> scope;
    if (tape != nullptr) scope.emplace(*tape);
    return script->run_method("gate", x + 0).toTensor().sum();
  };
  const torch::jit::GraphOptimizerEnabledGuard optimised(true);
  // The first runs are profiled and round differently.
  for (int run = 0; run < 3; ++run) gradient_of(x, loss_of, nullptr);
  for (int run = 0; run < 4; ++run) {
    const Gradient expected = gradient_of(x, loss_of, nullptr);
    REQUIRE(expected.error == "");
    const Gradient taped = gradient_of(x, loss_of, Tape::make("block script"));
    const bool is_told = taped.error.find("saved different tensors") != std::string::npos;
    const bool is_equal = taped.value.defined() && torch::equal(taped.value, expected.value);
    CHECK_MESSAGE((is_told || is_equal), taped.error);
  }
}

TEST_SUITE_END();

}  // namespace
