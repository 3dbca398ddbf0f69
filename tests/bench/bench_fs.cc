// F2 and FS, our side: an adopted plain LibTorch loop, replicated or sharded by a flag. fs.py runs
// it beside PyTorch's DDP and FSDP2 (ddp_peer.py), f2.py under memory budgets. Both give the turns.
//
//   bench_fs task FOLDER TEXT [LAYERS WIDTH]                   writes the task of all sides
//   mpiexec -n N bench_fs turns FOLDER PIPES ROWS [--cox...]   takes turns until told to quit
//
// Answers a turn with the seconds of all steps but the first, and of their updates; the losses and
// the CPU time; and the proportional set size before the program had a model and after the last
// step. Also answers with bytes: of the parameters, of memory that ranks share, and of this rank's
// tensors at their peak within steps but the first. The last number is the predicted peak of the
// newest memory plan.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/src/memory/counting_allocator.h"
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

// Returns the bytes of the segments that this process shares with other ranks, each once.
std::int64_t shared_bytes() {
  std::map<std::string, std::int64_t> ends;  // by inode
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/coxswain-") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, rights, offset, device, inode;
    words >> range >> rights >> offset >> device >> inode;
    const std::size_t dash = range.find('-');
    const auto begin = std::stoull(range.substr(0, dash), nullptr, 16);
    const auto end = std::stoull(range.substr(dash + 1), nullptr, 16);
    const auto last = static_cast<std::int64_t>(std::stoull(offset, nullptr, 16) + end - begin);
    ends[inode] = std::max(ends[inode], last);
  }
  std::int64_t bytes = 0;
  for (const auto& [inode, end] : ends) bytes += end;
  return bytes;
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
      : session_(session),
        slot_{session.rank(), session.world_size(), rows},
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
        cox::detail::reset_counted_peak();
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
           ", \"pss_kib\": " + std::to_string(pss_kib()) + bytes() + "}";
  }

 private:
  std::string bytes() const {
    std::int64_t parameters = 0;
    for (const at::Tensor& each : task_.model->parameters())
      parameters += static_cast<std::int64_t>(each.nbytes());
    return ", \"parameter_bytes\": " + std::to_string(parameters) +
           ", \"shared_bytes\": " + std::to_string(shared_bytes()) +
           ", \"peak_bytes\": " + std::to_string(cox::detail::counted_memory().peak_bytes) +
           ", \"predicted_bytes\": " + std::to_string(session_.report().memory_peak_bytes);
  }

  static std::string number(double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", value);
    return digits;
  }

  Session& session_;
  const bench::D1Slot slot_;
  const std::int64_t base_kib_;
  bench::D1Task task_;
  torch::optim::AdamW optimizer_;
  std::int64_t next_ = 0;
};

void take_turns(Session& session) {
  const auto& words = session.arguments();
  if (words.size() != 4 || words[0] != "turns")
    throw Error(invalid_argument(
        "bench_fs: expected task FOLDER TEXT [LAYERS WIDTH] or turns FOLDER PIPES ROWS"));
  Loop loop(session, words[1], std::stoll(words[3]));
  bench::take_turns(words[2] + "/" + std::to_string(session.rank()),
                    [&](int steps) { return loop.turn(steps); });
}

int write_task(const std::string& folder, const std::string& text, const bench::D1Shape& shape) {
  try {
    bench::write_d1_task(folder, text, shape);
    return 0;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_task = argc >= 4 && std::string(argv[1]) == "task";
  if (is_task && argc == 4) return write_task(argv[2], argv[3], kShape);
  if (is_task && argc == 6)
    return write_task(argv[2], argv[3],
                      {.layers = std::stoll(argv[4]), .width = std::stoll(argv[5])});
  return cox::bench::session_main(argc, argv, {.program = "bench_fs"}, take_turns);
}
