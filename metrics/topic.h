// Topic is one capability in telemetry: rows of the catalogue, fields and documents of the JSON
// API, and sections of the status page, all read from the Snapshot. A topic with state of its own
// has a view, which `follow` updates after each round. A new capability adds one topic under
// metrics/topics and one entry in topics() (metrics/catalogue.h). Plain values. All functions are
// pure and run on any thread, except `follow`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/decide/record.h"
#include "coordinator/io/json.h"
#include "metrics/metric.h"
#include "metrics/pages/values.h"
#include "metrics/rank_row.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// Document is a page under /api/v1. `json` returns invalid_argument when the query does not parse.
struct Document {
  const char* path = "";
  const char* help = "";
  std::function<Result<std::string>(const Snapshot& snapshot, std::string_view query)> json;
};

// Section is a part of the status page: a template of metrics/pages and its values. Empty values
// leave the section out.
struct Section {
  enum class Width { full, half };  // two halves in a row stand side by side
  enum class Shown { after_first_round, always };

  const char* page = "";
  Record (*values)(const Snapshot& snapshot) = nullptr;
  Width width = Width::full;
  Shown shown = Shown::after_first_round;
};

// Round is one round, as input for `follow`.
struct Round {
  const StepRecord& record;
  // False if the round has last reports of finished ranks only, which have no figures. The pages
  // then keep the values of the last training round.
  bool has_figures = true;
  // True if tables of all ranks are made anew: in large jobs about once a second. Implies
  // has_figures.
  bool refreshes_tables = true;
};

struct Topic {
  const char* title = "";  // heading in docs/metrics.md
  // Updates the topic's view in `now` after `round`. `now` has the facts of the round, and the view
  // from before. Runs on the recording thread. Null: the topic has no view.
  void (*follow)(const Round& round, Snapshot& now) = nullptr;
  // Returns the topic's rows of the catalogue. Null: the topic has none.
  std::vector<Metric> (*metrics)() = nullptr;
  // Adds fields to /api/v1/status, and to each rank of /api/v1/ranks. Null: no fields.
  void (*put_status)(io::JsonWriter& json, const Snapshot& snapshot) = nullptr;
  void (*put_rank)(io::JsonWriter& json, const Snapshot& snapshot, const RankRow& row) = nullptr;
  std::vector<Document> documents = {};
  std::vector<Section> sections = {};
};

// A `follow` for a view that grows by add(round).
template <class View>
void grow(const Round& round, Snapshot& now) {
  auto next = std::make_shared<View>(now.view<View>());
  next->add(round);
  now.views.set<View>(std::move(next));
}

}  // namespace cox::metrics
