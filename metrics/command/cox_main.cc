// `cox`: the command for people who work with a job's files in a shell.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/words.h"
#include "coordinator/io/config_source.h"
#include "coordinator/io/file_size_signal.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/death_watch.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/wire/frame.h"
#include "metrics/command/commands.h"
#include "metrics/command/run_file.h"
#include "metrics/records/pipeline_file.h"

namespace cox::tools {
namespace {

// Exit codes. Bad input prints one line on standard error that names the fault.
constexpr int kDone = 0;
constexpr int kNo = 1;  // the answer is no: a replay differs, or no plan fits a budget
constexpr int kBadInput = 2;

constexpr std::size_t kMostBudgets = 16;

int complain(std::string_view message) {
  fmt::print(stderr, "cox: {}\n", printable(message));
  return kBadInput;
}

// --- replay: decides a job's rounds again and compares the plans. `flags` are --cox.* settings
// that replace recorded ones, as on a command line.

struct ReplayRequest {
  std::string journal;  // the journal, or the run directory that has it
  std::vector<std::string> flags;
  bool is_verbose = false;
};

void print_line(const std::string& line) {
  fmt::print("{}\n", printable(line));
}

void print(const runtime::ReplayReport& report) {
  if (report.torn_bytes > 0)
    fmt::print("the last record is not whole: {} bytes are ignored\n", report.torn_bytes);
  for (const std::string& line : report.differences) print_line(line);
  fmt::print("{} starts, {} rounds, {} plans, {} reasons: ", report.segments, report.rounds,
             report.plans, report.reasons);
  if (report.equal()) {
    fmt::print("all equal\n");
  } else {
    fmt::print("{} starts and {} rounds differ\n", report.different_starts,
               report.different_rounds);
  }
}

Result<runtime::ReplayOptions> options_of(const ReplayRequest& request) {
  runtime::ReplayOptions options;
  options.flags = request.flags;
  if (request.is_verbose) options.tell = print_line;
  options.file_name = config_file({}, request.flags);
  if (options.file_name.empty()) return options;
  Result<std::string> text = io::read_config_file(options.file_name);
  if (!text.ok()) return text.status();
  options.file_text = *std::move(text);
  return options;
}

Result<runtime::ReplayReport> replay_of(const ReplayRequest& request) {
  const auto options = options_of(request);
  if (!options.ok()) return options.status();
  const auto file = file_of_run(request.journal, "journal.cox");
  if (!file.ok()) return file.status();
  auto journal = runtime::JournalReader::open(file->path, file->links);
  if (!journal.ok()) return journal.status();
  auto report = runtime::replay(*journal, default_policies(), *options);
  if (report.ok() && report->segments == 0)
    return data_loss(file->path.string(),
                     ": expected a journal with the start of a run, found none in it; there is "
                     "nothing to replay");
  return report;
}

// Names the rank whose death ended the job, if the run directory tells.
void print_ending(const std::string& run) {
  std::error_code error;
  if (!std::filesystem::is_directory(run, error)) return;
  const auto ending = runtime::read_ending(run);
  if (!ending.ok()) complain(ending.status().message());
  if (ending.ok() && !ending->empty()) print_line("the job ended by a death: " + *ending);
}

int replay_command(const ReplayRequest& request) {
  const auto report = replay_of(request);
  if (!report.ok()) return complain(report.status().message());
  print(*report);
  print_ending(request.journal);
  return report->equal() ? kDone : kNo;
}

// --- config: lists every setting, for people or as the table of docs/configuration.md.

// Escapes bars, because a bar would end the cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "`" + cell(text) + "`";
}

void print_markdown(const std::vector<ConfigOption>& options) {
  fmt::print("| key | kind | range | unit | default | meaning |\n|---|---|---|---|---|---|\n");
  for (const ConfigOption& o : options) {
    fmt::print("| {} | {} | {} | {} | {} | {} |\n", code(o.key), o.kind, cell(o.range), o.unit,
               code(o.fallback), cell(o.help));
  }
}

void print_table(const std::vector<ConfigOption>& options) {
  std::size_t key_width = 0;
  std::size_t default_width = 0;
  for (const ConfigOption& o : options) {
    key_width = std::max(key_width, o.key.size());
    default_width = std::max(default_width, o.fallback.size());
  }
  for (const ConfigOption& o : options) {
    fmt::print("{:<{}}  {:<{}}  {}  [{}{}{}]\n", o.key, key_width, o.fallback, default_width,
               o.help, o.range, o.unit.empty() ? "" : " ", o.unit);
  }
  fmt::print(
      "\nFrom a file (COX_CONFIG=FILE, lines of key = value), the environment (COX_GUARD_MODE=on)"
      "\nor flags (--cox.guard.mode=on); later ones win.\n");
}

// --- The command line.

std::string version() {
  return fmt::format("cox {}, mask version {}", COX_VERSION, unsigned{wire::kMaskVersion});
}

// Choice is a word of the command line and the word's value.
template <class Value>
struct Choice {
  std::string word;
  Value value;
};

// Adds an option whose argument is one of the words.
template <class Value, class Field>
CLI::Option* add_choice(CLI::App* command, const char* name, Field& field,
                        const std::vector<Choice<Value>>& choices, const char* what) {
  std::vector<std::string> words;
  for (const Choice<Value>& choice : choices) words.push_back(choice.word);
  const auto choose = [&field, choices](const std::string& word) {
    field = std::ranges::find(choices, word, &Choice<Value>::word)->value;
  };
  return command->add_option_function<std::string>(name, choose, what)->check(CLI::IsMember(words));
}

// CommandLine has the parsed command line. `exit_code` is that of the subcommand, which runs last.
struct CommandLine {
  CLI::App app{"Reads the files of a Coxswain job.", "cox"};
  ReplayRequest replay;
  JournalRequest journal;
  PlanRequest plan;
  OpsRequest ops;
  WhatIfRequest whatif;
  AnalyzeRequest analyze;
  AnalyzeRequest report;
  DiffRequest diff;
  TraceRequest trace;
  std::string saves;  // argument of checkpoint
  std::string other_saves;
  std::uint32_t files = 1;
  bool is_markdown = false;
  int exit_code = kDone;

