// Snapshot is the state of telemetry as of one round: facts of the round, and one view for each
// topic (metrics/topics) with state of its own. A published Snapshot is immutable, so every page
// and scrape is consistent. Snapshots share unchanged views. TelemetryState writes snapshots; the
// exposition, the API and the pages read them on any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/record.h"

namespace cox::metrics {

// Views holds at most one value of each type. Values are immutable and shared between copies.
class Views {
 public:
  // Returns the view of this type, or null if none was set.
  template <class View>
  const View* find() const {
    for (const Entry& entry : entries_) {
      if (entry.type == type_of<View>()) return static_cast<const View*>(entry.view.get());
    }
    return nullptr;
  }

  template <class View>
  void set(std::shared_ptr<const View> view) {
    put({type_of<View>(), std::move(view)});
  }

  // Sets all views of `others`.
  void set_all(const Views& others) {
    for (const Entry& entry : others.entries_) put(entry);
  }

 private:
  using Type = const void*;  // the address of Tag<View>, so a look-up only compares
  struct Entry {
    Type type = nullptr;
    std::shared_ptr<const void> view;
  };

  template <class View>
  struct Tag {
    static constexpr char address = 0;
  };
  template <class View>
  static Type type_of() {
    return &Tag<View>::address;
  }

  void put(Entry entry) {
    const auto same = std::ranges::find(entries_, entry.type, &Entry::type);
    if (same == entries_.end()) {
      entries_.push_back(std::move(entry));
    } else {
      *same = std::move(entry);
    }
  }

  std::vector<Entry> entries_;
};

enum class JobState : std::uint8_t { waiting = 0, training = 1, finished = 2 };

// BuildInfo describes the running build. The program passes it in, so that nothing here depends on
// the build.
struct BuildInfo {
  std::string version;   // "0.1.0"
  std::string revision;  // short commit, or empty
};

struct Snapshot {
  BuildInfo build;
  JobState state = JobState::waiting;
  UnixTime started{};                // by rank 0's clock
  double peak_flops_per_device = 0;  // from the settings; 0 = not given
  std::uint64_t last_step = 0;       // after which the job ends by itself; 0 = unknown
  UnixTime last_round_time{};        // by rank 0's clock, at its decision
  StepSummary summary;
  std::shared_ptr<const JobFacts> job;  // never null
  std::shared_ptr<const Plan> plan;     // the newest plan, never null
  ControlCounters control{};
  Views views;

  // Returns a topic's view; a default view if the topic has set none.
  template <class View>
  const View& view() const {
    static const View& none = never_destroyed(View{});
    const View* found = views.find<View>();
    return found != nullptr ? *found : none;
  }
};

}  // namespace cox::metrics
