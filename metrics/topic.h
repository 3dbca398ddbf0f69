// Topic is one capability as telemetry shows it. A topic has rows of the catalogue, fields and
// documents of the JSON API and sections of the status page, all read from the Snapshot. A new
// capability adds one topic under metrics/topics and one entry in topics(), and, where it keeps
// something of its own, a member of Snapshot that TelemetryState::record() fills. The frame of the
// page, the routes and the catalogue know no capability by name. Plain values; everything is pure
// and runs on any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/io/json.h"
#include "metrics/catalogue.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// Document is a page under /api/v1. `json` returns invalid_argument when the query does not parse.
struct Document {
  const char* path = "";
  const char* help = "";
  Result<std::string> (*json)(const Snapshot& snapshot, std::string_view query) = nullptr;
};

// Section is a part of the status page. `html` returns an empty string where there is nothing to
// show.
struct Section {
  enum class Width { full, half };  // two halves in a row stand side by side
  enum class Shown { after_first_round, always };

  std::string (*html)(const Snapshot& snapshot) = nullptr;
  Width width = Width::full;
  Shown shown = Shown::after_first_round;
};

struct Topic {
  const char* title = "";  // heading in docs/metrics.md
  std::vector<Metric> (*metrics)() = nullptr;
  // Adds fields to /api/v1/status, and to each rank of /api/v1/ranks. Null: it has none.
  void (*put_status)(io::JsonWriter& json, const Snapshot& snapshot) = nullptr;
  void (*put_rank)(io::JsonWriter& json, const Snapshot& snapshot, const RankRow& row) = nullptr;
  std::vector<Document> documents = {};
  std::vector<Section> sections = {};
};

// Returns every topic, in the order of the page, the JSON documents, the exposition and
// docs/metrics.md.
const std::vector<Topic>& topics();

// Returns the topic Control plane: what deciding and publishing plans costs, and what went wrong on
// the way. Its part of the snapshot is the coordinator's own ControlCounters.
Topic control_topic();

}  // namespace cox::metrics
