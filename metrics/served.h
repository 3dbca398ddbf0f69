// Served: everything that the pages of one moment are made from: the snapshot, the time and the
// settings. Plain values; safe to call from
// any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// A setting as it may be shown.
struct Setting {
  std::string key;
  std::string value;
  std::string unit;
  std::string help;
};

// Every option of the configuration. Paths and secrets are replaced by "(set)".
std::vector<Setting> settings_of(const Config& config);

struct Served {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  UnixTime now{};
  std::vector<Setting> settings;
};

}  // namespace cox::metrics
