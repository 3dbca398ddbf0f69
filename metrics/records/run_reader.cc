#include "metrics/records/run_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/units.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/limits.h"

namespace cox::io {
namespace {

namespace fs = std::filesystem;

using diagnosis::Column;
using diagnosis::Columns;
using diagnosis::RankRecord;
using diagnosis::RunInfo;
using diagnosis::RunRecord;
using diagnosis::StepLine;
using diagnosis::StepSection;
using diagnosis::StepValue;

constexpr const char* kStepsFile = "steps.jsonl";
constexpr std::size_t kMaxInfoBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxNameBytes = 120;
constexpr double kMostRunNumber = 0x1p53;

void put_value(JsonWriter& out, const Json& value) {
  if (value.kind == JsonKind::null) out.null();
  if (value.kind == JsonKind::boolean) out.value(value.boolean);
  if (value.kind == JsonKind::number) out.value(value.number);
  if (value.kind == JsonKind::string) out.value(value.string);
  if (value.kind == JsonKind::array) {
    out.begin_array();
    for (const Json& item : value.items) put_value(out, item);
    out.end_array();
  }
  if (value.kind == JsonKind::object) {
    out.begin_object();
    for (const JsonMember& member : value.members) {
      out.key(member.name);
      put_value(out, member.value);
    }
    out.end_object();
  }
}

void add_settings(const Json* object, const std::string& prefix,
                  std::vector<diagnosis::RunSetting>& out) {
  if (object == nullptr) return;
  for (const JsonMember& member : object->members) {
    if (prefix.empty() && member.name == "env" && member.value.kind == JsonKind::object) {
      add_settings(&member.value, "env.", out);
      continue;
    }
    JsonWriter text;
    put_value(text, member.value);
    out.push_back({prefix + member.name, text.take()});
  }
}

double number_in(const Json& json, std::string_view name, double otherwise, double most) {
  const Json* found = json.find(name);
  const bool fits = found != nullptr && found->kind == JsonKind::number && found->number >= 0 &&
                    found->number <= most;
  return fits ? found->number : otherwise;
}

std::optional<double> positive_in(const Json& json, std::string_view name) {
  const double value = number_in(json, name, 0, std::numeric_limits<double>::max());
  return value > 0 ? std::optional(value) : std::nullopt;
}

Status refuse_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return ok_status();
  return failed_precondition(
      path.string(), ": expected a folder, found a link; give the directory behind the link");
}

Status read_steps(const fs::path& path, StepLines& lines, const RankRecord& rank,
                  std::size_t before) {
  const Status read = read_step_file(path, [&](std::string_view bytes) {
    lines.take(bytes);
    if (before + rank.size() <= kMaxRunSteps) return ok_status();
    return resource_exhausted(path.string(), ": expected at most ", kMaxRunSteps,
                              " steps in a run directory, found more; cut the file with tail");
  });
  if (read.ok()) lines.finish();
  return read;
}

Result<RankFolder> look_at(const fs::path& path, std::int32_t rank) {
  if (Status linked = refuse_link(path); !linked.ok()) return linked;
  RankFolder out{rank, path, {}};
  out.info.rank = rank;
  const auto text = read_file(path / "run.json", kMaxInfoBytes, Links::refused);
  if (text.ok()) read_run_info(*text, out.info);
  return out;
}

Status add_rank(RunRecord& run, RankFolder folder, std::size_t& steps) {
  RankRecord& rank = run.ranks.emplace_back();
  rank.rank = folder.rank;
  rank.info = std::move(folder.info);
  StepLines lines(rank);
  const fs::path path = folder.path / kStepsFile;
  if (Status read = read_steps(path, lines, rank, steps); !read.ok()) return read;
  steps += rank.size();
  diagnosis::tell_gap(run.gaps, rank.rank, lines.damaged(), " damaged lines are left out");
  diagnosis::tell_gap(run.gaps, rank.rank, lines.unnamed(),
                      " values are left out: the columns are full");
  diagnosis::tell_gap(
      run.gaps, rank.rank, lines.went_back(),
      " times the step number does not rise: a rollback, or several runs in one file");
  if (lines.is_torn())
    run.gaps.push_back(fmt::format("rank {}: the last line is cut off and left out", rank.rank));
  return ok_status();
}

// Ranks of one run have the same name. A rank with a torn run.json has no name.
Status check_one_run(const fs::path& path, const std::vector<RankFolder>& ranks) {
  const RankFolder* named = nullptr;
  for (const RankFolder& rank : ranks) {
    if (rank.info.name.empty()) continue;
    if (named == nullptr) named = &rank;
    if (rank.info.name != named->info.name)
      return invalid_argument(path.string(), ": expected the ranks of one run, found '",
                              shown(named->info.name), "' in rank ", named->rank, " and '",
                              shown(rank.info.name), "' in rank ", rank.rank,
                              "; give the directory of one run");
  }
  return ok_status();
}

void tell_missing(RunRecord& run) {
  std::int32_t size = run.ranks.back().rank + 1;
  for (const RankRecord& rank : run.ranks) size = std::max(size, rank.info.world_size);
  const auto found = static_cast<std::int32_t>(run.ranks.size());
  if (size > found && size > 1)
    run.gaps.push_back(
        fmt::format("the run has {} ranks, of which {} have a folder here: waiting for the other "
                    "ranks counts as communication",
                    size, found));
}

Columns& columns_of(RankRecord& rank, StepSection section) {
  switch (section) {
    case StepSection::phases:
      return rank.phases;
    case StepSection::scalars:
      return rank.scalars;
    case StepSection::memory:
      return rank.memory;
    case StepSection::own:
      break;
  }
  return rank.own;
}

Column* column_of(Columns& columns, std::string_view name) {
  const auto found = columns.find(name);
  if (found != columns.end()) return &found->second;
  if (columns.size() >= kMaxStepColumns || name.size() > kMaxNameBytes || !is_utf8(name))
    return nullptr;
  return &columns[std::string(name)];
}

}  // namespace

