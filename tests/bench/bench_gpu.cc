// The cost and gain of Coxswain on a GPU, beside loops without it in the same process: a step of
// GPT-2 (C2), memory budgets of a Llama of 1B (M6), formats of blocks of Llama-8B's shape (N4).
//
//   bench_gpu C2|M6|N4 [--quick]
#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/clip.h"
#include "coxswain/error.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/memory/tensor_memory.h"
#include "tests/bench/line.h"
#include "tests/bench/llama.h"

namespace cox::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Flags = std::vector<std::string>;

struct Extent {
  std::uint64_t settled;  // steps before the clock runs
  std::uint64_t windows;  // timed
  std::uint64_t steps;    // in a window
};

// The training task: the batches, and a model with its loss, made anew for each loop.
struct Task {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const Batch&)> loss;
  std::int64_t rows;
  std::int64_t length;
  std::int64_t words;
  double tokens() const { return static_cast<double>(rows * length); }
};

class RandomTokens final : public Dataset {
 public:
  explicit RandomTokens(const Task& task)
      : tokens_((torch::manual_seed(5),
                 at::randint(task.words, {4 * task.rows, task.length + 1}, at::kLong))) {}
  std::int64_t size() const override { return tokens_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override {
    const at::Tensor rows = tokens_.index_select(
        0, at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size())));
    const std::int64_t length = rows.size(1) - 1;
    return {rows.narrow(1, 0, length).contiguous(), rows.narrow(1, 1, length).contiguous(),
            rows.size(0)};
  }

 private:
  at::Tensor tokens_;
};

struct Figures {
  std::vector<double> seconds;   // a step's seconds, one entry a window
  std::int64_t start_bytes = 0;  // live before a step
  std::int64_t peak_bytes = 0;   // in the windows
  std::vector<double> losses;
  double best() const { return *std::ranges::min_element(seconds); }
  double median() const { return quantile(seconds, 0.5); }
};

void wait() {
  c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(0);
}

// Times windows of steps from outside. Called before each step, and once after the last.
class Stopwatch {
 public:
  explicit Stopwatch(const Extent& extent) : extent_(extent) {}
  void next_step() {
    const std::uint64_t step = steps_++;
    if (step < extent_.settled || (step - extent_.settled) % extent_.steps != 0) return;
    wait();
    const Clock::time_point now = Clock::now();
    if (step == extent_.settled) {
      figures_.start_bytes = memory_.count().live_bytes;
      memory_.reset_peak();
    } else {
      const double spent = std::chrono::duration<double>(now - since_).count();
      figures_.seconds.push_back(spent / static_cast<double>(extent_.steps));
    }
    since_ = Clock::now();
    figures_.peak_bytes = memory_.count().peak_bytes;
  }
  Figures& figures() { return figures_; }
  static std::uint64_t steps_of(const Extent& extent) {
    return extent.settled + extent.windows * extent.steps;
  }

 private:
  const Extent extent_;
  const detail::TensorMemory memory_{c10::Device(at::kCUDA, 0)};
  std::uint64_t steps_ = 0;
  Clock::time_point since_;
  Figures figures_;
};

Session start(Flags flags) {
  flags.insert(flags.end(),
               {"--cox.run.device=cuda", "--cox.http.enabled=off", "--cox.run.log=warning"});
  std::vector<const char*> argv = {"bench_gpu"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return Session::start(static_cast<int>(argv.size()), argv.data());
}

constexpr double kClip = 1.0;
constexpr AdamWOptions kAdamW{.lr = 1e-4};

// Turns on autocast as a user does.
class Autocast {
 public:
  explicit Autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool on_;
};

// Runs a user's own loop that reads its losses and clips. `adopt` gets the model before the first
// step. Computes in bf16 by autocast, or in the formats of the written program.
enum class Format { written, autocast };
Figures run_own_loop(const Task& task, const Extent& extent, Format format,
                     const std::function<void(torch::nn::Module&)>& adopt = {}) {
  torch::manual_seed(3);
  const auto model = task.make();
  model->to(at::Device(at::kCUDA, 0));
  if (adopt) adopt(*model);
  AdamW optimizer(model->parameters(), kAdamW);
  const RandomTokens data(task);
  Stopwatch watch(extent);
  for (std::uint64_t step = 0; step < Stopwatch::steps_of(extent); ++step) {
    watch.next_step();
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < task.rows; ++r)
      rows.push_back((static_cast<std::int64_t>(step) * task.rows + r) % data.size());
    const Batch batch = data.get(rows);
    const auto there = [](const at::Tensor& tensor) {
      return tensor.pin_memory().to(at::Device(at::kCUDA, 0), true);
    };
    const Batch moved{there(batch.inputs), there(batch.targets), batch.samples};
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast scope(format == Format::autocast);
      loss = task.loss(*model, moved);
    }
    loss.backward();
    clip_by_global_norm(model->parameters(), kClip);
    optimizer.step();
    watch.figures().losses.push_back(loss.item<double>());
  }
  watch.next_step();
  return watch.figures();
}

