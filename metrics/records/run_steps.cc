#include "metrics/records/run_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/run_record.h"
#include "metrics/records/step_lines.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

using diagnosis::kRunPhases;
using diagnosis::RunPhases;
using diagnosis::RunStep;
using diagnosis::StepLine;
using diagnosis::StepSection;
using diagnosis::StepValue;

constexpr const char* kStepsName = "steps.jsonl";

// Takes the lines of a file as they come. Memory is that of the steps that are kept, in a ring.
class PhaseCollector {
 public:
  explicit PhaseCollector(std::size_t most)
      : most_(most), reader_([this](const StepLine& line) { add(line); }) {}

  void take(std::string_view bytes) { reader_.take(bytes); }
  PhaseLines finish() {
    reader_.finish();
    lines_.damaged += reader_.damaged();
    if (lines_.older > 0)
      std::ranges::rotate(lines_.steps,
                          lines_.steps.begin() + static_cast<std::ptrdiff_t>(lines_.older % most_));
    return std::move(lines_);
  }

 private:
  void add(const StepLine& line) {
    if (line.step < 0) {
      ++lines_.damaged;
      return;
    }
    compare_clock(line);
    RunStep step{static_cast<std::int64_t>(line.step), {}};
    bool has_phases = false;
    for (const StepValue& value : line.values) {
      if (value.section != StepSection::phases) continue;
      has_phases = true;
      if (!std::isfinite(value.value)) {
        ++lines_.damaged;
        return;
      }
      const auto found = std::ranges::find(kRunPhases, value.name);
      if (found == kRunPhases.end()) {
        ++lines_.unknown_phases;
      } else {
        step.seconds[static_cast<std::size_t>(found - kRunPhases.begin())] = value.value;
      }
    }
    if (has_phases) {
      keep(step);
    } else {
      ++lines_.without_phases;
    }
  }

  void keep(const RunStep& step) {
    if (lines_.steps.size() < most_) {
      lines_.steps.push_back(step);
    } else {
      lines_.steps[lines_.older++ % most_] = step;
    }
  }

  void compare_clock(const StepLine& line) {
    if (diagnosis::is_absent(line.timestamp)) return;
    if (line.step > newest_step_ && line.timestamp < newest_time_) ++lines_.clock_ran_back;
    newest_step_ = line.step;
    newest_time_ = line.timestamp;
  }

  std::size_t most_;
  PhaseLines lines_;
  double newest_step_ = -1;
  double newest_time_ = 0;
  StepLineReader reader_;
};

Status check_ranks(const fs::path& run, const std::vector<RankFolder>& ranks) {
  const std::int32_t size = std::max(ranks.back().rank + 1, ranks.front().info.world_size);
  std::int32_t missing = 0;
  for (const RankFolder& folder : ranks) missing += folder.rank == missing ? 1 : 0;
  if (missing == size) return ok_status();
  return invalid_argument(run.string(), ": expected the folders of ", size,
                          " ranks, found none of rank ", missing,
                          ": waiting for it would pass for communication; add it");
}

void tell(RunPhases& run, std::size_t rank, std::size_t count, std::string_view what) {
  if (count > 0) run.gaps.push_back(concat("rank ", rank, ": ", count, what));
}

Status add_rank(RunPhases& run, const fs::path& folder, std::size_t most_steps) {
  PhaseCollector collector(most_steps);
  const Status read = read_step_file(folder / kStepsName, [&](std::string_view bytes) {
    collector.take(bytes);
    return ok_status();
  });
  if (!read.ok()) return read;
  PhaseLines lines = collector.finish();
  const std::size_t rank = run.of_ranks.size();
  tell(run, rank, lines.damaged, " damaged lines are left out");
  tell(run, rank, lines.without_phases, " steps without phases are left out");
  tell(run, rank, lines.unknown_phases, " times of phases that are not known do not count");
  tell(run, rank, lines.clock_ran_back, " times the clock ran backwards between steps");
  tell(run, rank, lines.older, " older steps are left out: the run is long");
  run.of_ranks.push_back(std::move(lines.steps));
  return ok_status();
}

}  // namespace

PhaseLines parse_phase_lines(std::string_view lines, std::size_t most_steps) {
  PhaseCollector collector(most_steps);
  collector.take(lines);
  return collector.finish();
}

Result<RunPhases> read_run_phases(const fs::path& run) {
  const auto folders = folders_of_run(run);
  if (!folders.ok()) return folders.status();
  const bool is_of_one = folders->size() == 1 && folders->front().path == run;
  if (!is_of_one) {
    if (Status whole = check_ranks(run, *folders); !whole.ok()) return whole;
  }
  RunPhases phases;
  const std::size_t most = std::max<std::size_t>(1, kMostPhaseSteps / folders->size());
  for (const RankFolder& folder : *folders) {
    if (Status added = add_rank(phases, folder.path, most); !added.ok()) return added;
  }
  return phases;
}

}  // namespace cox::io
