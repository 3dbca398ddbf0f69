// E5: the cost of the operator stream and its tape, for an operator, a training step, and in bytes.
// Also whether random programs under tapes give the bits of plain autograd. One thread, by its own
// CPU time, which excludes time of other programs on the core.
#include <malloc.h>
#include <time.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/adamw.h"
#include "coxswain/session.h"
#include "sdk/examples/gpt2/model.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/operator_meter.h"
#include "sdk/src/stream/operator_times.h"
#include "sdk/src/stream/tape.h"
#include "tests/bench/line.h"
#include "tests/sdk/memory/random_plans.h"
#include "tests/sdk/stream/models.h"
#include "tests/sdk/stream/random_programs.h"

namespace cox::bench {
namespace {

using at::Tensor;
using detail::BlockMap;
using detail::OperatorListener;
using detail::StreamScope;
using detail::Tape;
using detail::TapeScope;

double cpu_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// Follows the blocks of a model by looking up every tensor of an operator.
class BlockListener final : public OperatorListener {
 public:
  explicit BlockListener(const torch::nn::Module& model)
      : blocks_(BlockMap::make(model, {}).value()) {}

  void touch(const c10::OperatorHandle&, const Tensor& argument) override {
    if (!argument.has_storage()) return;
    const auto block =
        blocks_.block_of(argument.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (!block || block == current_) return;
    current_ = block;
    ++cuts_;
  }
  int cuts() const { return cuts_; }

 private:
  const BlockMap blocks_;
  std::optional<BlockId> current_;
  int cuts_ = 0;
};

// Counts operators, as a sampled step does.
class MeterListener final : public OperatorListener {
 public:
  bool wants_calls() const override { return true; }
  void begin(const detail::OperatorCall& call) override { meter_.begin(call, BlockId(0)); }
  void end(std::span<const c10::IValue> results) override { meter_.end(results); }
  void failed() noexcept override { meter_.failed(); }

