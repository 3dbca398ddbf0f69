#include "coordinator/io/run_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
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

namespace cox::io {
namespace {

namespace fs = std::filesystem;

using diagnosis::absent;
using diagnosis::Column;
using diagnosis::Columns;
using diagnosis::RankRecord;
using diagnosis::RunInfo;
using diagnosis::RunRecord;

constexpr const char* kStepsFile = "steps.jsonl";
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxInfoBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxNameBytes = 120;
constexpr std::size_t kMaxDepth = 64;
constexpr double kMostNumber = 0x1p53;

// One line as JSON, read by hand: nlohmann-json builds a tree for each, at a fiftieth of this rate,
// and readers that are as quick as this refuse NaN.
class LineText {
 public:
  explicit LineText(std::string_view line) : at_(line.data()), end_(at_ + line.size()) {}

  bool ok() const { return is_ok_; }
  void fail() { is_ok_ = false; }
  bool at_end() {
    skip_blanks();
    return at_ == end_;
  }
  // Takes that character, behind blanks, if it is next.
  bool take(char c) {
    skip_blanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  char next() {
    skip_blanks();
    return at_ == end_ ? '\0' : *at_;
  }

  // A string without its quotes, escapes as they stand.
  std::string_view string() {
    if (!take('"')) return failed();
    const char* begin = at_;
    while (at_ != end_ && *at_ != '"') at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
    if (at_ == end_) return failed();
    return {begin, static_cast<std::size_t>(at_++ - begin)};
  }

  // A number, or a word that stands for one: true is 1, false 0, null absent.
  double number() {
    switch (next()) {
      case 'N':
        return word("NaN", std::numeric_limits<double>::quiet_NaN());
      case 'I':
        return word("Infinity", std::numeric_limits<double>::infinity());
      case 't':
        return word("true", 1);
      case 'f':
        return word("false", 0);
      case 'n':
        return word("null", absent());
      default:
        break;
    }
    if (std::string_view(at_, end_).starts_with("-I"))
      return word("-Infinity", -std::numeric_limits<double>::infinity());
    return digits();
  }

  void skip_value(std::size_t depth = 0) {
    if (depth > kMaxDepth) return fail();
    const char c = next();
    if (c == '"') {
      string();
    } else if (c == '{') {
      skip_list('{', '}', depth);
    } else if (c == '[') {
      skip_list('[', ']', depth);
    } else {
      number();
    }
  }

 private:
  void skip_blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  std::string_view failed() {
    fail();
    return {};
  }
  double word(std::string_view text, double value) {
    if (!std::string_view(at_, end_).starts_with(text)) fail();
    if (is_ok_) at_ += text.size();
    return value;
  }
  void skip_list(char open, char close, std::size_t depth) {
    take(open);
    if (take(close)) return;
    do {
      if (open == '{') {
        string();
        if (!take(':')) fail();
      }
      if (is_ok_) skip_value(depth + 1);
    } while (is_ok_ && take(','));
    if (!take(close)) fail();
  }
  // Decimals of up to 15 digits and 22 places are exact in one division (Clinger, 1990).
  double digits() {
    static constexpr std::array<double, 23> kPowers = {
        1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char* begin = at_;
    const bool is_negative = at_ != end_ && *at_ == '-';
    if (is_negative) ++at_;
    std::uint64_t whole = 0;
    const char* first = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') whole = 10 * whole + digit(*at_++);
    std::ptrdiff_t count = at_ - first;
    std::size_t places = 0;
    if (count > 0 && at_ != end_ && *at_ == '.') {
      ++at_;
      for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++places)
        whole = 10 * whole + digit(*at_++);
      count += static_cast<std::ptrdiff_t>(places);
    }
    const bool has_exponent = at_ != end_ && (*at_ == 'e' || *at_ == 'E');
    if (has_exponent || count > 15 || count == 0) return slowly(begin);
    const double value = static_cast<double>(whole) / kPowers[places];
    return is_negative ? -value : value;
  }
  static std::uint64_t digit(char c) { return static_cast<std::uint64_t>(c - '0'); }
  double slowly(const char* begin) {
    double value = 0;
    const auto [stop, code] = std::from_chars(begin, end_, value);
    if (code == std::errc::result_out_of_range) value = std::numeric_limits<double>::infinity();
    if (code == std::errc::invalid_argument) fail();
    at_ = stop;
    return value;
  }

  const char* at_;
  const char* end_;
  bool is_ok_ = true;
};

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
      path.string(), ": expected a folder, found a link; give the directory that it leads to");
}

void tell(RunRecord& run, std::int32_t rank, std::size_t count, std::string_view what) {
  if (count > 0) run.gaps.push_back(concat("rank ", rank, ": ", count, what));
}

Status read_steps(const fs::path& path, StepLines& lines, const RankRecord& rank,
                  std::size_t before) {
  const auto file = InputFile::open(path, Links::refused);
  if (!file.ok()) return file.status();
  std::string chunk;
  for (std::uint64_t at = 0; at < file->size_bytes(); at += chunk.size()) {
    chunk.resize(std::min<std::uint64_t>(kChunkBytes, file->size_bytes() - at));
    if (Status read = file->read_at(at, chunk.data(), chunk.size()); !read.ok()) return read;
    lines.take(chunk);
    if (before + rank.size() > kMaxRunSteps)
      return resource_exhausted(path.string(), ": expected at most ", kMaxRunSteps,
                                " steps in a run directory, found more; cut the file with tail");
  }
  lines.finish();
  return ok_status();
}

Status add_rank_folder(RunRecord& run, const fs::path& folder, std::int32_t number,
                       std::size_t& steps) {
  if (Status linked = refuse_link(folder); !linked.ok()) return linked;
  RankRecord& rank = run.ranks.emplace_back();
  rank.rank = rank.info.rank = number;
  const auto info = read_file(folder / "run.json", kMaxInfoBytes, Links::refused);
  if (info.ok()) read_run_info(*info, rank.info);
  StepLines lines(rank);
  if (Status read = read_steps(folder / kStepsFile, lines, rank, steps); !read.ok()) return read;
  steps += rank.size();
  tell(run, number, lines.damaged(), " damaged lines are left out");
  tell(run, number, lines.unnamed(), " values beyond the columns that are kept are left out");
  tell(run, number, lines.went_back(),
       " times the step number does not rise: a rollback, or several runs in one file");
  if (lines.is_torn())
    run.gaps.push_back(concat("rank ", number, ": the last line is cut off and left out"));
  return ok_status();
}

// Ranks of one run have the same name; one whose run.json was torn has none.
Status check_one_run(const fs::path& path, const RunRecord& run) {
  const RankRecord* named = nullptr;
  for (const RankRecord& rank : run.ranks) {
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
    run.gaps.push_back(concat("the run has ", size, " ranks, of which ", found,
                              " left a folder here: waiting for the others counts as "
                              "communication"));
}

}  // namespace

// Keeps what a line says until it is known to be whole, then appends it to the columns.
class StepLines::Reader {
 public:
  explicit Reader(RankRecord& rank) : rank_(rank) {}

  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      const std::string_view piece = bytes.substr(0, end);
      if (end == std::string_view::npos) return keep(piece);
      if (kept_.empty()) {
        add(piece);
      } else {
        keep(piece);
        add(kept_);
        kept_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
  }