Figures run_adopted(const Task& task, const Extent& extent, const Flags& flags) {
  Session session = start(flags);
  Figures figures = run_own_loop(task, extent, Format::written,
                                 [&](torch::nn::Module& model) { session.adopt(model); });
  session.finish();
  return figures;
}

Figures run_trainer(const Task& task, const Extent& extent, const Flags& flags) {
  Session session = start(flags);
  torch::manual_seed(3);
  const auto model = task.make();
  model->to(session.device());
  AdamW optimizer(model->parameters(), kAdamW);
  TrainerOptions options;
  options.global_batch = task.rows;
  options.steps = Stopwatch::steps_of(extent);
  options.clip_norm = kClip;
  options.prefetch = 2;
  Trainer trainer(session, *model, optimizer, options);
  const RandomTokens data(task);
  Stopwatch watch(extent);
  for (auto& step : trainer.steps(data)) {
    watch.next_step();
    step.backward(step.forward([&] { return task.loss(*model, step.batch()); }));
    step.update();
    watch.figures().losses.push_back(trainer.progress().loss);
  }
  watch.next_step();
  session.finish();
  return watch.figures();
}

Task gpt2_task(std::int64_t layers, std::int64_t width, std::int64_t rows, std::int64_t length) {
  gpt2::Config config;
  config.vocab_size = 50304;
  config.n_positions = length;
  config.n_embd = width;
  config.n_layer = layers;
  config.n_head = width / 64;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  return {"gpt2",
          [config] { return gpt2::Gpt2(config).ptr(); },
          [](torch::nn::Module& model, const Batch& batch) {
            return model.as<gpt2::Gpt2Impl>()->loss(batch.inputs, batch.targets);
          },
          rows,
          length,
          config.vocab_size};
}

Task llama_task(const std::string& name, const LlamaShape& shape, std::int64_t rows) {
  return {name,
          [shape] { return Llama(shape).ptr(); },
          [](torch::nn::Module& model, const Batch& batch) {
            return model.as<LlamaImpl>()->loss(batch.inputs, batch.targets);
          },
          rows,
          shape.length,
          shape.words};
}

void tell(const std::string& what, const Task& task, const Figures& figures) {
  std::fprintf(
      stderr, "%-28s %-14s %8.2f ms  %8.1f ktokens/s  start %7.2f GiB  peak %7.2f GiB  loss %.4f\n",
      what.c_str(), task.name.c_str(), 1e3 * figures.median(),
      1e-3 * task.tokens() / figures.median(), static_cast<double>(figures.start_bytes) / (1 << 30),
      static_cast<double>(figures.peak_bytes) / (1 << 30), figures.losses.back());
}

const std::string kBf16 = "--cox.precision.format=bf16";

// Arms run in turn, in reverse order every other time.
void measure_cost(Effort effort) {
  const Extent extent = effort == Effort::quick ? Extent{6, 2, 10} : Extent{8, 4, 20};
  for (const Task& task : {gpt2_task(12, 768, 8, 1024), gpt2_task(4, 128, 4, 128)}) {
    std::vector<double> adopted, trainer, narrow;
    for (int round = 0; round < (effort == Effort::quick ? 1 : 2); ++round) {
      const Figures own = run_own_loop(task, extent, Format::written);
      const Figures with = run_adopted(task, extent, {});
      const Figures whole = run_trainer(task, extent, {});
      const Figures cast = run_own_loop(task, extent, Format::autocast);
      const Figures formats = run_trainer(task, extent, {kBf16});
      tell("own loop, fp32", task, own);
      tell("adopted, fp32", task, with);
      tell("Trainer, fp32", task, whole);
      tell("own loop, autocast", task, cast);
      tell("Trainer, bf16", task, formats);
      adopted.push_back(with.median() / own.median());
      trainer.push_back(whole.median() / own.median());
      narrow.push_back(formats.median() / cast.median());
    }
    const auto line = [&](const char* what, std::vector<double> ratios) {
      Line("C2", quantile(std::move(ratios), 0.5), "ratio")
          .with("what", what)
          .with("model", std::to_string(task.tokens()) + " tokens a step")
          .print();
    };
    line("adopted loop over the same loop alone, on a GPU", adopted);
    line("Trainer over a loop of one's own, on a GPU", trainer);
    line("Trainer in bf16 over a loop of one's own under autocast, on a GPU", narrow);
  }
}

