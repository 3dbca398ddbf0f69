#include "sdk/examples/gpt2/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

namespace gpt2 {
namespace {

// Parses "30-49" as the steps of the overflow. Returns invalid_argument for any other form.
cox::Status parse_overflow(const std::string& text, Faults& faults) {
  const char* const last = text.data() + text.size();
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  const auto first = std::from_chars(text.data(), last, from);
  const bool has_dash = first.ec == std::errc{} && first.ptr != last && *first.ptr == '-';
  const auto second = has_dash ? std::from_chars(first.ptr + 1, last, to) : first;
  if (!has_dash || second.ec != std::errc{} || second.ptr != last || from > to) {
    return cox::invalid_argument(
        "--overflow: expected FROM-TO, steps that count from 0, for example 30-49, found '" + text +
        "'");
  }
  faults.overflow_from = from;
  faults.overflow_to = to;
  return cox::ok_status();
}

constexpr std::int64_t kStoryBudgetBytes = 40 << 20;  // less than two or four ranks would use
constexpr double kStorySlowdown = 2;

// Checks the text before CLI11 converts it, so that messages name the expected range.
template <class T>
CLI::Validator between(T least, T most) {
  return {[least, most](std::string& text) {
            T value{};
            const char* const last = text.data() + text.size();
            const auto [end, error] = std::from_chars(text.data(), last, value);
            const bool is_number = error == std::errc{} && end == last;
            if (is_number && value >= least && value <= most) return std::string();  // not NaN
            return fmt::format("expected a number from {} to {}, found '{}'", least, most, text);
          },
          ""};
}

// Returns the default of a setting of Coxswain.
std::string default_of(std::string_view key) {
  for (const cox::ConfigOption& setting : cox::config_options()) {
    if (setting.key == key) return setting.fallback.empty() ? "none" : setting.fallback;
  }
  return {};
}

class Parser {
 public:
  explicit Parser(Options& options) : options_(options) {
    app_.footer(
        "Settings of Coxswain are options too, --cox.KEY=VALUE; `cox config` lists the keys.");
    app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_work();
    add_model();
    add_settings();
  }

  // REQUIRES: `arguments` in reverse order. Throws CLI::ParseError.
  void parse(std::vector<std::string> arguments) { app_.parse(std::move(arguments)); }
  std::string help() { return app_.help(); }

 private:
  template <class T>
  void number(const char* name, T& target, T least, T most, const char* help) {
    app_.add_option(name, target, help)
        ->check(between(least, most))
        ->type_name("N")
        ->capture_default_str();
  }
  void path(const char* name, std::string& target, const char* type, const char* help) {
    app_.add_option(name, target, help)->type_name(type);
  }

  void add_work() {
    Options& o = options_;
    path("--text", o.text, "FILE", "text to train on, byte by byte");
    path("--reference", o.reference, "DIR",
         "check losses, logits and gradients against a recorded run");
    path("--load-model", o.load_model, "DIR", "start from config.json and model.safetensors");
    path("--save-model", o.save_model, "DIR", "write both files at the end");
    app_.add_flag(
        "--story", o.story,
        fmt::format("shows the coordinator at work: --memory-budget {}MiB, --precision "
                    "auto, --cox.shares.mode=on, and a last rank that does {:g} times the "
                    "work in the middle third, unless they are given",
                    kStoryBudgetBytes >> 20, kStorySlowdown));
    app_.add_option_function<std::vector<std::string>>(
            "--slow", [this](const auto& texts) { add_slowdowns(texts); },
            "rank R does F times the work, in steps A to B or in all; can be repeated")
        ->type_name("R:F[:A-B]")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
    add_faults();
    app_.add_flag("--verbose", o.verbose,
                  "print whole reasons, and intervals and advice at the end");
    app_.add_flag("--hold", o.hold, "keep the status page up at the end, until SIGTERM");
  }

  void add_faults() {
    Faults& f = options_.faults;
    number<double>("--slow-data", f.slow_data_seconds, 0, 60,
                   "seconds that the batch of a step comes later");
    number<double>("--slow-save", f.slow_save_seconds, 0, 600, "seconds that a save takes longer");
    number<std::int64_t>("--leak", f.leak_mib, 0, 1 << 16, "MiB that each step keeps for good");
    app_.add_option_function<std::string>(
            "--overflow",
            [&f](const std::string& text) {
              const cox::Status parsed = parse_overflow(text, f);
              if (!parsed.ok()) throw CLI::ValidationError(parsed.message());
            },
            "steps A to B have gradients that are not finite")
        ->type_name("A-B");
  }

