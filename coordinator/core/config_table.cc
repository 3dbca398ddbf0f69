#include "coordinator/core/config_table.h"

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "coordinator/core/config_values.h"

namespace cox {
namespace {

namespace values = config_values;

constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
constexpr std::string_view kPoliciesToCome[] = {"loss_scale", "precision", "memory", "shares",
                                                "cadence"};

// What a row says besides its kind and range.
struct Words {
  std::string key;
  std::string unit;
  std::string help;
  Scope scope = Scope::job;
};

ConfigRow row(const Words& words, std::string kind, std::string range) {
  ConfigRow made;
  made.option = {words.key, std::move(kind), std::move(range), words.unit, "", words.help};
  made.scope = words.scope;
  return made;
}

// `field` maps a Config, const or not, to the setting itself.
template <class Field>
ConfigRow integer(const Words& words, values::IntegerRange range, Field field) {
  ConfigRow made =
      row(words, "integer", std::to_string(range.min) + " .. " + std::to_string(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    const Result<std::uint64_t> value = values::parse_integer(text, range);
    if (!value.ok()) return value.status();
    field(config) = static_cast<std::remove_reference_t<decltype(field(config))>>(*value);
    return ok_status();
  };
  made.get = [field](const Config& config) { return std::to_string(field(config)); };
  return made;
}

template <class Field>
ConfigRow number(const Words& words, values::NumberRange range, Field field) {
  ConfigRow made =
      row(words, "number", values::format(range.min) + " .. " + values::format(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    const Result<double> value = values::parse_number(text, range);
    if (value.ok()) field(config) = *value;
    return value.status();
  };
  made.get = [field](const Config& config) { return values::format(field(config)); };
  return made;
}

// An enum whose values count through `names`.
template <class Field>
ConfigRow choice(const Words& words, std::string kind, std::span<const std::string_view> names,
                 Field field) {
  ConfigRow made = row(words, std::move(kind), values::join(names));
  made.set = [names, field](Config& config, std::string_view text) {
    const Result<std::size_t> index = values::parse_name(text, names);
    if (!index.ok()) return index.status();
    field(config) = static_cast<std::remove_reference_t<decltype(field(config))>>(*index);
    return ok_status();
  };
  made.get = [names, field](const Config& config) {
    return std::string(names[static_cast<std::size_t>(field(config))]);
  };
  return made;
}

template <class Field>
ConfigRow flag(const Words& words, Field field) {
  ConfigRow made = row(words, "switch", values::join(values::kSwitchNames));
  made.set = [field](Config& config, std::string_view text) {
    const Result<bool> value = values::parse_switch(text);
    if (value.ok()) field(config) = *value;
    return value.status();
  };
  made.get = [field](const Config& config) {
    return std::string(values::kSwitchNames[field(config) ? 1 : 0]);
  };
  return made;
}

template <class Field>
ConfigRow words_of(const Words& words, Field field) {
  ConfigRow made = row(words, "text", "any text");
  made.set = [field](Config& config, std::string_view text) {
    field(config) = std::string(text);
    return ok_status();
  };
  made.get = [field](const Config& config) { return field(config); };
  return made;
}

template <class Field>
ConfigRow list(const Words& words, values::IntegerRange range, Field field) {
  ConfigRow made =
      row(words, "list", "each " + std::to_string(range.min) + " .. " + std::to_string(range.max));
  made.set = [range, field](Config& config, std::string_view text) {
    Result<std::vector<std::uint32_t>> value = values::parse_list(text, range);
    if (value.ok()) field(config) = *std::move(value);
    return value.status();
  };
  made.get = [field](const Config& config) { return values::format(field(config)); };
  return made;
}

#define COX_FIELD(path)  \
  [](auto& c) -> auto& { \
    return c.path;       \
  }

void add_run(std::vector<ConfigRow>& t) {
  t.push_back(words_of({"run.name", "", "what the run is called"}, COX_FIELD(run.name)));
  t.push_back(words_of({"run.directory", "", "run directory; empty = none is written", Scope::rank},
                       COX_FIELD(run.directory)));
  t.push_back(choice({"run.log", "", "what is printed", Scope::rank}, "choice", values::kLogNames,
                     COX_FIELD(run.log)));
  t.push_back(integer({"run.warmup_steps", "steps", "left out of timing statistics"}, {0, 1000000},
                      COX_FIELD(run.warmup_steps)));
  t.push_back(integer({"run.seed", "", "of everything random"}, {0, kAny}, COX_FIELD(run.seed)));
}

void add_control(std::vector<ConfigRow>& t) {
  t.push_back(choice({"control.path", "", "how reports and plans travel within a node"}, "choice",
                     values::kPathNames, COX_FIELD(control.path)));
  t.push_back(integer({"control.ranks_per_node", "ranks", "0 = as the machine says; else pretend"},
                      {0, 4096}, COX_FIELD(control.ranks_per_node)));
  t.push_back(
      number({"control.late_seconds", "seconds", "a rank silent for that long misses its round"},
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
      {"checkpoint.directory", "", "where training state is saved; empty = none", Scope::rank},
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

#undef COX_FIELD

// Modes of policies that have no struct of their own here.
void add_policy_modes(const Config& config, std::vector<ConfigRow>& t) {
  std::map<std::string, PolicyMode, std::less<>> names = config.policy_modes;
  for (const std::string_view name : kPoliciesToCome) names.emplace(name, PolicyMode::off);
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
      {"force.shares", "samples", "forced shares, one per rank; empty = free"}, {0, 1 << 20},
      [](auto& c) -> auto& { return c.force.shares; }));
  add_policy_modes(config, table);
  const Config defaults;
  for (ConfigRow& made : table) made.option.fallback = made.get(defaults);
  return table;
}

}  // namespace cox