  CommandLine() {
    app.set_version_flag("--version", version());
    app.require_subcommand(1);
    add_replay();
    add_journal();
    add_config();
    add_plan();
    add_ops();
    add_whatif();
    add_analyze();
    add_report();
    add_diff();
    add_trace();
    add_checkpoint();
    add_version();
    add_help();
    app.footer(
        "Exit codes: 0 all is well, 1 what the command's line says, 2 wrong use or input.\n"
        "Example: cox replay runs/my-run\ncox COMMAND --help says more about a command.");
  }

 private:
  void add_replay() {
    CLI::App* command = app.add_subcommand(
        "replay", "decides a job's rounds again and compares; exit code 1 on a difference");
    command->footer(
        "  --cox.config=FILE           settings in FILE, put over the recorded ones\n"
        "  --cox.KEY=VALUE             one setting, put over both\n\n"
        "Example: what would guard have done with another threshold?\n"
        "  cox replay runs/my-run --cox.guard.spike_sigmas=4");
    command->add_option("JOURNAL", replay.journal, "a run directory, or its journal.cox")
        ->required();
    command->add_flag("--verbose", replay.is_verbose, "tell every round");
    command->callback([this] { exit_code = replay_command(replay); });
  }

  void add_journal() {
    CLI::App* command =
        app.add_subcommand("journal", "writes a start or a round as a protobuf message");
    command->footer("Example: cox journal runs/my-run --round 5 > round.bin");
    command->add_option("JOURNAL", journal.journal, "a run directory, or its journal.cox")
        ->required();
    command->add_option("--round", journal.round, "its JournalRound; else the newest JournalStart");
    command->callback([this] { exit_code = exit_code_of(journal_command(journal)); });
  }

