#include "coordinator/core/config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"

namespace cox {
namespace {

using Row = Setting<Config>;

// Variables of scripts, tests and the build that are no settings.
constexpr std::array<std::string_view, 7> kOtherVariables = {
    "COX_CONFIG", "COX_CACHE",      "COX_SHM_DIR",  "COX_MPIEXEC",
    "COX_MPICXX", "COX_TORCH_ROOT", "COX_FAKE_NCCL"};
constexpr std::string_view kTestPrefix = "COX_TEST_";
constexpr std::string_view kFlagPrefix = "--cox.";
constexpr std::string_view kModeSuffix = ".mode";

struct Alias {
  std::string_view variable;
  std::string_view key;
};
constexpr std::array<Alias, 2> kAliases = {
    {{"COX_CONTROL", "control.path"}, {"COX_LOG", "run.log"}}};

std::vector<Row> make_rows() {
  std::vector<Row> rows;
  for_each_section([&](std::string_view name, auto section, auto settings_of) {
    for (auto& setting : settings_of()) {
      rows.push_back(settings::within(section, std::move(setting)));
      rows.back().name.key.insert(0, concat(name, "."));
    }
  });
  return rows;
}

// Made once, because every round looks up modes.
const std::vector<Row>& section_rows() {
  static const std::vector<Row>& rows = never_destroyed(make_rows());
  return rows;
}

using RowsByName = std::map<std::string, const Row*, std::less<>>;

template <class NameOf>
RowsByName rows_by(NameOf name_of) {
  RowsByName rows;
  for (const Row& row : section_rows()) rows.emplace(name_of(row.name.key), &row);
  return rows;
}

const Row* find_row(const RowsByName& rows, std::string_view name) {
  const auto found = rows.find(name);
  return found == rows.end() ? nullptr : found->second;
}

const Row* section_row(std::string_view key) {
  static const RowsByName& rows =
      never_destroyed(rows_by([](const std::string& each) { return each; }));
  return find_row(rows, key);
}

RowsByName find_mode_rows() {
  RowsByName rows;
  for (const Row& row : section_rows()) {
    const std::string_view key = row.name.key;
    if (row.mode && key.ends_with(kModeSuffix))
      rows.emplace(std::string(key.substr(0, key.size() - kModeSuffix.size())), &row);
  }
  return rows;
}

// Called for every policy in every round.
const Row* mode_row(std::string_view policy) {
  static const RowsByName& rows = never_destroyed(find_mode_rows());
  return find_row(rows, policy);
}

Row own_mode_row(const std::string& policy) {
  Row row{{concat(policy, kModeSuffix), "", concat("of the policy ", policy)},
          "mode",
          settings::join(settings::kModeNames)};
  row.set = [policy](Config& config, std::string_view text) {
    const Result<std::size_t> index = settings::parse_name(text, settings::kModeNames);
    if (index.ok()) config.policy_modes[policy] = static_cast<PolicyMode>(*index);
    return index.status();
  };
  row.get = [policy](const Config& config) {
    const PolicyMode mode = mode_of(config, policy);
    return std::string(settings::kModeNames[static_cast<std::size_t>(mode)]);
  };
  return row;
}

// Returns the modes of policies that `config` knows by name and that have no section.
std::vector<Row> own_mode_rows(const Config& config) {
  std::vector<Row> rows;
  for (const auto& [policy, unused] : config.policy_modes) {
    if (!has_mode_setting(policy)) rows.push_back(own_mode_row(policy));
  }
  return rows;
}

template <class Visit>
void for_each_row(const Config& config, Visit visit) {
  for (const Row& row : section_rows()) visit(row);
  for (const Row& row : own_mode_rows(config)) visit(row);
}

std::string nearest_key(const Config& config, std::string_view key) {
  std::vector<std::string> keys;
  for_each_row(config, [&keys](const Row& row) { keys.push_back(row.name.key); });
  return nearest(keys, key);
}

std::string what_must_be_equal(const Row& row, const Config& config) {
  const std::string value = row.get(config);
  if (row.name.scope == Scope::job) return value;
  return value.empty() ? "" : "set";
}

// Checks that each value can be read from text: values that a program sets are checked like a
// file's.
Status check_values(const Config& config) {
  Config scratch = config;
  for (const Row& row : section_rows()) {
    const Status status = row.set(scratch, row.get(config));
    if (!status.ok()) return status.with_context(row.name.key);
  }
  return ok_status();
}

bool is_setting(std::string_view variable) {
  return !variable.starts_with(kTestPrefix) &&
         std::ranges::find(kOtherVariables, variable) == kOtherVariables.end();
}

std::string variable_of(std::string_view key) {
  std::string name = concat("COX_", upper_case(key));
  std::ranges::replace(name, '.', '_');
  return name;
}

// Returns the key of a variable, or an empty text.
std::string key_of_variable(const Config& config, std::string_view variable) {
  static const RowsByName& sections = never_destroyed(rows_by(variable_of));
  for (const Alias& alias : kAliases) {
    if (alias.variable == variable) return std::string(alias.key);
  }
  if (const Row* row = find_row(sections, variable)) return row->name.key;
  for (const Row& row : own_mode_rows(config)) {
    if (variable_of(row.name.key) == variable) return row.name.key;
  }
  return {};
}

std::string nearest_variable(const Config& config, std::string_view variable) {
  std::string key = lower_case(variable.substr(4));
  std::ranges::replace(key, '_', '.');
  return variable_of(nearest_key(config, key));
}

// A '#' outside of quotes starts a comment.
std::string_view without_comment(std::string_view line) {
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quoted && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == '#' && !quoted) {
      return line.substr(0, i);
    }
  }
  return line;
}