std::string bytes_text(std::int64_t bytes) {
  return std::to_string(bytes / 1024) + "KiB";
}

// Returns rules for every second layer from the first on.
std::string half_of_layers(std::int64_t layers, const std::string& action) {
  std::string rules = "--cox.memory.force=";
  for (std::int64_t i = 0; i < layers; i += 2)
    rules += (i > 0 ? "," : "") + ("layers." + std::to_string(i) + "=" + action);
  return rules;
}

void measure_memory(Effort effort) {
  const bool is_quick = effort == Effort::quick;
  const Extent extent = is_quick ? Extent{6, 2, 4} : Extent{6, 3, 8};
  const LlamaShape shape{16, 2048, 32, 8, 8192};
  const Task task = llama_task("llama 1B", shape, 2);
  const Figures cast = run_own_loop(task, extent, Format::autocast);
  tell("own loop, autocast", task, cast);
  const auto run = [&](const std::string& what, const Flags& flags) {
    Flags all = flags;
    all.push_back(kBf16);
    const Figures figures = run_trainer(task, extent, all);
    tell(what, task, figures);
    return figures;
  };
  const Figures keep = run("keep", {});
  const Figures whole = run("recompute", {"--cox.memory.force=*=recompute"});
  const std::int64_t held = keep.peak_bytes - keep.start_bytes;
  const Figures half =
      run("budget: half", {"--cox.memory.budget=" + bytes_text(keep.start_bytes + held / 2)});
  const Figures thin = run("budget: recompute + 1 %",
                           {"--cox.memory.budget=" + bytes_text(whole.peak_bytes / 100 * 101)});
  const Figures moved = run("offload: half of the layers",
                            {half_of_layers(shape.layers, "offload"), "--cox.memory.offload=on"});
  const auto line = [&](const char* what, const Figures& of, const Figures& over) {
    return Line("M6", over.median() / of.median(), "ratio")
        .better(Better::higher)
        .with("what", what)
        .with("peak_gib", static_cast<double>(of.peak_bytes) / (1 << 30))
        .with("ms", 1e3 * of.median());
  };
  line("tokens/s at half of the activation peak, over keeping all", half, keep)
      .limit(0.97, Better::higher)
      .print();
  line("tokens/s at full recompute's peak + 1 %, over full recompute", thin, whole)
      .limit(1.06, Better::higher)
      .print();
  line("tokens/s with half of the layers offloaded, over keeping all", moved, keep)
      .limit(0.99, Better::higher)
      .print();
  line("tokens/s of keeping all, over a loop under autocast", keep, cast).print();
  line("tokens/s of full recompute, over keeping all", whole, keep).print();
}

void measure_formats(Effort effort) {
  const bool is_quick = effort == Effort::quick;
  const Extent extent = is_quick ? Extent{6, 2, 5} : Extent{8, 4, 10};
  const Task task = llama_task("4 blocks of 8B", {4, 4096, 32, 8, 14336}, 2);
  const Figures cast = run_own_loop(task, extent, Format::autocast);
  tell("own loop, autocast", task, cast);
  const Figures narrow = run_trainer(task, extent, {kBf16});
  tell("bf16", task, narrow);
  const Figures eight = run_trainer(task, extent, {"--cox.precision.format=fp8"});
  tell("fp8", task, eight);
  const double gap = std::abs(eight.losses.back() / narrow.losses.back() - 1);
  Line("N4", narrow.median() / eight.median(), "ratio")
      .limit(1.30, Better::higher)
      .with("what", "tokens/s in fp8 over bf16")
      .with("ms", 1e3 * eight.median())
      .with("loss_gap", gap)
      .print();
  Line("N4", cast.median() / eight.median(), "ratio")
      .better(Better::higher)
      .with("what", "tokens/s in fp8 over a loop under autocast")
      .print();
  Line("N4", cast.median() / narrow.median(), "ratio")
      .better(Better::higher)
      .with("what", "tokens/s in bf16 over a loop under autocast")
      .print();
}

}  // namespace
}  // namespace cox::bench

int main(int argc, char** argv) try {
  const std::string goal = argc > 1 ? argv[1] : "";
  const cox::bench::Effort effort = cox::bench::effort_of(argc, argv);
  // Must precede LibTorch's first query for CUDA.
  cox::bench::start({}).finish();
  if (goal == "C2") {
    cox::bench::measure_cost(effort);
  } else if (goal == "M6") {
    cox::bench::measure_memory(effort);
  } else if (goal == "N4") {
    cox::bench::measure_formats(effort);
  } else {
    std::fprintf(stderr, "bench_gpu: expected C2, M6 or N4, found '%s'\n", goal.c_str());
    return 2;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_gpu: %s\n", error.what());
  return 1;
}