  void add_config() {
    CLI::App* command =
        app.add_subcommand("config", "lists every setting with its range and default");
    command->add_flag("--markdown", is_markdown, "as the table of docs/configuration.md");
    command->footer("Example: the settings of memory plans\n  cox config | grep memory");
    command->callback(
        [this] { is_markdown ? print_markdown(config_options()) : print_table(config_options()); });
  }

  void add_plan() {
    CLI::App* command = app.add_subcommand(
        "plan", "says what a memory budget costs; exit code 1 when nothing fits");
    command->footer(
        "Example: what would less memory cost this run?\n"
        "  cox plan runs/my-run --budget 6GiB --budget 4GiB");
    auto* profile =
        command->add_option("PROFILE", plan.profile, "a run directory, or its memory_profile.json");
    auto* budgets = command->add_option("--budget", plan.budgets, "bytes of a rank, such as 6GiB");
    budgets->type_name("SIZE")->allow_extra_args(false);
    auto* instances = command->add_option("--instances", plan.instances,
                                          "a JSON line for each instance and budget in FILE");
    instances->type_name("FILE")->excludes(profile)->excludes(budgets);
    command->callback([this] {
      const bool has_profile = !plan.profile.empty() && !plan.budgets.empty();
      if (!has_profile && plan.instances.empty())
        throw CLI::RequiredError("PROFILE and --budget SIZE, or --instances FILE");
      if (plan.budgets.size() > kMostBudgets)
        throw CLI::ValidationError("--budget", fmt::format("at most {} in one call; call it again "
                                                           "for the others",
                                                           kMostBudgets));
      exit_code = exit_code_of(plan_command(plan));
    });
  }

  void add_ops() {
    CLI::App* command = app.add_subcommand(
        "ops", "lists the operators of a run's forward pass by time, bytes or FLOPs");
    command->footer(
        "Example: what takes the time in the layers of a GPT-2?\n"
        "  cox ops runs/my-run --block 'transformer.h.*'");
    command->add_option("RUN", ops.run, "a run directory, or the operators.json of a rank")
        ->required();
    add_choice<OperatorOrder>(command, "--by", ops.order,
                              {{"time", OperatorOrder::time},
                               {"bytes", OperatorOrder::bytes},
                               {"flops", OperatorOrder::flops}},
                              "what to sort by")
        ->type_name("WHAT");
    command->add_option("--block", ops.block, "blocks whose names fit, such as 'h.*'")
        ->type_name("PATTERN");
    command->add_option("--rank", ops.rank, "whose operators; 0 unless given")
        ->type_name("RANK")
        ->check(CLI::Range(0, kMaxRanks - 1));
    add_json_flag(command, ops.form, "as JSON, as the file has it");
    command->callback([this] { exit_code = exit_code_of(ops_command(ops)); });
  }

  void add_whatif() {
    CLI::App* command = app.add_subcommand(
        "whatif", "says how much faster a job would be without stragglers, and who costs it");
    command->footer(
        "Example: which ranks and phases slow this run down?\n"
        "  cox whatif runs/my-run --html what-if.html");
    command
        ->add_option("PATH", whatif.path,
                     "a run directory, or a trace as CSV, packed by gzip or not")
        ->required();
    add_json_flag(command, whatif.form, "all figures as JSON");
    command->add_option("--html", whatif.html, "also writes a page with a heat map to FILE")
        ->type_name("FILE");
    command->callback([this] { exit_code = exit_code_of(whatif_command(whatif)); });
  }

  void add_analyze() {
    CLI::App* command = app.add_subcommand(
        "analyze", "says what a run lost, why, and what to change; exit code 1 by --fail-on");
    command->footer(
        "Example: where did the time go?\n"
        "  cox analyze runs/my-run\n"
        "Example: fail a pipeline on anything severe\n"
        "  cox analyze runs/my-run --fail-on high");
    add_run_options(command, analyze);
    command->add_option("--html", analyze.html, "also writes a page to FILE")->type_name("FILE");
    using diagnosis::Severity;
    add_choice<Severity>(
        command, "--fail-on", analyze.fail_on,
        {{"high", Severity::high}, {"med", Severity::medium}, {"low", Severity::low}},
        "exit code 1 on findings at least as severe")
        ->type_name("SEVERITY");
    add_report_options(command, analyze.rules, analyze.form, analyze.colour);
    command->callback([this] { exit_code = exit_code_of(analyze_command(analyze)); });
  }

