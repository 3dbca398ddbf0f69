// The one table of settings: what each key is called, accepts and means, and where it lives in a
// Config. Everything else about configuration (reading, writing, documentation, fingerprints) goes
// through it. Built on demand, no shared state.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/config.h"

namespace cox {

// What must be the same on all ranks: the value, nothing, or whether there is one (what needs it is
// done by all ranks together or by none).
enum class Scope { job, rank, set_alike };

struct ConfigRow {
  ConfigOption option;
  Scope scope = Scope::job;
  std::function<Status(Config&, std::string_view)> set;
  std::function<std::string(const Config&)> get;
};

// Every row, the modes of the policies that `config` knows by name included.
std::vector<ConfigRow> config_table(const Config& config);

// The key that is closest to a misspelt one.
std::string nearest_key(const std::vector<ConfigRow>& table, std::string_view key);

}  // namespace cox
