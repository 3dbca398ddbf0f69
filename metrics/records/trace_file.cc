#include "metrics/records/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/gzip.h"

namespace cox::io {
namespace {

using diagnosis::OperationKind;
using diagnosis::TraceRow;

struct TraceColumn {
  std::string_view name;
  std::variant<std::int64_t TraceRow::*, std::int32_t TraceRow::*, double TraceRow::*,
               OperationKind TraceRow::*>
      field;
  std::int64_t least = 0;  // limits of a whole number
  std::int64_t most = diagnosis::kMaxTraceNumber;
};
constexpr std::array<TraceColumn, 10> kColumns = {
    {{"step", &TraceRow::step, 0, diagnosis::kMaxTraceStep},
     {"dp_rank", &TraceRow::dp_rank},
     {"stage", &TraceRow::stage, 0, diagnosis::kMaxTraceStage},
     {"rank", &TraceRow::rank},
     {"op", &TraceRow::kind},
     {"seq", &TraceRow::sequence},
     {"chunk", &TraceRow::chunk, -1},
     {"global_chunk", &TraceRow::global_chunk, -1},
     {"start_s", &TraceRow::start_seconds},
     {"dur_s", &TraceRow::seconds}}};

// The column at each place of a line; null if it is none of `kColumns`.
using Header = std::vector<const TraceColumn*>;

std::string_view take_line(std::string_view& text) {
  std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Calls take(place, field) for each field of a line. Returns the number of fields.
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
    const auto found = std::ranges::find(kColumns, name, &TraceColumn::name);
    header.push_back(found == kColumns.end() ? nullptr : &*found);
  });
  for (const TraceColumn& column : kColumns) {
    const auto count = std::ranges::count(header, &column);
    if (count != 1)
      return invalid_argument("line 1: expected the column ", column.name, " once, found it ",
                              count, " times in '", shown(line), "'");
  }
  return header;
}

// The row being read, and its first error.
class RowReader {
 public:
  explicit RowReader(std::uint32_t line) { row_.line = line; }

  void take(const TraceColumn& column, std::string_view text) {
    std::visit([&](auto field) { read(column, text, row_.*field); }, column.field);
  }

  Result<TraceRow> result() && {
    if (!status_.ok()) return std::move(status_);
    return row_;
  }

 private:
  void complain(const TraceColumn& column, std::string_view expected, std::string_view found) {
    if (status_.ok())
      status_ = invalid_argument("line ", row_.line, ": ", column.name, ": expected ", expected,
                                 ", found '", shown(found), "'");
  }

  void read(const TraceColumn& column, std::string_view text, std::integral auto& number) {
    const auto value = parsed_number<std::int64_t>(text);
    const bool fits = value && *value >= column.least && *value <= column.most;
    if (!fits)
      return complain(column,
                      fmt::format("a whole number from {} to {}", column.least, column.most), text);
    number = static_cast<std::remove_reference_t<decltype(number)>>(*value);
  }
  void read(const TraceColumn& column, std::string_view text, double& seconds) {
    const auto value = parsed_number<double>(text);
    const bool fits = value && *value >= 0 && *value <= diagnosis::kMaxTraceSeconds;
    if (!fits) return complain(column, "seconds, finite and from 0 on", text);
    seconds = *value;
  }
  void read(const TraceColumn& column, std::string_view text, OperationKind& kind) {
    const auto known = diagnosis::operation_kind_of(text);
    if (!known) return complain(column, known_kinds(text), text);
    kind = *known;
  }
  static std::string known_kinds(std::string_view field) {
    const std::vector<std::string> known(diagnosis::kOperationKindNames.begin(),
                                         diagnosis::kOperationKindNames.end());
    return fmt::format("one of {} kinds of operations (the nearest is {})", known.size(),
                       nearest(known, field));
  }

  TraceRow row_;
  Status status_;
};

Result<TraceRow> read_row(std::string_view line, const Header& header, std::uint32_t number) {
  RowReader reader(number);
  const std::size_t fields = for_each_field(line, [&](std::size_t place, std::string_view field) {
    if (place < header.size() && header[place] != nullptr) reader.take(*header[place], field);
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
