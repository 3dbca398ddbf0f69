#include "coordinator/core/config.h"

#include <algorithm>
#include <numeric>

#include "coordinator/core/config_table.h"
#include "coordinator/core/config_values.h"
#include "coordinator/core/hash.h"

namespace cox {
namespace {

// Edits that turn one word into the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0u);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string what_must_be_equal(const ConfigRow& row, const Config& config) {
  const std::string value = row.get(config);
  if (row.scope == Scope::job) return value;
  return value.empty() ? "" : "set";
}

}  // namespace

std::string nearest_key(const std::vector<ConfigRow>& table, std::string_view key) {
  const auto nearest =
      std::min_element(table.begin(), table.end(), [key](const auto& a, const auto& b) {
        return distance(a.option.key, key) < distance(b.option.key, key);
      });
  return nearest == table.end() ? std::string() : nearest->option.key;
}

std::vector<ConfigOption> config_options() {
  std::vector<ConfigOption> options;
  for (ConfigRow& row : config_table({})) options.push_back(std::move(row.option));
  return options;
}

Status set_option(Config& config, std::string_view key, std::string_view value) {
  const std::vector<ConfigRow> table = config_table(config);
  for (const ConfigRow& row : table) {
    if (row.option.key == key) return row.set(config, value).with_context(row.option.key);
  }
  return invalid_argument("no setting is called '" + std::string(key) + "'; the nearest is '" +
                          nearest_key(table, key) + "'");
}

Status validate(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.directory.empty() && checkpoint.every_steps > 0) {
    return invalid_argument(
        "checkpoint.every_steps is set but checkpoint.directory is empty; say where to save");
  }
  if (checkpoint.directory.empty() && checkpoint.resume) {
    return invalid_argument(
        "checkpoint.resume is on but checkpoint.directory is empty; say what to resume from");
  }
  const std::vector<std::uint32_t>& shares = config.force.shares;
  const bool nobody_works =
      std::all_of(shares.begin(), shares.end(), [](std::uint32_t share) { return share == 0; });
  if (!shares.empty() && nobody_works) {
    return invalid_argument("force.shares gives no rank any work; at least one must be above 0");
  }
  if (config.http.enabled && config.http.host.empty()) {
    return invalid_argument("http.host is empty; give an address or set http.enabled = off");
  }
  Status status = validate(config.memory);
  if (status.ok()) status = validate(config.precision);
  if (status.ok()) status = validate(config.loss_scale);
  if (status.ok()) status = validate(config.reduction);
  if (status.ok()) status = validate(config.shares);
  if (status.ok()) status = validate(config.accumulation);
  return status;
}

std::string text(const Config& config) {
  std::string out;
  for (const ConfigRow& row : config_table(config)) {
    out += row.option.key + " = " + config_values::quote(row.get(config)) + "\n";
  }
  return out;
}

std::uint64_t fingerprint(const Config& config) {
  Fnv1a64 hash;
  for (const ConfigRow& row : config_table(config)) {
    if (row.scope == Scope::rank) continue;
    hash.add(row.option.key + "=" + what_must_be_equal(row, config) + "\n");
  }
  return hash.value();
}

PolicyMode mode_of(const Config& config, std::string_view policy, PolicyMode fallback) {
  if (policy == "guard") return config.guard.mode;
  if (policy == "stragglers") return config.stragglers.mode;
  if (policy == "memory") {
    return config.memory.mode.value_or(wants_memory_plan(config.memory) ? PolicyMode::on
                                                                        : PolicyMode::off);
  }
  if (policy == "precision") {
    return config.precision.mode.value_or(wants_precision(config.precision) ? PolicyMode::on
                                                                            : PolicyMode::off);
  }
  if (policy == "loss_scale") return config.loss_scale.mode;
  if (policy == "shares") return config.shares.mode;
  if (policy == "accumulation") return config.accumulation.mode;
  const auto found = config.policy_modes.find(policy);
  return found == config.policy_modes.end() ? fallback : found->second;
}

}  // namespace cox
