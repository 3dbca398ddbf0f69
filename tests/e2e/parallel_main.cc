// A small data-parallel job for the end-to-end tests: a model with dropout, batch normalisation and
// a parameter that is not always used. Prints a checksum of its weights and buffers at the end.
//
//   e2e_parallel trainer|own|adopted [--steps N] [--batch N] [--micro-batch N]
//                [--random-shares SEED]
//                [--jitter-us N] [--slow RANK FACTOR FIRST LAST] [--throw-on RANK STEP]
//                [--stop-on RANK STEP] [--swap-on RANK] [--no-norm] [--leave-on RANK STEP]
//                [--sleep-on RANK STEP SECONDS] [--ask-every] [--die-on RANK STEP abort|exit|stray]
//
// trainer: cox::Trainer with accumulate(). own: a loop with cox::Reducer. A rank may end early
// (--stop-on) and join the others, or forget to (--leave-on), and may sleep between its steps.
// adopted: a loop that uses only Session::adopt and Session::keep. --die-on: abort(), exit(3), or a
// write to foreign memory, in the rank's own code of the step. --ask-every: every step asks all
// ranks whether to stop.
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"

namespace e2e {
namespace {

struct Options {
  enum class Loop { trainer, own, adopted } loop = Loop::trainer;
  std::uint64_t steps = 30;
  std::int64_t batch = 16;
  std::int64_t micro_batch = 0;
  std::uint64_t share_seed = 0;  // 0 = even shares
  int jitter_us = 0;
  int slow_rank = -1;
  double slow_factor = 1;
  std::uint64_t slow_first = 0, slow_last = 0;
  int throw_on = -1;
  std::uint64_t throw_at = 0;
  int stop_on = -1;
  std::uint64_t stop_at = 0;
  int leave_on = -1;
  std::uint64_t leave_at = 0;
  int sleep_on = -1;
  std::uint64_t sleep_at = 0;
  double sleep_seconds = 0;
  int die_on = -1;
  std::uint64_t die_at = 0;
  std::string die_by;
  bool asks_every = false;
  int swap_on = -1;  // swaps two parameters of one shape there
  bool has_norm = true;
};

Options parse(const std::vector<std::string>& words) {
  Options o;
  std::size_t i = 0;
  const auto next = [&] { return words.at(++i); };
  for (; i < words.size(); ++i) {
    const std::string& name = words[i];
    if (name == "own") o.loop = Options::Loop::own;
    if (name == "adopted") o.loop = Options::Loop::adopted;
    if (name == "--steps") o.steps = std::stoull(next());
    if (name == "--batch") o.batch = std::stoll(next());
    if (name == "--micro-batch") o.micro_batch = std::stoll(next());
    if (name == "--random-shares") o.share_seed = std::stoull(next());
    if (name == "--jitter-us") o.jitter_us = std::stoi(next());
    if (name == "--slow") {
      o.slow_rank = std::stoi(next());
      o.slow_factor = std::stod(next());
      o.slow_first = std::stoull(next());
      o.slow_last = std::stoull(next());
    }
    if (name == "--throw-on") {
      o.throw_on = std::stoi(next());
      o.throw_at = std::stoull(next());
    }
    if (name == "--stop-on") {
      o.stop_on = std::stoi(next());
      o.stop_at = std::stoull(next());
    }
    if (name == "--leave-on") {
      o.leave_on = std::stoi(next());
      o.leave_at = std::stoull(next());
    }
    if (name == "--sleep-on") {
      o.sleep_on = std::stoi(next());
      o.sleep_at = std::stoull(next());
      o.sleep_seconds = std::stod(next());
    }
    if (name == "--die-on") {
      o.die_on = std::stoi(next());
      o.die_at = std::stoull(next());
      o.die_by = next();
    }
    if (name == "--ask-every") o.asks_every = true;
    if (name == "--swap-on") o.swap_on = std::stoi(next());
    if (name == "--no-norm") o.has_norm = false;
  }
  return o;
}

struct NetImpl : torch::nn::Module {
  NetImpl(bool has_norm, bool is_swapped) {
    first = register_module("first", torch::nn::Linear(4, 24));
    if (has_norm) norm = register_module("norm", torch::nn::BatchNorm1d(24));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    last = register_module("last", torch::nn::Linear(24, 1));
    sometimes = register_parameter("sometimes", torch::ones({24}));
    register_parameter(is_swapped ? "unused" : "never", torch::ones({3}));
    register_parameter(is_swapped ? "never" : "unused", torch::ones({3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = first(x);
    if (norm) hidden = norm(hidden);
    hidden = dropout(torch::relu(hidden));
    if (x[0][0].item<float>() > 0) hidden = hidden * sometimes;  // depends only on the micro-batch
    return last(hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  at::Tensor sometimes;
};
TORCH_MODULE(Net);

class Waves final : public cox::Dataset {
 public:
  std::int64_t size() const override { return 250; }  // no multiple of the batch
  cox::Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    const at::Tensor numbers =
        torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), at::kLong)
            .to(at::kFloat)
            .view({rows, 1});
    return {torch::sin(numbers * torch::arange(1, 5)), torch::cos(numbers), rows};
  }
};

// Draws new shares every three rounds from a seed, which must not affect reproducible mode.
class RandomShares final : public cox::Policy {
 public:
  explicit RandomShares(std::uint64_t seed) : seed_(seed) {}
  cox::PolicyKind kind() const override { return cox::PolicyKind::custom; }
  std::string_view name() const override { return "random_shares"; }
  cox::PolicyOutput propose(const cox::PolicyInput& input, cox::PolicyState state) const override {
    if (input.signals.round.value() % 3 != 0) return {{}, {}, state};
    std::mt19937_64 random(seed_ * 1000 + input.signals.round.value());
    std::vector<std::uint32_t> shares(static_cast<std::size_t>(input.job.world_size));
    for (auto& share : shares) share = static_cast<std::uint32_t>(random() % 5);
    shares[random() % shares.size()] += 1;
    cox::Reason reason;
    reason.code = cox::ReasonCode::custom;
    reason.text = "other shares";
    return {{{cox::SetShares{shares}, reason}}, {}, state};
  }

 private:
  std::uint64_t seed_;
};

// Any different bit changes one of the sums.
std::string checksum(const torch::nn::Module& model) {
  std::uint64_t sum = 14695981039346656037ull;
  const auto add = [&sum](const at::Tensor& tensor) {
    const at::Tensor flat = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (std::size_t i = 0; i < flat.nbytes(); ++i) sum = (sum ^ bytes[i]) * 1099511628211ull;
  };
  for (const at::Tensor& p : model.parameters()) add(p);
  for (const at::Tensor& b : model.buffers()) add(b);
  return std::to_string(sum);
}

void sleep_if_due(const Options& o, int rank, std::uint64_t step) {
  if (rank != o.sleep_on || step != o.sleep_at) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(o.sleep_seconds));
}

void die_if_due(const Options& o, int rank, std::uint64_t step) {
  if (rank != o.die_on || step != o.die_at) return;
  if (o.die_by == "abort") std::abort();
  if (o.die_by == "exit") std::exit(3);
  volatile int* nowhere = nullptr;
  *nowhere = 1;
}

void misbehave(const Options& o, int rank, std::uint64_t step) {
  if (rank == o.throw_on && step == o.throw_at) {
    throw std::runtime_error("the user's own code failed");
  }
  double micros = 0;
  if (o.jitter_us > 0) {
    thread_local std::mt19937 random(std::random_device{}());
    micros = static_cast<double>(random() % static_cast<unsigned>(o.jitter_us));
  }
  if (rank == o.slow_rank && step >= o.slow_first && step <= o.slow_last) {
    micros += 5000 * o.slow_factor;
  }
  std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(micros));
}

std::int64_t resident_kib() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// Records the memory of a long job: after settling, and at the end.
class Resident {
 public:
  void look(std::uint64_t step) {
    if (step == 300) settled_ = resident_kib();
  }
  void print(int rank) const {
    if (settled_ > 0) std::printf("rank %d: grew by %ld KiB\n", rank, resident_kib() - settled_);
  }