  // Adds options for the run and for facts that the run's record lacks.
  static void add_run_options(CLI::App* command, AnalyzeRequest& request) {
    command->add_option("RUN", request.run, "a run directory, or the folder of one rank")
        ->required();
    command->add_option("--warmup", request.warmup, "first steps to leave out (else detected)")
        ->type_name("STEPS");
    command->add_option("--trace", request.trace, "a Chrome / Kineto trace, packed or not")
        ->type_name("FILE");
    command
        ->add_option("--pipeline", request.pipeline,
                     "a pipeline's schedule, or a trace with a device a stage")
        ->type_name("FILE");
    command->add_option("--microbatches", request.microbatches, "micro-batches of a step")
        ->type_name("COUNT")
        ->check(CLI::Range(std::size_t{1}, io::kMaxMicrobatches));
    command->add_option("--flops-per-step", request.flops_per_step, "of one rank")
        ->type_name("FLOPS");
    command
        ->add_option_function<double>(
            "--peak-tflops", [&request](double peak) { request.peak_flops = peak * 1e12; },
            "of one device")
        ->type_name("TFLOPS");
    using diagnosis::RecomputeTime;
    add_choice<RecomputeTime>(command, "--recompute", request.recompute,
                              {{"apart", RecomputeTime::apart}, {"useful", RecomputeTime::useful}},
                              "how its time counts: a line of its own, or as useful")
        ->type_name("WHERE");
  }

  void add_report() {
    CLI::App* command = app.add_subcommand(
        "report", "writes a page about a run: findings, curves, ranks, plans, in one file");
    command->footer(
        "The page asks for nothing from elsewhere and opens from a disk.\n"
        "Example:\n  cox report runs/my-run --out my-run.html");
    add_run_options(command, report);
    command->add_option("--out", report.html, "where the page goes")->type_name("FILE")->required();
    add_rules_option(command, report.rules);
    command->callback([this] { exit_code = exit_code_of(report_command(report)); });
  }

  void add_diff() {
    CLI::App* command = app.add_subcommand(
        "diff", "compares two runs; exit code 1 when they differ beyond the tolerances");
    command->footer(
        "Example: is the new version slower, and does it still learn the same?\n"
        "  cox diff runs/old runs/new --loss-tolerance 1e-6");
    command->add_option("A", diff.a, "a run directory")->required();
    command->add_option("B", diff.b, "another")->required();
    command->add_option("--warmup", diff.tolerance.warmup_steps, "first steps to leave out")
        ->type_name("STEPS");
    const auto add = [command](const char* name, double& value, const char* what) {
      command->add_option(name, value, what)->type_name("RATIO")->check(CLI::Range(0.0, 1.0));
    };
    add("--loss-tolerance", diff.tolerance.loss, "by which losses may differ; 0 unless given");
    add("--time-tolerance", diff.tolerance.time, "by which step times may differ; 0.05");
    add("--memory-tolerance", diff.tolerance.memory, "by which peaks may differ; 0.05");
    add_report_options(command, diff.rules, diff.form, diff.colour);
    command->callback([this] { exit_code = exit_code_of(diff_command(diff)); });
  }

