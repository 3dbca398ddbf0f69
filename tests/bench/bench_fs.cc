// FS, our side: an adopted plain LibTorch loop, replicated or sharded by a flag. fs.py runs it
// beside PyTorch's DDP and FSDP2 (ddp_peer.py) and gives all their turns.
//
//   bench_fs task FOLDER TEXT                                  writes the task of all sides
//   mpiexec -n N bench_fs turns FOLDER PIPES ROWS [--cox...]   takes turns until told to quit
//
// Answers a turn with {"seconds", "update_s", "losses", "cpu", "base_kib", "pss_kib"}. Times are of
// all steps but the first, and of their updates. The proportional set size is of this process
// without a model and at the end of a step.
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/coxswain.h"
#include "tests/bench/d1_task.h"
#include "tests/bench/orders.h"
#include "tests/bench/session_main.h"

namespace {

using namespace cox;
using Clock = std::chrono::steady_clock;

constexpr bench::D1Shape kShape = {.layers = 9, .width = 512};  // 28.6 million parameters

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::int64_t pss_kib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    std::int64_t kib = 0;
    if (word == "Pss:" && rollup >> kib) return kib;
  }
  return 0;
}

std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& p : model.parameters()) (p.dim() > 1 ? matrices : vectors).push_back(p);
  const auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(3e-4).betas({0.9, 0.95}).weight_decay(decay));
  };
  return {{matrices, options(0.1)}, {vectors, options(0)}};
}

class Loop {
 public:
  Loop(Session& session, const std::string& task, std::int64_t rows)
      : slot_{session.rank(), session.world_size(), rows},
        base_kib_(pss_kib()),
        task_(bench::read_d1_task(task)),
        optimizer_(groups_of(*task_.model), torch::optim::AdamWOptions(3e-4)) {
    session.adopt(*task_.model);
  }

  std::string turn(int steps) {
    std::string losses;
    double update_s = 0;
    Clock::time_point start;
    double cpu = 0;
    for (int step = 0; step < steps; ++step) {
      if (step == 1) {
        start = Clock::now();
        cpu = bench::process_cpu_seconds();
        update_s = 0;
      }
      const Batch batch = bench::d1_batch(task_.tokens, slot_, next_++);
      optimizer_.zero_grad();
      const at::Tensor loss = task_.model->loss(batch.inputs, batch.targets);
      loss.backward();
      const Clock::time_point update = Clock::now();
      optimizer_.step();
      update_s += seconds_since(update);
      losses += (losses.empty() ? "" : ", ") + number(loss.item<double>());
    }
    return "{\"seconds\": " + number(seconds_since(start)) + ", \"update_s\": " + number(update_s) +
           ", \"losses\": [" + losses +
           "], \"cpu\": " + number(bench::process_cpu_seconds() - cpu) +
           ", \"base_kib\": " + std::to_string(base_kib_) +
           ", \"pss_kib\": " + std::to_string(pss_kib()) + "}";
  }

 private:
  static std::string number(double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", value);
    return digits;
  }

  const bench::D1Slot slot_;
  const std::int64_t base_kib_;
  bench::D1Task task_;
  torch::optim::AdamW optimizer_;
  std::int64_t next_ = 0;
};

void take_turns(Session& session) {
  const auto& words = session.arguments();
  if (words.size() != 4 || words[0] != "turns")
    throw Error(invalid_argument("bench_fs: expected task FOLDER TEXT or turns FOLDER PIPES ROWS"));
  Loop loop(session, words[1], std::stoll(words[3]));
  bench::take_turns(words[2] + "/" + std::to_string(session.rank()),
                    [&](int steps) { return loop.turn(steps); });
}

int write_task(const std::string& folder, const std::string& text) {
  try {
    bench::write_d1_task(folder, text, kShape);
    return 0;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "task") return write_task(argv[2], argv[3]);
  return cox::bench::session_main(argc, argv, {.program = "bench_fs"}, take_turns);
}
