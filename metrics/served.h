// Served: everything that the pages of one moment are made from: the snapshot, the time and the
// settings. Plain values; safe to call from any thread.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/core/config.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// Every option of the configuration, as it may be shown: values that are paths or secrets are
// replaced by "(set)".
std::vector<ConfigOption> settings_of(const Config& config);

struct Served {
  std::shared_ptr<const Snapshot> snapshot;  // never null
  UnixTime now{};
  std::vector<ConfigOption> settings;
};

}  // namespace cox::metrics
