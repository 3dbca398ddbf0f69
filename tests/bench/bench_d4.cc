// D4: reproducible mode. d4.py starts it and compares.
//
//   mpiexec -n N bench_d4 weights STEPS SEED [--cox...]  trains under shares that change at random,
//                                                        prints {"weights": checksum, ...}
//   mpiexec -n N bench_d4 turns PIPES [--cox...]         takes turns (orders.h), even shares
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/examples/gpt2/model.h"
#include "tests/bench/orders.h"
#include "tests/bench/random_shares.h"
#include "tests/bench/session_main.h"
#include "tests/bench/token_rows.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMicroBatch = 2;

// Returns FNV-1a over the bytes of all weights.
std::uint64_t checksum(const torch::nn::Module& model) {
  std::uint64_t sum = 0xCBF29CE484222325ull;
  for (const at::Tensor& weight : model.parameters()) {
    const auto* bytes = static_cast<const std::uint8_t*>(weight.const_data_ptr());
    for (std::size_t i = 0; i < weight.nbytes(); ++i) sum = (sum ^ bytes[i]) * 0x100000001B3ull;
  }
  return sum;
}

struct Shape {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t length;
  std::int64_t global_batch;
  std::uint64_t steps;
};

struct Job {
  gpt2::Gpt2 model;
  AdamW optimizer;
  Trainer trainer;
  bench::TokenRows dataset;

  Job(Session& session, const Shape& shape)
      : model(make_model(shape)),
        optimizer(model->parameters(), {.lr = 1e-3}),
        trainer(session, *model, optimizer,
                {.global_batch = shape.global_batch,
                 .micro_batch = kMicroBatch,
                 .steps = shape.steps,
                 .clip_norm = 1.0}),
        dataset(1024, shape.length) {}

  static gpt2::Gpt2 make_model(const Shape& shape) {
    torch::manual_seed(1);
    gpt2::Config config;  // with dropout
    config.n_layer = shape.layers;
    config.n_embd = shape.width;
    config.n_positions = shape.length;
    return gpt2::Gpt2(config);
  }

  void take(TrainerStep& step) {
    step.accumulate([&](const Batch& batch) { return model->loss(batch.inputs, batch.targets); });
    step.update();
  }
};

void print_weights(Session& session, std::uint64_t steps) {
  Job job(session, {2, 32, 16, 16, steps});
  std::int64_t changes = -1;  // changes of this rank's share; the first is none
  std::int64_t before = -1;
  for (auto& step : job.trainer.steps(job.dataset)) {
    const std::int64_t samples = step.batch().samples;
    changes += samples != before;
    before = samples;
    job.take(step);
  }
  if (session.rank() != 0) return;
  std::printf("{\"weights\":\"%016llx\",\"loss\":%.9g,\"changes\":%lld}\n",
              static_cast<unsigned long long>(checksum(*job.model)), job.trainer.progress().loss,
              static_cast<long long>(changes));
}

void take_turns(Session& session, const std::string& pipes) {
  Job job(session, {4, 256, 128, 8 * session.world_size(), 1u << 20});
  auto steps = job.trainer.steps(job.dataset);
  auto open = steps.begin();
  const auto step = [&] {
    job.take(*open);
    ++open;
  };
  bench::take_turns(pipes + "/" + std::to_string(session.rank()), [&](int count) {
    step();  // warms the caches after the other side's turn
    const double cpu_before = bench::process_cpu_seconds();
    const auto start = Clock::now();
    for (int i = 1; i < count; ++i) step();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return "{\"seconds\":" + std::to_string(seconds) +
           ",\"cpu\":" + std::to_string(bench::process_cpu_seconds() - cpu_before) +
           ",\"repeated\":" + std::to_string(job.trainer.progress().repeated) + "}";
  });
  job.take(*open);
}

SessionOptions options_for(int argc, char** argv) {
  SessionOptions options{.program = "bench_d4"};
  if (argc > 3 && std::string(argv[1]) == "weights") {
    options.policies = {
        std::make_shared<bench::RandomShares>(std::strtoull(argv[3], nullptr, 10), 3)};
  }
  return options;
}

void do_as_told(Session& session) {
  at::set_num_threads(1);
  const std::vector<std::string>& words = session.arguments();
  if (words.size() == 3 && words[0] == "weights") {
    print_weights(session, std::stoull(words[1]));
  } else if (words.size() == 2 && words[0] == "turns") {
    take_turns(session, words[1]);
  } else {
    throw Error(invalid_argument("bench_d4: expected weights STEPS SEED or turns PIPES"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cox::bench::session_main(argc, argv, options_for(argc, argv), do_as_told);
}
