#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/config_table.h"
#include "coordinator/core/config_values.h"

namespace cox {
namespace {

using config_values::trim;

// Variables of scripts, tests and the build that are no settings.
constexpr std::array<std::string_view, 6> kOtherVariables = {
    "COX_CONFIG", "COX_CACHE", "COX_SHM_DIR", "COX_MPIEXEC", "COX_MPICXX", "COX_TORCH_ROOT"};
constexpr std::string_view kTestPrefix = "COX_TEST_";

bool is_setting(std::string_view variable) {
  return !variable.starts_with(kTestPrefix) &&
         std::find(kOtherVariables.begin(), kOtherVariables.end(), variable) ==
             kOtherVariables.end();
}

struct Alias {
  std::string_view variable;
  std::string_view key;
};
constexpr std::array<Alias, 2> kAliases = {
    {{"COX_CONTROL", "control.path"}, {"COX_LOG", "run.log"}}};

std::string variable_of(std::string_view key) {
  std::string name = "COX_";
  for (const char c : key) {
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// The key that a variable stands for; empty when there is none.
std::string key_of_variable(const std::vector<ConfigRow>& table, std::string_view variable) {
  for (const Alias& alias : kAliases) {
    if (alias.variable == variable) return std::string(alias.key);
  }
  for (const ConfigRow& row : table) {
    if (variable_of(row.option.key) == variable) return row.option.key;
  }
  return {};
}

std::string nearest_variable(const std::vector<ConfigRow>& table, std::string_view variable) {
  std::string key(variable.substr(4));
  std::transform(key.begin(), key.end(), key.begin(), [](unsigned char c) {
    return c == '_' ? '.' : static_cast<char>(std::tolower(c));
  });
  return variable_of(nearest_key(table, key));
}

// A '#' outside of quotes ends what counts.
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
  line = trim(without_comment(line));
  if (line.empty()) return ok_status();
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    return invalid_argument("expected 'key = value', found '" + std::string(line) + "'");
  }
  const std::string_view key = trim(line.substr(0, equals));
  const Result<std::string> value = config_values::unquote(trim(line.substr(equals + 1)));
  if (!value.ok()) return value.status().with_context(std::string(key));
  return set_option(config, key, *value);
}

}  // namespace

Status apply_text(Config& config, std::string_view text, std::string_view origin) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const Status status = apply_line(config, text.substr(0, end));
    if (!status.ok()) {
      return status.with_context(std::string(origin) + ":" + std::to_string(number));
    }
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return ok_status();
}

Status apply_environment(Config& config, std::span<const std::string> environment) {
  const std::vector<ConfigRow> table = config_table(config);
  for (const std::string& entry : environment) {
    if (!entry.starts_with("COX_")) continue;
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string variable = entry.substr(0, equals);
    if (!is_setting(variable)) continue;
    const std::string key = key_of_variable(table, variable);
    if (key.empty()) {
      return invalid_argument("environment: no setting belongs to " + variable +
                              "; the nearest is " + nearest_variable(table, variable));
    }
    const std::string value = equals < entry.size() ? entry.substr(equals + 1) : std::string();
    const Status status = set_option(config, key, value);
    if (!status.ok()) return status.with_context("environment: " + variable);
  }
  return ok_status();
}

Result<FlagsApplied> apply_flags(Config& config, std::span<const std::string> arguments) {
  constexpr std::string_view kPrefix = "--cox.";
  FlagsApplied applied;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      applied.rest.insert(applied.rest.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                          arguments.end());
      break;
    }
    if (!argument.starts_with(kPrefix)) {
      applied.rest.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string key = argument.substr(kPrefix.size(), equals - kPrefix.size());
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return invalid_argument("flags: " + argument + " needs a value: " + argument + "=VALUE");
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (key == "config") continue;  // the file was read before the flags
    const Status status = set_option(config, key, value);
    if (!status.ok()) return status.with_context("flags: --cox." + key);
  }
  return applied;
}

}  // namespace cox