  void add_model() {
    Options& o = options_;
    constexpr std::int64_t kWide = 1 << 16;
    number<std::uint64_t>("--steps", o.steps, 1, 1u << 30, "optimizer steps in total");
    number<std::int64_t>("--batch", o.batch, 1, kWide, "sequences a step over all ranks");
    number<std::int64_t>("--micro-batch", o.micro_batch, 0, kWide,
                         "sequences computed at once, gradients accumulate; 0 = the whole share");
    number<std::int64_t>("--length", o.length, 1, kWide, "bytes a sequence");
    number<std::int64_t>("--layers", o.model.n_layer, 1, 512, "transformer layers");
    number<std::int64_t>("--heads", o.model.n_head, 1, 256, "attention heads");
    number<std::int64_t>("--width", o.model.n_embd, 1, kWide, "width of the model");
    number<double>("--dropout", o.model.embd_pdrop, 0.0, 0.9,
                   "probability, for embeddings, attention and residuals");
    number<double>("--lr", o.learning_rate, 0.0, 10.0, "learning rate after warm-up");
    number<double>("--clip", o.clip_norm, 0.0, 1e9, "largest gradient norm, 0 = no clipping");
  }

  void add_settings() {
    const auto setting = [this](const char* name, std::string key, const char* type,
                                const char* help) {
      app_.add_option_function<std::string>(
              name,
              [this, key](const std::string& value) {
                options_.settings.push_back("--cox." + key + "=" + value);
              },
              fmt::format("{}; is --cox.{}", help, key))
          ->type_name(type)
          ->default_str(default_of(key));
    };
    setting("--device", "run.device", "KIND", "where to train: auto, cpu or cuda");
    setting("--memory-budget", "memory.budget", "SIZE", "most memory of a rank, for example 2GiB");
    setting("--precision", "precision.format", "FORMAT", "auto, fp32, bf16, fp16 or fp8");
    setting("--saves", "checkpoint.directory", "DIR", "where to save");
    app_.add_flag_callback(
            "--resume", [this] { options_.settings.push_back("--cox.checkpoint.resume=on"); },
            "continue from the newest save; is --cox.checkpoint.resume=on")
        ->disable_flag_override();
  }

  void add_slowdowns(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      auto slowdown = parse_slowdown(text);
      if (!slowdown.ok()) throw CLI::ValidationError(slowdown.status().message());
      options_.slow.push_back(*slowdown);
    }
  }

  Options& options_;
  CLI::App app_{"Trains a byte-level GPT-2 on a text.", "gpt2"};
};

}  // namespace

std::vector<std::string> take_settings(std::vector<std::string>& arguments) {
  std::vector<std::string> settings;
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_setting = arguments[i].starts_with("--cox.");
    (is_setting ? settings : rest).push_back(arguments[i]);
    const bool has_value = arguments[i].find('=') != std::string::npos;
    if (is_setting && !has_value && i + 1 < arguments.size()) settings.push_back(arguments[++i]);
  }
  arguments = std::move(rest);
  return settings;
}

cox::Result<Options> parse_options(std::vector<std::string> arguments) {
  Options options;
  Parser parser(options);
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
  try {
    parser.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    options.help = parser.help();
  } catch (const CLI::ParseError& error) {
    return cox::invalid_argument(
        fmt::format("{}; expected options as gpt2 --help lists them", error.what()));
  }
  options.model.attn_pdrop = options.model.resid_pdrop = options.model.embd_pdrop;
  options.model.n_positions = std::max(options.model.n_positions, options.length);
  return options;
}

cox::Config default_config(const Options& options) {
  cox::Config config;
  if (!options.help.empty()) config.run.log = cox::LogLevel::quiet;
  if (!options.story) return config;
  if (!options.verbose) config.run.log_width = kLineWidth;
  config.shares.mode = cox::PolicyMode::on;
  config.precision.format.reset();  // chosen by speed for each block
  config.memory.budget = {.kind = cox::BudgetKind::bytes, .bytes = kStoryBudgetBytes};
  return config;
}

std::vector<Slowdown> slowdowns_of(const Options& options, int world_size) {
  if (!options.story || !options.slow.empty() || world_size < 2) return options.slow;
  const std::uint64_t third = options.steps / 3;
  if (third == 0) return {};
  return {{.rank = world_size - 1,
           .factor = kStorySlowdown,
           .from_step = third,
           .to_step = 2 * third - 1}};
}

}  // namespace gpt2
