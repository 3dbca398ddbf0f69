#include "coordinator/core/config_table.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/core/config_rows.h"

namespace cox {
namespace {

using namespace config_rows;  // the builders of rows

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
constexpr std::string_view kPoliciesWithRows[] = {
    "guard", "stragglers", "memory", "precision", "loss_scale", "shares", "accumulation"};

void add_run(std::vector<ConfigRow>& t) {
  t.push_back(words_of({"run.name", "", "what the run is called"}, COX_FIELD(run.name)));
  t.push_back(
      words_of({"run.directory", "", "run directory; empty = none is written", Scope::set_alike},
               COX_FIELD(run.directory)));
  t.push_back(choice({"run.log", "", "what is printed", Scope::rank}, "choice", values::kLogNames,
                     COX_FIELD(run.log)));
  t.push_back(integer({"run.warmup_steps", "steps", "left out of timing statistics"}, {0, 1000000},
                      COX_FIELD(run.warmup_steps)));
  t.push_back(integer({"run.seed", "", "of everything random"}, {0, kAny}, COX_FIELD(run.seed)));
  t.push_back(number({"run.price_per_device_hour", "price",
                      "of the device of one rank, for the summary at the end; 0 = not given"},
                     {0, 1e9}, COX_FIELD(run.price_per_device_hour)));
}

void add_control(std::vector<ConfigRow>& t) {
  t.push_back(choice({"control.path", "", "how reports and plans travel within a node"}, "choice",
                     values::kPathNames, COX_FIELD(control.path)));
  t.push_back(integer({"control.ranks_per_node", "ranks", "0 = as the machine says; else pretend"},
                      {0, 4096}, COX_FIELD(control.ranks_per_node)));
  t.push_back(number({"control.late_seconds", "seconds",
                      "a rank silent for one to three times that misses its round"},
                     {0.01, 3600}, COX_FIELD(control.late_seconds)));
  t.push_back(words_of({"control.journal", "", "file; empty = in the run directory", Scope::rank},
                       COX_FIELD(control.journal)));
}

void add_http(std::vector<ConfigRow>& t) {
  t.push_back(
      flag({"http.enabled", "", "serve metrics and status", Scope::rank}, COX_FIELD(http.enabled)));
  t.push_back(
      words_of({"http.host", "", "address to listen on", Scope::rank}, COX_FIELD(http.host)));
  t.push_back(integer({"http.port", "", "0 = any free one, printed at start", Scope::rank},
                      {0, 65535}, COX_FIELD(http.port)));
}

void add_checkpoint(std::vector<ConfigRow>& t) {
  t.push_back(words_of(
      {"checkpoint.directory", "", "where training state is saved; empty = none", Scope::set_alike},
      COX_FIELD(checkpoint.directory)));
  t.push_back(integer({"checkpoint.every_steps", "steps", "0 = only at the end and on SIGTERM"},
                      {0, 1000000000}, COX_FIELD(checkpoint.every_steps)));
  t.push_back(integer({"checkpoint.keep", "saves", "newest ones kept"}, {1, 1000},
                      COX_FIELD(checkpoint.keep)));
  t.push_back(flag({"checkpoint.resume", "", "continue from the newest whole one"},
                   COX_FIELD(checkpoint.resume)));
  t.push_back(
      integer({"checkpoint.snapshot_rounds", "rounds", "in-memory snapshot that often; 0 = none"},
              {0, 1000000}, COX_FIELD(checkpoint.snapshot_rounds)));
}

void add_guard(std::vector<ConfigRow>& t) {
  t.push_back(choice({"guard.mode", "", "acts on trouble with the loss"}, "mode",
                     values::kModeNames, COX_FIELD(guard.mode)));
  t.push_back(integer({"guard.nonfinite_streak", "rounds", "non-finite ones in a row to act on"},
                      {1, 1000000}, COX_FIELD(guard.nonfinite_streak)));
  t.push_back(number({"guard.spike_sigmas", "deviations", "above the median loss is a spike ..."},
                     {1, 1000}, COX_FIELD(guard.spike_sigmas)));
  t.push_back(number({"guard.spike_ratio", "ratio", "... if also above this many times it"},
                     {1, 1000}, COX_FIELD(guard.spike_ratio)));
  t.push_back(integer({"guard.spike_rounds", "rounds", "in a row that must spike"}, {1, 1000},
                      COX_FIELD(guard.spike_rounds)));
  t.push_back(integer({"guard.window_rounds", "rounds", "history compared with"}, {8, 256},
                      COX_FIELD(guard.window_rounds)));
  t.push_back(integer({"guard.hold_rounds", "rounds", "knobs rest for that long after trouble"},
                      {0, 1000000}, COX_FIELD(guard.hold_rounds)));
  t.push_back(integer({"guard.max_rollbacks", "rollbacks", "of one job; 0 = only ever hold"},
                      {0, 1000}, COX_FIELD(guard.max_rollbacks)));
}

void add_stragglers(std::vector<ConfigRow>& t) {
  t.push_back(choice({"stragglers.mode", "", "names slow ranks"}, "mode", values::kModeNames,
                     COX_FIELD(stragglers.mode)));
  t.push_back(integer({"stragglers.min_rounds", "rounds", "reports of a rank before it is named"},
                      {4, 100000}, COX_FIELD(stragglers.min_rounds)));
  t.push_back(number({"stragglers.slowdown_ratio", "ratio", "smallest one worth naming"},
                     {1.01, 10}, COX_FIELD(stragglers.slowdown_ratio)));
  t.push_back(number({"stragglers.false_alarms_per_rank_step", "alarms",
                      "stated rate on noise, per rank and step"},
                     {1e-12, 0.01}, COX_FIELD(stragglers.false_alarms_per_rank_step)));
}

// Modes of policies that have no struct of their own here.
void add_policy_modes(const Config& config, std::vector<ConfigRow>& t) {
  std::map<std::string, PolicyMode, std::less<>> names = config.policy_modes;
  for (const std::string_view name : kPoliciesWithRows) names.erase(std::string(name));
  for (const auto& [name, unused] : names) {
    ConfigRow made = row({name + ".mode", "", "of the policy " + name}, "mode",
                         values::join(values::kModeNames));
    made.set = [name = name](Config& c, std::string_view text) {
      const Result<std::size_t> index = values::parse_name(text, values::kModeNames);
      if (index.ok()) c.policy_modes[name] = static_cast<PolicyMode>(*index);
      return index.status();
    };
    made.get = [name = name](const Config& c) {
      return std::string(
          values::kModeNames[static_cast<std::size_t>(mode_of(c, name, PolicyMode::off))]);
    };
    t.push_back(std::move(made));
  }
}

}  // namespace

std::vector<ConfigRow> config_table(const Config& config) {
  std::vector<ConfigRow> table;
  add_run(table);
  add_control(table);
  add_http(table);
  add_checkpoint(table);
  add_guard(table);
  add_stragglers(table);
  table.push_back(list(
      {"force.shares", "ratio", "relative, one per rank, from the first step on; empty = free"},
      {0, 1 << 20}, [](auto& c) -> auto& { return c.force.shares; }));
  add_memory(table);
  add_precision(table);
  add_loss_scale(table);
  add_reduction(table);
  add_shares(table);
  add_accumulation(table);
  add_policy_modes(config, table);
  const Config defaults;
  for (ConfigRow& made : table) made.option.fallback = made.get(defaults);
  return table;
}

}  // namespace cox
