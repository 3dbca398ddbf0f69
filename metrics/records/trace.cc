#include "metrics/records/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr std::size_t kMostGaps = 8;  // gaps reported one by one

using Rows = std::span<const TraceRow>;

// The operations of one data-parallel rank in one step, sorted by key.
struct Part {
  std::int64_t step = 0;
  std::int32_t dp_rank = 0;
  Rows rows;
};

auto key_of(const TraceRow& row) {
  return std::tuple(row.stage, row.kind, row.sequence);
}

bool is_same_key(const TraceRow& a, const TraceRow& b) {
  return key_of(a) == key_of(b);
}

bool has_same_keys(Rows a, Rows b) {
  return std::ranges::equal(a, b, is_same_key);
}

std::string name_of(const TraceRow& row) {
  return fmt::format("{} {} of stage {}", to_string(row.kind), row.sequence, row.stage);
}

void sort_rows(std::vector<TraceRow>& rows) {
  const auto order = [](const TraceRow& row) {
    return std::tuple(row.step, row.dp_rank, row.stage, row.kind, row.sequence, row.line);
  };
  if (!std::ranges::is_sorted(rows, {}, order)) std::ranges::sort(rows, {}, order);
}

Status check_twice(Rows rows) {
  const auto twice = std::ranges::adjacent_find(rows, [](const TraceRow& a, const TraceRow& b) {
    return a.step == b.step && a.dp_rank == b.dp_rank && is_same_key(a, b);
  });
  if (twice == rows.end()) return ok_status();
  return invalid_argument("lines ", twice[0].line, " and ", twice[1].line, ": expected ",
                          name_of(*twice), " once in step ", twice->step, " of dp rank ",
                          twice->dp_rank, ", found it twice; is the trace merged from two?");
}

std::vector<Part> parts_of(Rows rows) {
  std::vector<Part> parts;
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin;
    while (end < rows.size() && rows[end].step == rows[begin].step &&
           rows[end].dp_rank == rows[begin].dp_rank)
      ++end;
    parts.push_back({rows[begin].step, rows[begin].dp_rank, rows.subspan(begin, end - begin)});
    begin = end;
  }
  return parts;
}

// Returns how many numbers there are. A hole in the numbers of ranks or stages means a missing
// record.
Result<std::size_t> count_of(std::vector<std::int32_t> numbers, std::string_view what) {
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<std::int32_t>(i))
      return invalid_argument("expected rows of ", what, " ", i, ", found none, but ", what, " ",
                              numbers.back(), ": a part of the job is missing");
  }
  return numbers.size();
}

Result<std::vector<std::int32_t>> places_of(Rows rows, std::size_t dp_ranks, std::size_t stages) {
  std::vector<const TraceRow*> first(dp_ranks * stages);
  std::map<std::int32_t, const TraceRow*> by_rank;
  for (const TraceRow& row : rows) {
    const auto place =
        static_cast<std::size_t>(row.dp_rank) * stages + static_cast<std::size_t>(row.stage);
    if (first[place] != nullptr && first[place]->rank == row.rank) continue;
    const auto other = by_rank.find(row.rank);
    const bool is_taken = first[place] != nullptr;
    if (is_taken || other != by_rank.end())
      return invalid_argument("lines ", is_taken ? first[place]->line : other->second->line,
                              " and ", row.line, ": expected one rank at dp rank ", row.dp_rank,
                              " and stage ", row.stage, " and nowhere else, found rank ",
                              is_taken ? first[place]->rank : row.rank,
                              is_taken ? " and rank " : "",
                              is_taken ? std::to_string(row.rank) : " in another place too");
    first[place] = &row;
    by_rank[row.rank] = &row;
  }
  std::vector<std::int32_t> ranks;
  for (std::size_t place = 0; place < first.size(); ++place) {
    if (first[place] == nullptr)
      return invalid_argument("expected rows of dp rank ", place / stages, " in stage ",
                              place % stages, ", found none: the rows of a rank are missing");
    ranks.push_back(first[place]->rank);
  }
  return ranks;
}

// Returns the operations of most parts. A tie goes to the first.
Rows usual_keys(const std::vector<Part>& parts) {
  struct Kind {
    Rows rows;
    std::size_t count = 0;
  };
  std::vector<Kind> kinds;
  for (const Part& part : parts) {
    auto kind = std::ranges::find_if(
        kinds, [&part](const Kind& k) { return has_same_keys(k.rows, part.rows); });
    if (kind == kinds.end() && kinds.size() == kMostGaps) continue;  // a part unlike all others
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {part.rows});
    ++kind->count;
  }
  return std::ranges::max_element(kinds, {}, &Kind::count)->rows;
}

// Describes how the keys of a part differ from the usual ones; empty if they are equal.
std::string difference(Rows usual, Rows found) {
  if (has_same_keys(usual, found)) return {};
  const auto by_key = [](const TraceRow& a, const TraceRow& b) { return key_of(a) < key_of(b); };
  std::vector<TraceRow> missing;
  std::vector<TraceRow> extra;
  std::ranges::set_difference(usual, found, std::back_inserter(missing), by_key);
  std::ranges::set_difference(found, usual, std::back_inserter(extra), by_key);
  const std::size_t more = missing.size() + extra.size() - 1;
  return fmt::format("{}{}{}{}", missing.empty() ? "has " : "lacks ",
                     name_of(missing.empty() ? extra.front() : missing.front()),
                     missing.empty() ? ", which others lack" : "",
                     more > 0 ? fmt::format(" (and {} more)", more) : "");
}