  void finish() {
    const std::size_t before = damaged_;
    if (!kept_.empty()) add(kept_);
    is_torn_ = damaged_ > before;
    damaged_ = before;
    for (Columns* columns : {&rank_.phases, &rank_.scalars, &rank_.memory, &rank_.own}) {
      for (auto& [name, column] : *columns) column.pad(rank_.size());
    }
  }

  std::size_t damaged_ = 0;
  std::size_t unnamed_ = 0;
  std::size_t went_back_ = 0;
  bool is_torn_ = false;

 private:
  struct Value {
    Columns* columns;
    std::string_view name;
    double value;
  };
  // Where the value of that place in a line went the last time: lines are alike.
  struct Place {
    const Columns* columns = nullptr;
    std::string name;
    Column* column = nullptr;
  };

  void keep(std::string_view piece) {
    // One byte more than a line may have says that it is too long.
    kept_.append(
        piece.substr(0, kMaxStepLineBytes + 1 - std::min(kept_.size(), kMaxStepLineBytes)));
  }

  void add(std::string_view line) {
    if (line.empty() || line == "\r") return;
    values_.clear();
    step_ = time_ = absent();
    if (line.size() > kMaxStepLineBytes || !read(line) || !is_step()) {
      ++damaged_;
      return;
    }
    const std::size_t row = rank_.size();
    if (row > 0 && step_ <= newest_) ++went_back_;
    newest_ = step_;
    for (std::size_t i = 0; i < values_.size(); ++i) put(i, row);
    rank_.steps.push(step_);
    rank_.timestamps.push(time_);
  }

  bool is_step() const { return std::fabs(step_) <= kMostNumber && step_ == std::trunc(step_); }

  void put(std::size_t i, std::size_t row) {
    const Value& value = values_[i];
    if (diagnosis::is_absent(value.value)) return;
    if (places_.size() <= i) places_.resize(i + 1);
    Place& place = places_[i];
    if (place.columns != value.columns || place.name != value.name)
      place = {value.columns, std::string(value.name), column_of(*value.columns, value.name)};
    if (place.column == nullptr) {
      ++unnamed_;
    } else if (place.column->size() <= row) {
      place.column->pad(row);
      place.column->push(value.value);
    }
  }

  static Column* column_of(Columns& columns, std::string_view name) {
    const auto found = columns.find(name);
    if (found != columns.end()) return &found->second;
    if (columns.size() >= kMaxStepColumns || name.size() > kMaxNameBytes || !is_utf8(name))
      return nullptr;
    return &columns[std::string(name)];
  }