StepLines::StepLines(RankRecord& rank)
    : rank_(rank), lines_([this](const StepLine& line) { add(line); }) {}

void StepLines::finish() {
  lines_.finish();
  for (Columns* columns : {&rank_.phases, &rank_.scalars, &rank_.memory, &rank_.own}) {
    for (auto& [name, column] : *columns) {
      column.pad(rank_.size());
      column.close();
    }
  }
  rank_.steps.close();
  rank_.timestamps.close();
}

void StepLines::add(const StepLine& line) {
  const std::size_t row = rank_.size();
  if (row > 0 && line.step <= newest_) ++went_back_;
  newest_ = line.step;
  for (std::size_t i = 0; i < line.values.size(); ++i) put(line.values[i], i, row);
  rank_.steps.push(line.step);
  rank_.timestamps.push(line.timestamp);
}

void StepLines::put(const StepValue& value, std::size_t i, std::size_t row) {
  if (diagnosis::is_absent(value.value)) return;
  if (places_.size() <= i) places_.resize(i + 1);
  Place& place = places_[i];
  Columns& columns = columns_of(rank_, value.section);
  if (place.columns != &columns || place.name != value.name)
    place = {&columns, std::string(value.name), column_of(columns, value.name)};
  if (place.column == nullptr) {
    ++unnamed_;
  } else if (place.column->size() <= row) {
    place.column->pad(row);
    place.column->push(value.value);
  }
}

std::string folder_name(const fs::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::set<std::int32_t> rank_folders(const fs::path& run) {
  std::set<std::int32_t> ranks;
  std::error_code error;
  for (fs::directory_iterator it(run, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("rank")) continue;
    const auto rank = parsed_number<std::int32_t>(std::string_view(name).substr(4));
    if (rank && *rank >= 0 && *rank < kMaxRanks) ranks.insert(*rank);
  }
  return ranks;
}

void read_run_info(std::string_view text, RunInfo& info) {
  const auto json = parse_json(strict_json(text), kMaxInfoBytes);
  if (!json.ok()) return;
  const Json* name = json->find("name");
  if (name != nullptr && name->kind == JsonKind::string) info.name = name->string;
  info.world_size = static_cast<std::int32_t>(number_in(*json, "world_size", 1, kMaxRanks));
  info.started = number_in(*json, "started", 0, kMostRunNumber);
  info.wall_seconds = number_in(*json, "wall_time", 0, kMostRunNumber);
  info.dropped_rows = number_in(*json, "dropped_rows", 0, kMostRunNumber);
  info.flops_per_step = positive_in(*json, "flops_per_step");
  info.peak_flops = positive_in(*json, "peak_flops");
  add_settings(json->find("config"), "config.", info.config);
  for (diagnosis::RunSetting& setting : info.config) setting.key.erase(0, 7);
  const Json* environment = json->find("environment");
  add_settings(environment, "", info.environment);
  if (environment != nullptr)
    info.node = static_cast<std::int32_t>(number_in(*environment, "node", -1, kMaxRanks - 1));
}

Result<std::vector<RankFolder>> folders_of_run(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return not_found(path.string(), ": expected a run directory, found nothing there");
  if (!fs::is_directory(status))
    return invalid_argument(path.string(),
                            ": expected a run directory, found a file; give the directory");
  fs::directory_iterator open(path, error);
  if (error)
    return failed_precondition(path.string(), ": cannot be read: ", io::errno_text(error.value()));
  std::vector<RankFolder> out;
  const std::set<std::int32_t> ranks = rank_folders(path);
  if (ranks.empty() && !is_there(path / kStepsFile))
    return not_found(path.string(), ": expected a run directory with rank0/", kStepsFile, " or ",
                     kStepsFile, ", found neither");
  for (const std::int32_t rank : ranks.empty() ? std::set{0} : ranks) {
    auto folder = look_at(ranks.empty() ? path : path / fmt::format("rank{}", rank), rank);
    if (!folder.ok()) return folder.status();
    out.push_back(*std::move(folder));
  }
  if (Status one = check_one_run(path, out); !one.ok()) return one;
  return out;
}

Result<RunRecord> read_run(const fs::path& path) {
  auto folders = folders_of_run(path);
  if (!folders.ok()) return folders.status();
  RunRecord run;
  run.name = folder_name(path);
  std::size_t steps = 0;
  for (RankFolder& folder : *folders) {
    if (Status added = add_rank(run, std::move(folder), steps); !added.ok()) return added;
  }
  if (steps == 0)
    return data_loss(path.string(), ": expected lines of JSON with a step in ", kStepsFile,
                     ", found none");
  tell_missing(run);
  return run;
}

Result<RunRecord> read_whole_run(const fs::path& path) {
  auto run = read_run(path);
  if (!run.ok() || rank_folders(path).empty()) return run;
  const std::int32_t size = std::max(run->ranks.back().rank + 1, run->lowest().info.world_size);
  std::int32_t missing = 0;
  for (const RankRecord& rank : run->ranks) missing += rank.rank == missing ? 1 : 0;
  if (missing == size) return run;
  return invalid_argument(
      path.string(), ": expected the folders of ", size, " ranks, found none of rank ", missing,
      ": add that folder, because waiting for that rank would count as communication");
}

}  // namespace cox::io
