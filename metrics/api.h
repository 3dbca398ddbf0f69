// The JSON documents under /api/v1 and /version. Pure; numbers that are not finite are null.
#pragma once

#include <cstdint>
#include <string>

#include "metrics/routes.h"

namespace cox::metrics {

std::string status_json(const Served& served);
std::string plan_json(const Snapshot& snapshot);
std::string config_json(const std::vector<Setting>& settings);
std::string version_json(const BuildInfo& build);

// Rows [offset, offset + limit) of the rank table, ascending ranks.
struct Page {
  std::uint64_t offset = 0;
  std::uint64_t limit = 100;
};
inline constexpr std::uint64_t kMaxPage = 1000;
std::string ranks_json(const Snapshot& snapshot, Page page);

// Entries whose newest round is >= `since`, newest first.
std::string decisions_json(const Snapshot& snapshot, RoundId since);

}  // namespace cox::metrics