  bool read(std::string_view line) {
    LineText text(line);
    if (!text.take('{')) return false;
    if (!text.take('}')) {
      do {
        read_member(text);
      } while (text.ok() && text.take(','));
      if (!text.take('}')) return false;
    }
    return text.ok() && text.at_end();
  }

  void read_member(LineText& text) {
    const std::string_view name = text.string();
    if (!text.take(':')) return text.fail();
    const char next = text.next();
    if (name == "phases" || name == "scalars" || name == "memory") {
      read_section(text, name);
    } else if (name == "step" || name == "timestamp") {
      (name == "step" ? step_ : time_) = text.number();
    } else if (next == '"' || next == '{' || next == '[') {
      text.skip_value();
    } else {
      values_.push_back({&rank_.own, name, text.number()});
    }
  }

  void read_section(LineText& text, std::string_view section) {
    if (text.next() == 'n') return text.skip_value();
    Columns& columns = section == "phases"   ? rank_.phases
                       : section == "memory" ? rank_.memory
                                             : rank_.scalars;
    if (!text.take('{')) return text.fail();
    if (text.take('}')) return;
    do {
      const std::string_view name = text.string();
      if (!text.take(':')) return text.fail();
      const bool is_other = text.next() == '"' || text.next() == '{' || text.next() == '[';
      if (is_other && section == "scalars") {
        text.skip_value();
      } else {
        values_.push_back({&columns, name, text.number()});
      }
    } while (text.ok() && text.take(','));
    if (!text.take('}')) text.fail();
  }

  RankRecord& rank_;
  std::string kept_;  // the beginning of a line
  std::vector<Value> values_;
  std::vector<Place> places_;
  double step_ = 0;
  double time_ = 0;
  double newest_ = 0;
};

StepLines::StepLines(RankRecord& rank) : reader_(std::make_unique<Reader>(rank)) {}
StepLines::StepLines(StepLines&&) noexcept = default;
StepLines::~StepLines() = default;
void StepLines::take(std::string_view bytes) {
  reader_->take(bytes);
}
void StepLines::finish() {
  reader_->finish();
}
std::size_t StepLines::damaged() const {
  return reader_->damaged_;
}
bool StepLines::is_torn() const {
  return reader_->is_torn_;
}
std::size_t StepLines::unnamed() const {
  return reader_->unnamed_;
}
std::size_t StepLines::went_back() const {
  return reader_->went_back_;
}

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

void read_run_info(std::string_view text, RunInfo& info) {
  const auto json = parse_json(strict_json(text), kMaxInfoBytes);
  if (!json.ok()) return;
  const Json* name = json->find("name");
  if (name != nullptr && name->kind == JsonKind::string) info.name = name->string;
  info.world_size = static_cast<std::int32_t>(number_in(*json, "world_size", 1, kMaxRanks));
  info.started = number_in(*json, "started", 0, kMostNumber);
  info.wall_seconds = number_in(*json, "wall_time", 0, kMostNumber);
  info.dropped_rows = number_in(*json, "dropped_rows", 0, kMostNumber);
  info.flops_per_step = positive_in(*json, "flops_per_step");
  info.peak_flops = positive_in(*json, "peak_flops");
  add_settings(json->find("config"), "config.", info.config);
  for (diagnosis::RunSetting& setting : info.config) setting.key.erase(0, 7);
  add_settings(json->find("environment"), "", info.environment);
}

Result<RunRecord> read_run(const fs::path& path) {
  RunRecord run;
  const fs::path whole = path.has_filename() ? path : path.parent_path();
  run.name = whole.filename().string();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return not_found(path.string(), ": expected a run directory, found nothing there");
  if (!fs::is_directory(status))
    return invalid_argument(path.string(),
                            ": expected a run directory, found a file; give the directory");
  fs::directory_iterator open(path, error);
  if (error) return failed_precondition(path.string(), ": cannot be read: ", error.message());
  const std::set<std::int32_t> ranks = rank_folders(path);
  std::size_t steps = 0;
  if (ranks.empty()) {
    if (!fs::exists(fs::symlink_status(path / kStepsFile, error)))
      return not_found(path.string(), ": expected a run directory with rank0/", kStepsFile, " or ",
                       kStepsFile, ", found neither");
    if (Status added = add_rank_folder(run, path, 0, steps); !added.ok()) return added;
  }
  for (const std::int32_t rank : ranks) {
    if (Status added = add_rank_folder(run, path / concat("rank", rank), rank, steps); !added.ok())
      return added;
  }
  if (steps == 0)
    return data_loss(path.string(), ": expected lines of JSON with a step in ", kStepsFile,
                     ", found none");
  if (Status one = check_one_run(path, run); !one.ok()) return one;
  tell_missing(run);
  return run;
}

}  // namespace cox::io
