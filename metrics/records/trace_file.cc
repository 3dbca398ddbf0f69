#include "metrics/records/trace_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/gzip.h"

namespace cox::io {
namespace {

using diagnosis::TraceRow;

enum Column : std::size_t {
  step,
  dp_rank,
  stage,
  rank,
  op,
  seq,
  chunk,
  global_chunk,
  start,
  seconds
};
constexpr std::array<std::string_view, 10> kColumns = {
    "step", "dp_rank", "stage", "rank", "op", "seq", "chunk", "global_chunk", "start_s", "dur_s"};

// The index of the column of `kColumns` that stands at each place of a line.
using Header = std::vector<std::optional<std::size_t>>;

std::string_view take_line(std::string_view& text) {
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Calls take(place, field) for each field of a line; returns how many there are.
std::size_t for_each_field(std::string_view line, auto&& take) {
  std::size_t place = 0;
  while (true) {
    const std::size_t comma = line.find(',');
    take(place++, line.substr(0, comma));
    if (comma == std::string_view::npos) return place;
    line.remove_prefix(comma + 1);
  }
}

Result<Header> read_header(std::string_view line) {
  constexpr std::size_t kMostColumns = 256;
  Header header;
  for_each_field(line, [&header](std::size_t, std::string_view name) {
    if (header.size() > kMostColumns) return;
    const auto found = std::ranges::find(kColumns, name);
    header.push_back(found == kColumns.end()
                         ? std::nullopt
                         : std::optional(static_cast<std::size_t>(found - kColumns.begin())));
  });
  for (std::size_t c = 0; c < kColumns.size(); ++c) {
    const auto count = std::ranges::count(header, std::optional(c));
    if (count != 1)
      return invalid_argument("line 1: expected the column ", kColumns[c], " once, found it ",
                              count, " times in '", shown(line), "'");
  }
  return header;
}

// The row that is being read, and the first complaint about it.
class RowReader {
 public:
  explicit RowReader(std::uint32_t line) { row_.line = line; }

  void take(std::size_t column, std::string_view field) {
    switch (static_cast<Column>(column)) {
      case Column::step:
        row_.step = whole(column, field, 0, diagnosis::kMaxTraceStep);
        break;
      case Column::dp_rank:
        row_.dp_rank = number(column, field, 0);
        break;
      case Column::stage:
        row_.stage = static_cast<std::int32_t>(whole(column, field, 0, diagnosis::kMaxTraceStage));
        break;
      case Column::rank:
        row_.rank = number(column, field, 0);
        break;
      case Column::op:
        take_kind(field);
        break;
      case Column::seq:
        row_.sequence = number(column, field, 0);
        break;
      case Column::chunk:
        row_.chunk = number(column, field, -1);
        break;
      case Column::global_chunk:
        row_.global_chunk = number(column, field, -1);
        break;
      case Column::start:
        row_.start_seconds = time(column, field);
        break;
      case Column::seconds:
        row_.seconds = time(column, field);
        break;
    }
  }

  Result<TraceRow> result() && {
    if (!status_.ok()) return std::move(status_);
    return row_;
  }

 private:
  void complain(std::size_t column, std::string_view expected, std::string_view found) {
    if (status_.ok())
      status_ = invalid_argument("line ", row_.line, ": ", kColumns[column], ": expected ",
                                 expected, ", found '", shown(found), "'");
  }

  std::int64_t whole(std::size_t column, std::string_view field, std::int64_t least,
                     std::int64_t most) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error == std::errc() && end == field.data() + field.size() && value >= least &&
        value <= most)
      return value;
    complain(column, concat("a whole number from ", least, " to ", most), field);
    return least;
  }
  std::int32_t number(std::size_t column, std::string_view field, std::int64_t least) {
    return static_cast<std::int32_t>(whole(column, field, least, diagnosis::kMaxTraceNumber));
  }
  double time(std::size_t column, std::string_view field) {
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool is_number = error == std::errc() && end == field.data() + field.size();
    if (is_number && value >= 0 && value <= diagnosis::kMaxTraceSeconds) return value;
    complain(column, "seconds, finite and from 0 on", field);
    return 0;
  }
  void take_kind(std::string_view field) {
    const auto kind = diagnosis::operation_kind_of(field);
    if (!kind) return complain(Column::op, known_kinds(field), field);
    row_.kind = *kind;
  }
  static std::string known_kinds(std::string_view field) {
    const std::vector<std::string> known(diagnosis::kOperationKindNames.begin(),
                                         diagnosis::kOperationKindNames.end());
    return concat("one of ", known.size(), " kinds of operations (the nearest is ",
                  nearest(known, field), ")");
  }

  TraceRow row_;
  Status status_;
};

Result<TraceRow> read_row(std::string_view line, const Header& header, std::uint32_t number) {
  RowReader reader(number);
  const std::size_t fields = for_each_field(line, [&](std::size_t place, std::string_view field) {
    if (place < header.size() && header[place]) reader.take(*header[place], field);
  });
  if (fields != header.size())
    return invalid_argument("line ", number, ": expected ", header.size(), " fields, found ",
                            fields, "; is the file cut off?");
  return std::move(reader).result();
}

}  // namespace

Result<std::string> read_trace_text(const std::filesystem::path& path) {
  auto bytes = read_file(path, kMaxTraceFileBytes);
  if (!bytes.ok() || !is_gzip(*bytes)) return bytes;
  auto text = gunzip(*bytes, kMaxTraceTextBytes);
  if (!text.ok()) return text.status().with_context(path.string());
  return text;
}

Result<std::vector<TraceRow>> parse_trace(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark
  const auto header = read_header(take_line(text));
  if (!header.ok()) return header.status();
  std::vector<TraceRow> rows;
  for (std::uint32_t number = 2; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    if (rows.size() == diagnosis::kMaxTraceRows)
      return resource_exhausted("expected at most ", diagnosis::kMaxTraceRows, " rows, found more");
    const auto row = read_row(line, *header, number);
    if (!row.ok()) return row.status();
    rows.push_back(*row);
  }
  return rows;
}

}  // namespace cox::io
