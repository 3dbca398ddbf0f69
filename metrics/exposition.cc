#include "metrics/exposition.h"

#include <prometheus/text_serializer.h>

#include <sstream>
#include <utility>

#include "metrics/snapshot_collectable.h"

namespace cox::metrics {

std::string exposition(const Snapshot& snapshot, const BuildInfo& build) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families(snapshot, build));
  return std::move(text).str();
}

}  // namespace cox::metrics