 private:
  std::int64_t settled_ = 0;
};

void print_end(const cox::Session& session, const torch::nn::Module& model, double loss) {
  std::printf("rank %d: weights %s\n", session.rank(), checksum(model).c_str());
  if (session.rank() == 0) std::printf("loss %.17g\n", loss);
}

void train(cox::Session& session, const Options& o, Net& model) {
  cox::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  cox::Trainer trainer(
      session, *model, optimizer,
      {.global_batch = o.batch, .micro_batch = o.micro_batch, .steps = o.steps, .clip_norm = 0.5});
  const Waves data;
  Resident resident;
  for (auto& step : trainer.steps(data)) {
    misbehave(o, session.rank(), step.number());
    sleep_if_due(o, session.rank(), step.number());
    resident.look(step.number());
    step.accumulate([&](const cox::Batch& batch) {
      die_if_due(o, session.rank(), step.number());
      return torch::mse_loss(model->forward(batch.inputs), batch.targets);
    });
    step.update();
  }
  resident.print(session.rank());
  print_end(session, *model, trainer.progress().loss);
  if (session.rank() == 0) {
    std::printf("samples %llu\n", static_cast<unsigned long long>(trainer.progress().consumed));
  }
}

void train_own(cox::Session& session, const Options& o, Net& model) {
  cox::Reducer reducer(session, model->parameters(), model->buffers());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto update = [&](cox::StepScope&, const cox::ReductionOutcome& outcome) {
    if (outcome.finite && outcome.weight > 0) optimizer.step();
  };
  const Waves data;
  const std::uint64_t steps = session.rank() == o.stop_on ? o.stop_at : o.steps;
  double loss = 0;
  Resident resident;
  for (std::uint64_t i = 0; i < steps; ++i) {
    sleep_if_due(o, session.rank(), i);  // between steps
    const bool leaves = session.rank() == o.leave_on && i == o.leave_at;
    if (leaves && o.asks_every) return;  // the others will ask
    auto step = session.step();
    if (o.asks_every) static_cast<void>(session.stop_requested_anywhere());
    misbehave(o, session.rank(), i);
    resident.look(i);
    if (leaves) return;
    std::vector<std::int64_t> indices;
    for (std::int64_t k = 0; k < 4; ++k) {
      indices.push_back((static_cast<std::int64_t>(i) * 17 + session.rank() * 5 + k) % data.size());
    }
    const cox::Batch batch = data.get(indices);
    torch::manual_seed(i * 100 + static_cast<std::uint64_t>(session.rank()));
    optimizer.zero_grad();
    reducer.backward(step, torch::mse_loss(model->forward(batch.inputs), batch.targets), 4);
    const auto outcome = reducer.average(step);
    update(step, outcome);
    loss = outcome.loss;
  }
  reducer.join(update);
  resident.print(session.rank());
  print_end(session, *model, loss);
}

void train_adopted(cox::Session& session, const Options& o, Net& model) {
  session.adopt(*model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  torch::manual_seed(100 + static_cast<std::uint64_t>(session.rank()));
  const Waves data;
  double loss = 0;
  std::int64_t epoch = 0;
  for (std::int64_t batch = 0;; ++batch) {
    session.keep(optimizer, epoch, batch);
    if (batch >= static_cast<std::int64_t>(o.steps)) break;
    misbehave(o, session.rank(), static_cast<std::uint64_t>(batch));
    std::vector<std::int64_t> indices;
    for (std::int64_t k = 0; k < 4; ++k)
      indices.push_back((batch * 17 + session.rank() * 5 + k) % data.size());
    const cox::Batch samples = data.get(indices);
    optimizer.zero_grad();
    const at::Tensor error = torch::mse_loss(model->forward(samples.inputs), samples.targets);
    error.backward();
    optimizer.step();
    loss = error.item<double>();
    session.open_step()->loss(loss, 4);
  }
  print_end(session, *model, loss);
}

int run(int argc, char** argv) {
  // Parsed twice, because policies must exist before the session starts.
  const Options early = parse({argv + 1, argv + argc});
  cox::SessionOptions wanted;
  wanted.program = "e2e_parallel";
  if (early.share_seed != 0) {
    wanted.policies.push_back(std::make_shared<RandomShares>(early.share_seed));
  }
  auto session = cox::Session::start(argc, argv, wanted);
  at::set_num_threads(1);
  torch::manual_seed(session.config().run.seed);
  Net model(early.has_norm, session.rank() == early.swap_on);
  if (early.loop == Options::Loop::trainer) train(session, early, model);
  if (early.loop == Options::Loop::own) train_own(session, early, model);
  if (early.loop == Options::Loop::adopted) train_adopted(session, early, model);
  session.finish();
  return 0;
}

}  // namespace
}  // namespace e2e

int main(int argc, char** argv) {
  try {
    return e2e::run(argc, argv);
  } catch (const std::exception& error) {
    return cox::report(error);
  }
}