  void add_trace() {
    CLI::App* command =
        app.add_subcommand("trace", "draws a run over time, as JSON that ui.perfetto.dev opens");
    command->footer(
        "Example: what happened around step 400?\n"
        "  cox trace runs/my-run --steps 380:420 --out around-400.json");
    command->add_option("RUN", trace.run, "a run directory, or the folder of one rank")->required();
    command->add_option("--out", trace.out, "else the picture goes to standard output")
        ->type_name("FILE");
    command->add_option("--steps", trace.steps, "first and last step, such as 100:200")
        ->type_name("A:B");
    command->add_option("--ranks", trace.ranks, "such as 0,4-7")->type_name("RANKS");
    command->add_option("--saves", trace.saves, "the folder of saves, to draw them too")
        ->type_name("DIRECTORY");
    command->add_option("--events", trace.most_events, "at most so many; 1,000,000 unless given")
        ->type_name("EVENTS")
        ->check(CLI::Range(std::uint64_t{100}, std::uint64_t{100'000'000}));
    command->callback([this] { exit_code = exit_code_of(trace_command(trace)); });
  }

  static void add_rules_option(CLI::App* command, RuleSet& rules) {
    add_choice<RuleSet>(command, "--rules", rules,
                        {{"coxswain", RuleSet::coxswain}, {"pytscope", RuleSet::pytscope}},
                        "whose; pytscope: as version 0.2.1 has them")
        ->type_name("SET");
  }

  static void add_report_options(CLI::App* command, RuleSet& rules, ReportForm& form,
                                 ColourWish& colour) {
    add_rules_option(command, rules);
    add_choice<ColourWish>(command, "--color", colour,
                           {{"auto", ColourWish::automatic},
                            {"always", ColourWish::always},
                            {"never", ColourWish::never}},
                           "else by NO_COLOR, FORCE_COLOR and the terminal")
        ->type_name("WHEN");
    add_json_flag(command, form, "all figures as JSON");
  }

  static void add_json_flag(CLI::App* command, ReportForm& form, const char* what) {
    command->add_flag_callback(
        "--json", [&form] { form = ReportForm::json; }, what);
  }

  static int exit_code_of(const Status& done) {
    return done.ok() ? kDone : complain(done.message());
  }

  static int exit_code_of(const Result<Verdict>& verdict) {
    if (!verdict.ok()) return complain(verdict.status().message());
    return *verdict == Verdict::yes ? kDone : kNo;
  }

  void add_checkpoint() {
    CLI::App* command = app.add_subcommand(
        "checkpoint", "lists, checks, compares, merges or takes over saves; exit code 1 on damage");
    command->require_subcommand(1);
    command->footer(
        "Example: can the newest save be resumed from?\n  cox checkpoint verify runs/saves");
    CLI::App* ls = command->add_subcommand("ls", "a line for each save of a folder");
    ls->add_option("DIRECTORY", saves, "checkpoint.directory of a run")->required();
    ls->footer("Example: which saves does a run have?\n  cox checkpoint ls runs/saves");
    ls->callback([this] { exit_code = exit_code_of(list_saves(saves)); });
    CLI::App* verify =
        command->add_subcommand("verify", "reads every byte and compares it with the manifest");
    verify->add_option("PATH", saves, "a save, or a folder of saves")->required();
    verify->callback([this] { exit_code = exit_code_of(verify_saves(saves)); });
    CLI::App* seal = command->add_subcommand(
        "seal",
        "writes a manifest for what lies in the folder: of version 0.2, or changed by hand");
    seal->add_option("SAVE", saves, "the folder of one save")->required();
    seal->footer(
        "Example: weights were changed by hand, and shall be resumed from\n"
        "  cox checkpoint seal runs/saves/step-000000000400");
    seal->callback([this] { exit_code = exit_code_of(seal_save(saves)); });
    add_tensor_commands(*command);
  }