Status apply_line(Config& config, std::string_view line) {
  line = settings::trim(without_comment(line));
  if (line.empty()) return ok_status();
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos)
    return invalid_argument("expected 'key = value', found '", shown(line), "'");
  const std::string_view key = settings::trim(line.substr(0, equals));
  const Result<std::string> value = settings::unquote(settings::trim(line.substr(equals + 1)));
  if (!value.ok()) return value.status().with_context(shown(key));
  return set_option(config, key, *value);
}

}  // namespace

std::vector<ConfigOption> config_options(const Config& config) {
  const Config defaults;
  std::vector<ConfigOption> options;
  for_each_row(config, [&](const Row& row) {
    options.push_back({row.name.key, row.kind, row.range, row.name.unit, row.get(defaults),
                       row.name.help, row.get(config)});
  });
  return options;
}

Status set_option(Config& config, std::string_view key, std::string_view value) {
  if (const Row* row = section_row(key)) return row->set(config, value).with_context(row->name.key);
  for (const Row& row : own_mode_rows(config)) {
    if (row.name.key == key) return row.set(config, value).with_context(row.name.key);
  }
  return invalid_argument("no setting is called '", shown(key), "'; the nearest is '",
                          nearest_key(config, key), "'");
}

Status apply_text(Config& config, std::string_view text, std::string_view origin) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const Status status = apply_line(config, text.substr(0, end));
    if (!status.ok()) return status.with_context(concat(origin, ":", number));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return ok_status();
}

Status apply_environment(Config& config, std::span<const std::string> environment) {
  for (const std::string& entry : environment) {
    if (!entry.starts_with("COX_")) continue;
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string variable = entry.substr(0, equals);
    if (!is_setting(variable)) continue;
    const std::string key = key_of_variable(config, variable);
    if (key.empty()) {
      return invalid_argument("environment: no setting belongs to ", shown(variable),
                              "; the nearest is ", nearest_variable(config, variable));
    }
    const std::string value = equals < entry.size() ? entry.substr(equals + 1) : std::string();
    const Status status = set_option(config, key, value);
    if (!status.ok()) return status.with_context(concat("environment: ", variable));
  }
  return ok_status();
}

Result<FlagsApplied> apply_flags(Config& config, std::span<const std::string> arguments) {
  FlagsApplied applied;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      applied.rest.insert(applied.rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                          arguments.end());
      break;
    }
    if (!argument.starts_with(kFlagPrefix)) {
      applied.rest.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string key = argument.substr(kFlagPrefix.size(), equals - kFlagPrefix.size());
    if (equals == std::string::npos && i + 1 == arguments.size())
      return invalid_argument("flags: ", shown(argument), " needs a value: ", shown(argument),
                              "=VALUE");
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (key == "config" && value.empty())
      return invalid_argument("flags: --cox.config: expected a file, found nothing");
    if (key == "config") continue;  // the file was read before the flags
    const Status status = set_option(config, key, value);
    if (!status.ok()) return status.with_context(concat("flags: --cox.", shown(key)));
  }
  return applied;
}

std::string config_file(std::span<const std::string> environment,
                        std::span<const std::string> arguments) {
  constexpr std::string_view kFlag = "--cox.config";
  constexpr std::string_view kVariable = "COX_CONFIG=";
  std::string path;
  for (const std::string& entry : environment) {
    if (entry.starts_with(kVariable)) path = entry.substr(kVariable.size());
  }
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (arguments[i] == kFlag && i + 1 < arguments.size()) path = arguments[i + 1];
    if (arguments[i].starts_with(concat(kFlag, "="))) path = arguments[i].substr(kFlag.size() + 1);
  }
  return path;
}

Status validate(const Config& config) {
  Status status = check_values(config);
  for_each_section([&](std::string_view, auto section, auto) {
    if constexpr (requires { validate(config.*section); }) {
      if (status.ok()) status = validate(config.*section);
    }
  });
  return status;
}

Status make_paths_absolute(Config& config, const std::filesystem::path& from) {
  for (const Row& row : section_rows()) {
    const std::filesystem::path path = row.is_path ? row.get(config) : std::string();
    if (path.empty() || path.is_absolute()) continue;
    if (from.empty())
      return failed_precondition(
          row.name.key, ": expected a working directory to find ", path.string(),
          " from, found none: the directory was removed; use an ", "absolute path");
    // Behind a folder that is a link, ".." leads elsewhere than the text suggests.
    const bool has_parent = std::ranges::find(path, std::filesystem::path("..")) != path.end();
    const std::filesystem::path whole = from / path;
    const std::string text = has_parent ? whole.string() : whole.lexically_normal().string();
    if (Status set = row.set(config, text); !set.ok()) return set;
  }
  return ok_status();
}

std::string text(const Config& config) {
  std::string out;
  for_each_row(config, [&](const Row& row) {
    out += concat(row.name.key, " = ", settings::quote(row.get(config)), "\n");
  });
  return out;
}

std::uint64_t fingerprint(const Config& config) {
  Fnv1a64 hash;
  for_each_row(config, [&](const Row& row) {
    if (row.name.scope == Scope::rank) return;
    hash.add(concat(row.name.key, "=", what_must_be_equal(row, config), "\n"));
  });
  return hash.value();
}

bool has_mode_setting(std::string_view policy) {
  return mode_row(policy) != nullptr;
}

PolicyMode mode_of(const Config& config, std::string_view policy) {
  if (const Row* row = mode_row(policy)) return row->mode(config);
  const auto found = config.policy_modes.find(policy);
  return found == config.policy_modes.end() ? PolicyMode::on : found->second;
}

}  // namespace cox
