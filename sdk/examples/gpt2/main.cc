// Trains a byte-level GPT-2 on a text, or checks the model against a recorded run (--reference).
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/examples/gpt2/extra_work.h"
#include "sdk/examples/gpt2/model_file.h"
#include "sdk/examples/gpt2/options.h"
#include "sdk/examples/gpt2/planted_faults.h"
#include "sdk/examples/gpt2/progress_bar.h"
#include "sdk/examples/gpt2/reference.h"
#include "sdk/examples/gpt2/reference_ranks.h"
#include "sdk/examples/gpt2/summary.h"

namespace gpt2 {
namespace {

constexpr std::int64_t kByteValues = 256;

void require(const cox::Status& status) {
  if (!status.ok()) throw cox::Error(status);
}

int check(cox::Session& session, const Options& options) {
  std::optional<Reference> reference;
  session.together([&] {
    auto read = read_reference(options.reference);
    require(read.status());
    reference.emplace(std::move(*read));
    reference->tokens = reference->tokens.to(session.device());
  });
  auto blocks = BlocksOf::this_model;  // plans name the first variant's blocks
  const auto trainer = [&](const ReferenceTask& task) {
    return session_trainer(session, task, options.micro_batch,
                           std::exchange(blocks, BlocksOf::another_model));
  };
  const RankRows rows{session.rank(), session.world_size(), session.config().force.shares};
  const auto checks = check_reference(*reference, rows, trainer);
  require(checks.status());
  std::ostringstream lines;
  const bool all_ok = print_checks(lines, *checks);
  if (session.rank() == 0 || !all_ok) std::cout << lines.str();
  session.finish();
  return all_ok ? 0 : 1;
}

Gpt2 make_model(const Options& options, std::uint64_t seed) {
  torch::manual_seed(seed);
  if (options.load_model.empty()) return Gpt2(options.model);
  const std::filesystem::path folder = options.load_model;
  auto config = read_config(folder / "config.json");
  require(config.status());
  if (options.length > config->n_positions || config->vocab_size < kByteValues) {
    require(cox::invalid_argument(
        "--load-model: expected a model for " + std::to_string(options.length) + " positions and " +
        std::to_string(kByteValues) + " byte values, found one for " +
        std::to_string(config->n_positions) + " and " + std::to_string(config->vocab_size) +
        "; choose another --length or model"));
  }
  Gpt2 model(*config);
  require(load_weights(folder / "model.safetensors", model));
  return model;
}

cox::AdamW make_optimizer(const Gpt2& model, double learning_rate) {
  const DecayGroups groups = decay_groups(*model);
  return cox::AdamW({{groups.decayed, {.lr = learning_rate, .beta2 = 0.95, .weight_decay = 0.1}},
                     {groups.plain, {.lr = learning_rate, .beta2 = 0.95, .weight_decay = 0}}});
}

// Linear warm-up, then a cosine down to a tenth.
double scheduled_rate(const Options& options, std::uint64_t step) {
  const double warmup = std::max(1.0, 0.05 * static_cast<double>(options.steps));
  const double at = static_cast<double>(step) + 1;
  if (at < warmup) return options.learning_rate * at / warmup;
  const double progress =
      (at - warmup) / std::max(1.0, static_cast<double>(options.steps) - warmup);
  return options.learning_rate * (0.1 + 0.45 * (1 + std::cos(M_PI * std::min(1.0, progress))));
}

ProgressBar::Kind bar_kind(const cox::Session& session) {
  if (session.rank() != 0 || session.config().run.log == cox::LogLevel::quiet) {
    return ProgressBar::Kind::silent;
  }
  return isatty(STDOUT_FILENO) ? ProgressBar::Kind::terminal : ProgressBar::Kind::log;
}

void print(const std::string& text) {
  if (text.empty()) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Policy accumulation may use more samples a step than --batch.
std::uint64_t tokens_of_step(const cox::Session& session, const Options& options) {
  const std::uint64_t planned = session.plan().step_samples;
  const std::uint64_t samples = planned > 0 ? planned : static_cast<std::uint64_t>(options.batch);
  return samples * static_cast<std::uint64_t>(options.length);
}

RunSummary train(cox::Session& session, const Options& options, Gpt2& model) {
  const cox::ByteTextDataset dataset(options.text, options.length);
  cox::AdamW optimizer = make_optimizer(model, options.learning_rate);
  cox::Trainer trainer(
      session, *model, optimizer,
      {.global_batch = options.batch,
       .micro_batch = options.micro_batch,
       .steps = options.steps,
       .clip_norm = options.clip_norm,
       .learning_rate = [&](std::uint64_t step) { return scheduled_rate(options, step); }});

  const ProgressBar::Kind kind = bar_kind(session);
  if (kind != ProgressBar::Kind::silent) print(start_line(options, session.world_size()));
  ProgressBar bar(kind, options.steps, ProgressBar::Clock::now());
  RunSummary summary;
  ExtraWork extra(model, slowdowns_of(options, session.world_size()), session.rank(),
                  std::max<std::int64_t>(options.micro_batch, 1));
  PlantedFaults faults(options.faults, trainer);
  for (auto& step : trainer.steps(dataset)) {
    const std::uint64_t repeated = trainer.progress().repeated;
    faults.begin(step);
    extra.run(step);
    step.tokens(static_cast<std::uint64_t>(step.batch().samples * options.length));
    step.accumulate([&](const cox::Batch& batch) {
      return faults.spoiled(model->loss(batch.inputs, batch.targets), step.number());
    });
    step.update();
    if (trainer.progress().repeated > repeated) continue;  // the same step is repeated
    summary.note_loss(trainer.progress().loss);
    print(bar.update(step.number() + 1, trainer.progress().loss, tokens_of_step(session, options),
                     ProgressBar::Clock::now(), columns_of(STDOUT_FILENO, std::getenv("COLUMNS"))));
  }
  print(bar.finish());
  summary.tokens_per_second = bar.tokens_per_second(ProgressBar::Clock::now());
  summary.steps = trainer.progress().step;
  summary.stopped = trainer.progress().stopped;
  return summary;
}

void hold(cox::Session& session) {
  if (session.rank() == 0) {
    std::printf("holding %s until SIGTERM\n", session.status_address().c_str());
    std::fflush(stdout);
  }
  while (!session.stop_requested_anywhere()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int run(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::vector<std::string> given = take_settings(arguments);
  const auto parsed = parse_options(arguments);
  const Options options = parsed.ok() ? *parsed : Options{};
  std::vector<const char*> settings = {"gpt2"};
  for (const std::string& setting : options.settings) settings.push_back(setting.c_str());
  for (const std::string& setting : given) settings.push_back(setting.c_str());
  auto session = cox::Session::start(static_cast<int>(settings.size()), settings.data(),
                                     {.config = default_config(options), .program = "gpt2"});
  session.together([&] {
    require(parsed.status());
    require(check_ranks(options.slow, session.world_size()));
    const bool has_work =
        !options.help.empty() || !options.text.empty() || !options.reference.empty();
    if (!has_work) require(cox::invalid_argument("gpt2: expected --text FILE, found none"));
  });
  if (!options.help.empty()) {
    if (session.rank() == 0) std::cout << options.help;
    return 0;
  }
  if (!options.reference.empty()) return check(session, options);
  std::optional<Gpt2> model;
  session.together([&] {
    const cox::ByteTextDataset probe(options.text, options.length);
    model.emplace(make_model(options, session.config().run.seed));
    (*model)->to(session.device());
  });
  const RunSummary summary = train(session, options, *model);
  if (!options.save_model.empty()) {
    session.together([&] {
      if (session.rank() == 0) require(save_model(options.save_model, *model));
    });
  }
  // Finishes before the summary, which then has the last reports of all ranks. Also finishes before
  // holding, so that the status page shows the end of the job.
  session.finish();
  if (session.rank() == 0) {
    std::cout << summary_text(summary, session.report(), session.config(),
                              options.verbose ? Detail::full : Detail::short_form);
    std::cout.flush();
  }
  if (options.hold) hold(session);
  return 0;
}

}  // namespace
}  // namespace gpt2

int main(int argc, char** argv) {
  try {
    return gpt2::run(argc, argv);
  } catch (const std::exception& error) {
    return cox::report(error);
  }
}
