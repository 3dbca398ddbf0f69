#include "coordinator/io/run_steps.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "coordinator/core/units.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

using diagnosis::kRunPhases;
using diagnosis::RunPhases;
using diagnosis::RunStep;

constexpr const char* kStepsName = "steps.jsonl";
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxRunFileBytes = std::size_t{16} << 20;
constexpr double kMostStep = 0x1p53;

// The line with null in place of the bare words that strict JSON does not have.
std::string strict(std::string_view line) {
  std::string out;
  bool is_text = false;
  while (!line.empty()) {
    for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (is_text || !line.starts_with(word)) continue;
      out += "null";
      line.remove_prefix(word.size());
    }
    if (line.empty()) break;
    const std::size_t piece =
        is_text && line.front() == '\\' ? std::min<std::size_t>(2, line.size()) : 1;
    if (line.front() == '"') is_text = !is_text;
    out += line.substr(0, piece);
    line.remove_prefix(piece);
  }
  return out;
}

const Json* member(const Json& json, std::string_view name, JsonKind kind) {
  const Json* found = json.find(name);
  return found != nullptr && found->kind == kind ? found : nullptr;
}

bool add_phases(RunStep& step, const Json& phases, PhaseLines& lines) {
  for (const JsonMember& phase : phases.members) {
    if (phase.value.kind != JsonKind::number) return false;
    const auto found = std::ranges::find(kRunPhases, phase.name);
    if (found == kRunPhases.end()) {
      ++lines.unknown_phases;
      continue;
    }
    step.seconds[static_cast<std::size_t>(found - kRunPhases.begin())] = phase.value.number;
  }
  return true;
}

// Where the reading of a file stands.
struct Newest {
  double step = -1;
  double timestamp = 0;
};

void add_line(PhaseLines& lines, std::string_view line, Newest& newest) {
  const auto json = parse_json(strict(line), kMaxLineBytes);
  const Json* number = json.ok() ? member(*json, "step", JsonKind::number) : nullptr;
  if (number == nullptr || !(number->number >= 0 && number->number <= kMostStep)) {
    ++lines.damaged;
    return;
  }
  if (const Json* time = member(*json, "timestamp", JsonKind::number)) {
    if (number->number > newest.step && time->number < newest.timestamp) ++lines.clock_ran_back;
    newest = {number->number, time->number};
  }
  const Json* phases = member(*json, "phases", JsonKind::object);
  RunStep step{static_cast<std::int64_t>(number->number), {}};
  if (phases == nullptr) {
    ++lines.without_phases;
  } else if (!add_phases(step, *phases, lines)) {
    ++lines.damaged;
  } else {
    lines.steps.push_back(step);
  }
}

// The numbers of the folders rank<k>.
std::set<std::int32_t> rank_folders(const fs::path& run) {
  std::set<std::int32_t> ranks;
  std::error_code error;
  for (fs::directory_iterator it(run, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::int32_t rank = -1;
    if (!name.starts_with("rank")) continue;
    const char* last = name.data() + name.size();
    const auto [at, code] = std::from_chars(name.data() + 4, last, rank);
    if (code == std::errc() && at == last && rank >= 0 && rank < kMaxRanks) ranks.insert(rank);
  }
  return ranks;
}

// The world size that rank0/run.json tells; nothing where it is missing or torn.
std::optional<std::size_t> world_size(const fs::path& folder) {
  const auto text = read_file(folder / "run.json", kMaxRunFileBytes, Links::refused);
  const auto json = text.ok() ? parse_json(strict(*text)) : Result<Json>(text.status());
  const Json* size = json.ok() ? member(*json, "world_size", JsonKind::number) : nullptr;
  if (size == nullptr || !(size->number >= 1 && size->number <= kMaxRanks)) return std::nullopt;
  return static_cast<std::size_t>(size->number);
}

Status check_ranks(const fs::path& run, const std::set<std::int32_t>& ranks) {
  const auto size = static_cast<std::size_t>(*ranks.rbegin()) + 1;
  const std::size_t expected = std::max(size, world_size(run / "rank0").value_or(size));
  if (ranks.size() == expected) return ok_status();
  std::int32_t missing = 0;
  while (ranks.contains(missing)) ++missing;
  return invalid_argument(run.string(), ": expected the folders of ", expected,
                          " ranks, found none of rank ", missing,
                          ": waiting for it would pass for communication; add it");
}

void tell(RunPhases& run, std::size_t rank, std::size_t count, std::string_view what) {
  if (count > 0) run.gaps.push_back(concat("rank ", rank, ": ", count, what));
}

Status add_rank(RunPhases& run, const fs::path& folder) {
  const fs::path path = folder / kStepsName;
  const auto text = read_file(path, kMaxStepsFileBytes, Links::refused);
  if (!text.ok()) return text.status();
  PhaseLines lines = parse_phase_lines(*text);
  const std::size_t rank = run.of_ranks.size();
  tell(run, rank, lines.damaged, " damaged lines are left out");
  tell(run, rank, lines.without_phases, " steps without phases are left out");
  tell(run, rank, lines.unknown_phases, " times of phases that are not known do not count");
  tell(run, rank, lines.clock_ran_back, " times the clock ran backwards between steps");
  run.of_ranks.push_back(std::move(lines.steps));
  return ok_status();
}

}  // namespace

PhaseLines parse_phase_lines(std::string_view lines) {
  PhaseLines out;
  Newest newest;
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    const std::string_view line = lines.substr(0, end);
    const bool is_torn =
        end == std::string_view::npos && !parse_json(strict(line), kMaxLineBytes).ok();
    if (is_torn) break;
    if (!line.empty()) add_line(out, line, newest);
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
  }
  return out;
}

Result<RunPhases> read_run_phases(const fs::path& run) {
  RunPhases phases;
  const std::set<std::int32_t> ranks = rank_folders(run);
  std::error_code error;
  if (ranks.empty() && !fs::exists(fs::symlink_status(run / kStepsName, error)))
    return not_found(run.string(), ": expected a run directory with rank0/", kStepsName, " or ",
                     kStepsName, ", found neither");
  if (ranks.empty()) {
    if (Status added = add_rank(phases, run); !added.ok()) return added;
    return phases;
  }
  if (Status whole = check_ranks(run, ranks); !whole.ok()) return whole;
  for (const std::int32_t rank : ranks) {
    if (Status added = add_rank(phases, run / concat("rank", rank)); !added.ok()) return added;
  }
  return phases;
}

}  // namespace cox::io