// Describes an impossible time of a part; empty if there is none.
std::string time_fault(Rows rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TraceRow& row = rows[i];
    const bool is_pass =
        row.kind == OperationKind::forward_compute || row.kind == OperationKind::backward_compute;
    if (is_pass && row.seconds <= 0)
      return fmt::format("took no time for {} (line {})", name_of(row), row.line);
    if (i == 0 || rows[i - 1].stage != row.stage || rows[i - 1].kind != row.kind) continue;
    if (row.start_seconds <= rows[i - 1].start_seconds - kClockSeconds)
      return fmt::format(
          "has a clock that ran backwards: {} starts at {} s (line {}), the one before at {} s",
          name_of(row), significant(row.start_seconds, 4), row.line,
          significant(rows[i - 1].start_seconds, 4));
  }
  return {};
}

std::string fault_of(const Part& part, Rows usual) {
  const std::string fault = difference(usual, part.rows);
  return fault.empty() ? time_fault(part.rows) : fault;
}

// Describes why a step is not whole; empty if it is. `parts` are those of the step.
std::string fault_of(std::span<const Part> parts, Rows usual, std::size_t dp_ranks) {
  for (std::size_t d = 0; d < dp_ranks; ++d) {
    if (d >= parts.size() || parts[d].dp_rank != static_cast<std::int32_t>(d))
      return fmt::format("dp rank {} has no operations", d);
    const std::string fault = fault_of(parts[d], usual);
    if (!fault.empty()) return fmt::format("dp rank {} {}", d, fault);
  }
  return {};
}

void add_step(Trace& trace, std::span<const Part> parts) {
  trace.steps.push_back(parts.front().step);
  for (std::size_t k = 0; k < trace.keys.size(); ++k) {
    for (const Part& part : parts) {
      trace.start.push_back(part.rows[k].start_seconds);
      trace.seconds.push_back(part.rows[k].seconds);
    }
  }
}

// Collects left-out steps as sentences. Reports the first kMostGaps one by one.
class LeftOut {
 public:
  void add(std::int64_t step, const std::string& fault) {
    if (++count_ <= kMostGaps) gaps_.push_back(fmt::format("step {} is left out: {}", step, fault));
  }
  const std::string& first() const { return gaps_.front(); }
  std::vector<std::string> take() {
    if (count_ > kMostGaps)
      gaps_.push_back(fmt::format("{} more steps are left out for reasons of the same kinds",
                                  count_ - kMostGaps));
    return std::move(gaps_);
  }

 private:
  std::size_t count_ = 0;
  std::vector<std::string> gaps_;
};

Status add_steps(Trace& trace, Rows rows) {
  const std::vector<Part> parts = parts_of(rows);
  const Rows usual = usual_keys(parts);
  for (const TraceRow& row : usual)
    trace.keys.push_back({row.stage, row.kind, row.sequence, row.chunk, row.global_chunk});
  LeftOut left_out;
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin;
    while (end < parts.size() && parts[end].step == parts[begin].step) ++end;
    const std::span<const Part> step(&parts[begin], end - begin);
    const std::string fault = fault_of(step, usual, trace.dp_ranks);
    fault.empty() ? add_step(trace, step) : left_out.add(parts[begin].step, fault);
    begin = end;
  }
  if (trace.steps.empty())
    return invalid_argument("expected a step with the operations of all ranks, found none; ",
                            left_out.first());
  trace.gaps = left_out.take();
  return ok_status();
}

}  // namespace

std::optional<OperationKind> operation_kind_of(std::string_view name) {
  const auto found = std::ranges::lower_bound(kOperationKindNames, name);
  if (found == kOperationKindNames.end() || *found != name) return std::nullopt;
  return static_cast<OperationKind>(found - kOperationKindNames.begin());
}

Result<Trace> arrange(std::vector<TraceRow> rows) {
  if (rows.empty()) return invalid_argument("expected rows of operations, found none");
  sort_rows(rows);
  if (Status once = check_twice(rows); !once.ok()) return once;
  std::vector<std::int32_t> dp_ranks;
  std::vector<std::int32_t> stages;
  for (const TraceRow& row : rows) {
    dp_ranks.push_back(row.dp_rank);
    stages.push_back(row.stage);
  }
  const auto dp_count = count_of(std::move(dp_ranks), "dp rank");
  if (!dp_count.ok()) return dp_count.status();
  const auto stage_count = count_of(std::move(stages), "stage");
  if (!stage_count.ok()) return stage_count.status();
  if (*dp_count * *stage_count > rows.size())
    return invalid_argument("expected rows of ", *dp_count, " dp ranks in ", *stage_count,
                            " stages each, found ", rows.size(), " rows: ranks are missing");
  auto ranks = places_of(rows, *dp_count, *stage_count);
  if (!ranks.ok()) return ranks.status();
  Trace trace;
  trace.dp_ranks = *dp_count;
  trace.stages = *stage_count;
  trace.ranks = *std::move(ranks);
  if (Status added = add_steps(trace, rows); !added.ok()) return added;
  return trace;
}

}  // namespace cox::diagnosis