  void add_tensor_commands(CLI::App& checkpoint) {
    CLI::App* compare = checkpoint.add_subcommand(
        "diff", "names the tensors of two saves that differ, by how much");
    compare->add_option("BEFORE", saves, "a save, or a safetensors file")->required();
    compare->add_option("AFTER", other_saves, "another one")->required();
    compare->footer(
        "Example: which weights did ten steps change?\n"
        "  cox checkpoint diff runs/saves/step-000000000390 runs/saves/step-000000000400");
    compare->callback([this] { exit_code = exit_code_of(diff_saves(saves, other_saves)); });
    CLI::App* merge =
        checkpoint.add_subcommand("merge", "writes the tensors of all ranks into one file a kind");
    merge->add_option("FROM", saves, "a save, or a folder of safetensors files")->required();
    merge->add_option("TO", other_saves, "a new folder, or NAME.safetensors for the model alone")
        ->required();
    merge->callback([this] { exit_code = exit_code_of(merge_saves(saves, other_saves)); });
    CLI::App* split = checkpoint.add_subcommand(
        "split", "divides a file into several with an index, as Hugging Face calls them");
    split->add_option("FROM", saves, "a safetensors file")->required();
    split->add_option("FOLDER", other_saves, "where the files go")->required();
    split->add_option("FILES", files, "how many")->required();
    split->callback([this] { exit_code = exit_code_of(split_file(saves, other_saves, files)); });
  }

  void add_version() {
    CLI::App* command = app.add_subcommand("version", "prints the version");
    command->footer("Example:\n  cox version");
    command->callback([] { fmt::print("{}\n", version()); });
  }

  void add_help() {
    CLI::App* command = app.add_subcommand("help", "prints this text");
    command->footer("Example: what does `cox plan` take?\n  cox plan --help");
    command->callback([this] {
      // help() would describe the subcommand on the command line, which is `help` itself.
      constexpr auto kMode = CLI::AppFormatMode::Normal;
      fmt::print("{}", app.get_formatter()->make_help(&app, app.get_name(), kMode));
    });
  }
};

// --- Unknown words.

std::vector<std::string> known_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Returns an error about the first option that `command` does not have; empty if all are known.
std::string unknown_option(const CLI::App& command, const std::string& name,
                           std::span<const std::string> arguments) {
  const std::vector<std::string> known = known_options(command);
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    const std::string option = argument.substr(0, argument.find('='));
    if (!option.starts_with("--") || std::ranges::count(known, option) > 0) continue;
    return fmt::format("{} has no option '{}'; the nearest is '{}'; see {} --help", name,
                       shown(option), nearest(known, option), name);
  }
  return {};
}

// Returns an error about the first word that is no command, or no option of the command; empty if
// all are known.
std::string unknown_word(const CLI::App& app, std::span<const std::string> arguments) {
  if (arguments.empty()) return {};
  const std::string& first = arguments.front();
  if (first.starts_with("-")) return unknown_option(app, "cox", arguments.first(1));
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == first)
      return unknown_option(*command, "cox " + first, arguments.subspan(1));
    names.push_back(command->get_name());
  }
  return fmt::format("no command is called '{}'; the nearest is '{}'; see cox --help", shown(first),
                     nearest(names, first));
}

// Moves --cox.key=value and --cox.key value out of the arguments, because these are settings of the
// job.
std::vector<std::string> take_settings(std::vector<std::string>& arguments) {
  std::vector<std::string> settings;
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--cox.")) {
      rest.push_back(arguments[i]);
      continue;
    }
    settings.push_back(arguments[i]);
    const bool has_value = arguments[i].find('=') != std::string::npos;
    if (!has_value && i + 1 < arguments.size()) settings.push_back(arguments[++i]);
  }
  arguments = std::move(rest);
  return settings;
}

int run(std::vector<std::string> arguments) {
  CommandLine line;
  line.replay.flags = take_settings(arguments);
  const std::string command = arguments.empty() ? "" : arguments.front();
  const std::string unknown = unknown_word(line.app, arguments);
  if (!unknown.empty()) return complain(unknown);
  if (!line.replay.flags.empty() && command != "replay")
    return complain("expected settings (--cox.*) behind 'replay' only; see cox --help");
  std::ranges::reverse(arguments);  // the order that CLI11 expects
  try {
    line.app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return line.app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::ranges::replace(message, '\n', ' ');
    return complain(message + "; see cox " + (command.empty() ? "" : command + " ") + "--help");
  }
  return line.exit_code;
}

}  // namespace

}  // namespace cox::tools

int main(int argc, char** argv) try {
  const cox::io::FileSizeSignal file_size_signal;
  return cox::tools::run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  return cox::tools::complain(error.what());
}