 private:
  detail::OperatorMeter meter_{&detail::steady_ns};
};

Line with_interval(Line line, const Median& centre) {
  return line.with("low_95", centre.low).with("high_95", centre.high);
}

// ---- One operator

enum class Way { hot, other, random, composite };

struct Call {
  const char* name;
  Way way;
  std::function<Tensor()> run;
};

const char* text_of(Way way) {
  switch (way) {
    case Way::hot:
      return "without boxing";
    case Way::other:
      return "boxed";
    case Way::random:
      return "random";
    case Way::composite:
      return "composed, its parts are shown";
  }
  return "";
}

Tensor trained(at::IntArrayRef sizes) {
  return torch::randn(sizes).requires_grad_();
}

// Small operands keep the operator's own cost low; gradients are on.
std::vector<Call> calls() {
  const Tensor x = trained({16, 32}), y = trained({16, 32}), w = trained({32, 32});
  const Tensor b = trained({32}), image = trained({2, 4, 8, 8}), kernel = trained({4, 4, 3, 3});
  const Tensor chances = torch::rand({16, 32});
  return {
      {"add", Way::hot, [=] { return x + y; }},
      {"view", Way::hot,
       [=] {
         return x.view({32, 16});
       }},
      {"addmm", Way::hot, [=] { return at::addmm(b, x, w); }},
      {"convolution", Way::hot,
       [=] {
         return at::convolution(image, kernel, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
       }},
      {"native_layer_norm", Way::hot,
       [=] { return std::get<0>(at::native_layer_norm(x, {32}, b, b, 1e-5)); }},
      {"cat", Way::hot,
       [=] {
         return at::cat({x, y});
       }},
      {"erf", Way::other, [=] { return x.erf(); }},
      {"roll", Way::other, [=] { return x.roll(1, 0); }},
      {"cumsum", Way::other, [=] { return x.cumsum(1); }},
      {"native_dropout", Way::random,
       [=] { return std::get<0>(at::native_dropout(x, 0.1, true)); }},
      {"bernoulli", Way::random, [=] { return at::bernoulli(chances); }},
      {"linear (t and addmm)", Way::composite, [=] { return at::linear(x, w, b); }},
  };
}

enum Arm { kPlain, kWatched, kCounted, kTaped, kArms };
constexpr int kCallsOfRegion = 32;  // about as many as in a block
constexpr int kRegions = 8;         // in a turn

// Runs regions of one operator plain, watched, watched and counted, or taped. The cost of a tape,
// its scope and its release counts among the region's operators.
class Region {
 public:
  Region(const Call& call, BlockListener& listener) : call_(call), listener_(listener) {
    results_.reserve(kCallsOfRegion);
  }

  // Returns the nanoseconds of a call. Leaves out the first region, which meets the caches and the
  // heap of the arm before.
  double turn(Arm arm) {
    run(arm);
    const double start = cpu_nanoseconds();
    for (int i = 0; i < kRegions; ++i) run(arm);
    return (cpu_nanoseconds() - start) / (kRegions * kCallsOfRegion);
  }

 private:
  void run(Arm arm) {
    run_region(arm);
    results_.clear();
  }
  void run_region(Arm arm) {
    if (arm == kPlain) return run_calls();
    if (arm == kWatched) {
      const StreamScope scope({&listener_});
      return run_calls();
    }
    if (arm == kCounted) {
      const StreamScope scope({&listener_, &meter_});
      return run_calls();
    }
    const auto tape = Tape::make("region");
    {
      const TapeScope scope(*tape);
      run_calls();
    }
    tape->close();
  }
  void run_calls() {
    for (int i = 0; i < kCallsOfRegion; ++i) results_.push_back(call_.run());
  }

  const Call& call_;
  BlockListener& listener_;
  MeterListener meter_;
  std::vector<Tensor> results_;  // as a forward pass holds them
};

struct CallTimes {
  std::vector<double> plain, watched, counted,
      taped;  // all but plain: excess over plain, same turn
};

CallTimes take_turns(Region& region, int turns) {
  CallTimes times;
  for (int turn = -2; turn < turns; ++turn) {
    std::array<double, kArms> ns{};
    for (int i = 0; i < kArms; ++i) {
      const int arm = turn % 2 == 0 ? i : kArms - 1 - i;
      ns[static_cast<std::size_t>(arm)] = region.turn(static_cast<Arm>(arm));
    }
    if (turn < 0) continue;  // fills the caches
    times.plain.push_back(ns[kPlain]);
    times.watched.push_back(ns[kWatched] - ns[kPlain]);
    times.counted.push_back(ns[kCounted] - ns[kPlain]);
    times.taped.push_back(ns[kTaped] - ns[kPlain]);
  }
  return times;
}

void tell_call(const Call& call, const char* figure, const std::vector<double>& more, double plain,
               std::optional<double> limit) {
  const Median centre = centre_of(more);
  Line line("E5", centre.value, "ns");
  if (limit) line.limit(*limit);
  line.with("figure", figure).with("operator", call.name).with("way", text_of(call.way));
  with_interval(line, centre)
      .with("plain_ns", plain)
      .with("turns", static_cast<double>(more.size()))
      .print();
}

void tell_calls(const torch::nn::Module& model, Effort effort) {
  BlockListener listener(model);
  const int turns = effort == Effort::quick ? 60 : 400;
  for (const Call& call : calls()) {
    Region region(call, listener);
    const CallTimes times = take_turns(region, turns);
    const double plain = quantile(times.plain, 0.5);
    std::optional<double> watched_limit, taped_limit;
    if (call.way == Way::hot) watched_limit = 100;
    if (call.way == Way::other || call.way == Way::random) watched_limit = 800;
    if (call.way == Way::hot || call.way == Way::other) taped_limit = 1000;
    tell_call(call, "an operator costs more where blocks are followed", times.watched, plain,
              watched_limit);
    tell_call(call, "an operator costs more where it is counted, in one step of 64", times.counted,
              plain, {});
    tell_call(call, "an operator costs more on a tape", times.taped, plain, taped_limit);
  }
}

// ---- Bytes

std::size_t heap_bytes() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

// Memory held by a forward pass of the model, with or without a tape.
struct Held {
  double heap_bytes = 0;
  double tape_bytes = 0;
  double operators = 0;
  Tensor loss;  // keeps the graph and the tape, so that the next pass takes new memory
};
Held held_by_forward(const stream_models::ModelCase& model, const std::shared_ptr<Tape>& tape) {
  const std::size_t before = heap_bytes();
  Tensor loss;
  if (tape != nullptr) {
    const TapeScope scope(*tape);
    loss = model.loss(1);
  } else {
    loss = model.loss(1);
  }
  Held held;
  if (tape != nullptr) {
    tape->close();
    held.tape_bytes = static_cast<double>(tape->bytes());
    held.operators = static_cast<double>(tape->counts().operators);
  }
  held.heap_bytes = static_cast<double>(heap_bytes()) - static_cast<double>(before);
  held.loss = loss;
  return held;
}

void tell_bytes(double dropout) {
  const stream_models::ModelCase model = stream_models::make_gpt2(5, dropout);
  const auto keep = [](const detail::SavedValue&) { return detail::Hold::keep; };
  const auto all_kept = [&] { return Tape::make("model", keep); };
  const Held first = held_by_forward(model, all_kept());
  const Held plain = held_by_forward(model, nullptr);
  const Held kept = held_by_forward(model, all_kept());
  const Held dropped = held_by_forward(model, Tape::make("model"));
  Line("E5", dropped.tape_bytes / dropped.operators, "bytes")
      .limit(600)
      .with("figure", "records of a tape, an operator (Tape::bytes)")
      .with("model", model.name)
      .with("operators", dropped.operators)
      .print();
  Line("E5", (kept.heap_bytes - plain.heap_bytes) / kept.operators, "bytes")
      .with("figure", "heap that a tape takes where it keeps all, an operator")
      .with("model", model.name)
      .with("operators", kept.operators)
      .print();
}

// ---- A training step

struct StepSize {
  const char* name;
  std::int64_t sequences;
  int groups;
};

// The demo's model and optimizer in a plain loop.
class TrainingLoop {
 public:
  explicit TrainingLoop(std::int64_t sequences) : optimizer_(model_->parameters(), {.lr = 1e-4}) {
    const Tensor text = torch::randint(256, {sequences, kLength + 1}, at::kLong);
    inputs_ = text.narrow(1, 0, kLength).contiguous();
    targets_ = text.narrow(1, 1, kLength).contiguous();
  }
  torch::nn::Module& model() { return *model_; }

  // Runs a step without listeners or a session.
  void plain_step() {
    const StreamScope nobody({});
    const detail::StreamPause unseen;
    step();
  }
  void step() {
    model_->loss(inputs_, targets_).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }
  // Returns how many operators were shown.
  std::uint64_t watched_step(BlockListener& listener) {
    const std::uint64_t before = detail::operators_shown();
    const StreamScope scope({&listener});
    step();
    return detail::operators_shown() - before;
  }

 private:
  static constexpr std::int64_t kLength = 128;
  gpt2::Gpt2 model_{gpt2::Config{}};
  AdamW optimizer_;
  Tensor inputs_, targets_;
};

// Keeps freed memory. Returning activations to the system after every step costs page faults, whose
// time scatters.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

void tell_percent(const StepSize& size, const char* figure, const std::vector<double>& percents,
                  std::optional<double> limit, double plain_ms, double operators) {
  const Median centre = centre_of(percents);
  Line line("E5", centre.value, "%");
  if (limit) line.limit(*limit);
  line.with("figure", figure).with("step", size.name);
  with_interval(line, centre)
      .with("groups", size.groups)
      .with("step_ms_plain", plain_ms)
      .with("operators", operators)
      .print();
}

// In each group, one step is shown to listeners and two are plain; each has each place equally
// often. Exchanging two steps changes the sign of their logarithmic ratio, so outliers cancel.
// `seen_step` returns the number of operators shown.
void tell_growth(const StepSize& size, const char* figure, TrainingLoop& loop,
                 const std::function<std::uint64_t()>& seen_step) {
  std::uint64_t operators = 0;
  enum { kOn, kOff, kOther, kSteps };
  std::vector<double> growth, difference, plain_ms;
  for (int group = -1; group < size.groups; ++group) {
    std::array<double, kSteps> ns{};
    for (int i = 0; i < kSteps; ++i) {
      const int which = (i + group + kSteps) % kSteps;
      const double start = cpu_nanoseconds();
      if (which == kOn) {
        operators = seen_step();
      } else {
        loop.plain_step();
      }
      ns[static_cast<std::size_t>(which)] = cpu_nanoseconds() - start;
    }
    if (group < 0) continue;
    growth.push_back(100 * std::log(ns[kOn] / std::sqrt(ns[kOff] * ns[kOther])));
    difference.push_back(100 * std::log(ns[kOther] / ns[kOff]));
    plain_ms.push_back(ns[kOff] / 1e6);
  }
  const double median_ms = quantile(plain_ms, 0.5);
  const auto shown = static_cast<double>(operators);
  tell_percent(size, figure, growth, 1.0, median_ms, shown);
  tell_percent(size, "difference of two equal plain steps", difference, {}, median_ms, shown);
}

void tell_followed(const StepSize& size) {
  TrainingLoop loop(size.sequences);
  BlockListener listener(loop.model());
  tell_growth(size, "growth of a training step whose blocks are followed", loop,
              [&] { return loop.watched_step(listener); });
}

// Measures a job of one rank with all defaults and a run directory: reports, the page's server,
// records. Excludes the work of its other threads.
void tell_adopted(const StepSize& size) {
  TrainingLoop loop(size.sequences);
  const std::filesystem::path runs =
      std::filesystem::temp_directory_path() / ("bench_stream_run_" + std::to_string(getpid()));
  const std::string directory = "--cox.run.directory=" + runs.string();
  const std::array<const char*, 4> words = {"bench_stream", "--cox.http.port=0",
                                            "--cox.run.log=quiet", directory.c_str()};
  {
    auto session = Session::start(static_cast<int>(words.size()), words.data());
    session.adopt(loop.model());
    tell_growth(size, "growth of a step of a whole adopted loop", loop, [&] {
      const std::uint64_t before = detail::operators_shown();
      loop.step();
      return detail::operators_shown() - before;
    });
    session.finish();
  }
  std::filesystem::remove_all(runs);
}

// ---- Bits

void tell_programs(Effort effort) {
  const int count = effort == Effort::quick ? 300 : 10'000;
  const detail::RandomTrials trials = detail::try_random_programs(1, count);
  for (const std::string& text : trials.different) std::fprintf(stderr, "%s\n", text.c_str());
  Line("E5", static_cast<double>(trials.different.size()), "programs")
      .limit(0)
      .with("figure", "random programs whose bits differ under tapes")
      .with("programs", count)
      .with("refused_by_plain_autograd", trials.refused)
      .print();
}

// Each trial is two steps, with a plan for each.
void tell_plans(Effort effort) {
  const int trials = effort == Effort::quick ? 5 : 100;
  const auto tier = std::filesystem::temp_directory_path() /
                    ("cox-bench-" + std::to_string(static_cast<long>(getpid())));
  std::filesystem::create_directories(tier);
  int plans = 0;
  int refused = 0;
  std::size_t different = 0;
  for (const test::PlanTrials& of : test::try_random_plans(1, trials, tier)) {
    for (const std::string& text : of.different) std::fprintf(stderr, "%s\n", text.c_str());
    plans += of.plans;
    refused += of.refused;
    different += of.different.size();
  }
  std::filesystem::remove_all(tier);
  Line("E5", static_cast<double>(different), "trainings")
      .limit(0)
      .with("figure", "trainings of the seven models whose bits differ under random plans")
      .with("plans", plans)
      .with("refused_by_plain_training", refused)
      .print();
}

int run(Effort effort) {
  at::set_num_threads(1);
  if (const Status installed = detail::install_saved_tensor_engine(); !installed.ok()) {
    std::fprintf(stderr, "bench_stream: %s\n", installed.message().c_str());
    return 1;
  }
  const bool is_quick = effort == Effort::quick;
  tell_bytes(0);
  tell_bytes(0.1);
  keep_freed_memory();
  torch::manual_seed(1);
  tell_calls(*gpt2::Gpt2(gpt2::Config{}), effort);
  for (const StepSize& size : {StepSize{"4 sequences", 4, is_quick ? 24 : 300},
                               StepSize{"16 sequences, as scripts/demo", 16, is_quick ? 9 : 150}}) {
    tell_followed(size);
  }
  tell_programs(effort);
  tell_plans(effort);
  // Last, because a process can initialise MPI only once.
  tell_adopted({"4 sequences", 4, is_quick ? 24 : 300});
  return 0;
}

}  // namespace
}  // namespace cox::bench

int main(int argc, char** argv) {
  return cox::bench::run(cox::bench::effort_of(argc, argv));
}
