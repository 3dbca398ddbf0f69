#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/settings/section.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "metrics/command/commands.h"
#include "metrics/command/run_file.h"
#include "metrics/records/operator_table_file.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostNameColumns = 48;

// Finds the table of operators. A run directory has a folder for each rank. The path of such a
// folder, or of the file, determines the rank by itself.
Result<RunFile> file_of(const OpsRequest& request) {
  const std::string file(io::kOperatorTableName);
  const std::string rank = concat("rank", request.rank);
  std::error_code error;
  const fs::path run(request.run);
  const fs::path folder = fs::is_directory(run / rank, error) ? run / rank : run;
  if (!fs::is_directory(folder, error)) return RunFile{folder, io::Links::followed};
  if (io::is_there(folder / file)) return RunFile{folder / file, io::Links::refused};
  return not_found(request.run, ": expected a run directory with ", rank, "/", file,
                   ", found none in it; a rank writes the file after its third step, if its model "
                   "is adopted, or attached without marks of its own");
}

Result<OperatorTable> table_of(const OpsRequest& request) {
  const auto file = file_of(request);
  if (!file.ok()) return file.status();
  const std::string path = file->path.string();
  const auto text = io::read_file(path, io::kMaxOperatorTableBytes, file->links);
  if (!text.ok()) return text.status();
  auto table = io::read_operator_table(*text);
  if (!table.ok()) return table.status().with_context(path);
  return table;
}

Status check_pattern(const OperatorTable& table, const std::string& pattern) {
  std::vector<std::string> names;
  for (const OperatorRow& row : by_block(table)) names.push_back(row.block);
  if (!by_operator(table, pattern).empty() || names.empty()) return ok_status();
  return not_found("ops: --block: expected a pattern that fits blocks of the run, found '",
                   shown(pattern), "'; its blocks are ", nearest_names(names, pattern));
}

// Mean computes figures of a mean step.
class Mean {
 public:
  explicit Mean(const OperatorTable& table) : steps_(static_cast<double>(table.steps)) {}

  double of(double sum) const { return sum / steps_; }
  double seconds(const OperatorRow& row) const {
    return of(1e-9 * static_cast<double>(row.forward_ns));
  }
  std::string calls(const OperatorRow& row) const {
    const double calls = of(static_cast<double>(row.calls));
    return calls < 10 ? significant(calls, 3) : fixed(calls, 0);
  }
  std::string bytes(const OperatorRow& row) const {
    return bytes_text(static_cast<std::uint64_t>(of(static_cast<double>(row.result_bytes))));
  }
  std::string flops(double sum) const { return flops_text(of(sum)); }

 private:
  double steps_;
};

std::string rate_text(double flops, double seconds) {
  return flops > 0 && seconds > 0 ? flops_text(flops / seconds) + "/s" : "-";
}

std::string cut_name(const std::string& name) {
  const std::string text = printable(name);
  return text.size() <= kMostNameColumns ? text : text.substr(0, kMostNameColumns - 3) + "...";
}

std::size_t width_of(const std::vector<std::string>& names, std::size_t least) {
  for (const std::string& name : names) least = std::max(least, cut_name(name).size());
  return least;
}

std::string operator_table(const std::vector<OperatorRow>& rows, const Mean& mean) {
  std::vector<std::string> names;
  for (const OperatorRow& row : rows) names.push_back(row.name);
  const std::size_t width = width_of(names, 8);
  const double all = mean.seconds(sum_of(rows));
  std::string out = fmt::format("{:<{}} {:>8} {:>10} {:>7} {:>10} {:>12} {:>13}\n", "operator",
                                width, "calls", "forward", "part", "results", "FLOPs", "FLOP/s");
  for (const OperatorRow& row : rows) {
    const double seconds = mean.seconds(row);
    const double flops = row.flops ? mean.of(row.flops->forward) : 0;
    out += fmt::format("{:<{}} {:>8} {:>10} {:>7} {:>10} {:>12} {:>13}\n", cut_name(row.name),
                       width, mean.calls(row), seconds_text(seconds),
                       percent_text(all > 0 ? seconds / all : 0, 1), mean.bytes(row),
                       row.flops ? flops_text(flops) : "-", rate_text(flops, seconds));
  }
  return out;
}

const BlockTime* time_of(const OperatorTable& table, const std::string& block) {
  const auto found = std::ranges::find(table.blocks, block, &BlockTime::name);
  return found == table.blocks.end() ? nullptr : &*found;
}

std::string block_table(const OperatorTable& table, const std::vector<OperatorRow>& rows,
                        const Mean& mean) {
  std::vector<std::string> names;
  for (const OperatorRow& row : rows) names.push_back(row.block);
  const std::size_t width = width_of(names, 5);
  std::string out =
      fmt::format("{:<{}} {:>10} {:>10} {:>10} {:>12} {:>13} {:>13}\n", "block", width, "forward",
                  "backward", "results", "FLOPs", "FLOPs back", "FLOP/s");
  for (const OperatorRow& row : rows) {
    const BlockTime* time = time_of(table, row.block);
    const double forward = time != nullptr ? time->forward_seconds : 0;
    const double backward = time != nullptr ? time->backward_seconds : 0;
    const OperatorFlops flops = row.flops.value_or(OperatorFlops{});
    out += fmt::format("{:<{}} {:>10} {:>10} {:>10} {:>12} {:>13} {:>13}\n", cut_name(row.block),
                       width, seconds_text(forward), seconds_text(backward), mean.bytes(row),
                       row.flops ? mean.flops(flops.forward) : "-",
                       row.flops ? mean.flops(flops.backward) : "-",
                       rate_text(mean.of(flops.sum()), forward + backward));
  }
  return out;
}

std::string heading(const OperatorTable& table, const std::vector<OperatorRow>& rows,
                    const Mean& mean) {
  const OperatorRow sum = sum_of(rows);
  const OperatorFlops flops = sum.flops.value_or(OperatorFlops{});
  return fmt::format(
      "mean of {} sampled steps up to step {}: {} forward, {} backward\n"
      "forward pass: {} in operators, of which {} in those whose FLOPs are not counted (-)\n",
      table.steps, table.newest.value(), mean.flops(flops.forward), mean.flops(flops.backward),
      seconds_text(mean.seconds(sum)), seconds_text(mean.seconds(uncounted_of(rows))));
}

void print_json(const OperatorTable& table, const std::string& pattern) {
  OperatorTable chosen = table;
  std::erase_if(chosen.rows,
                [&pattern](const OperatorRow& row) { return !fits_pattern(pattern, row.block); });
  fmt::print("{}", io::to_json(chosen));
}

void print_tables(const OperatorTable& table, const OpsRequest& request) {
  const Mean mean(table);
  std::vector<OperatorRow> rows = by_operator(table, request.block);
  std::vector<OperatorRow> blocks = by_block(table);
  std::erase_if(blocks, [&request](const OperatorRow& row) {
    return !fits_pattern(request.block, row.block);
  });
  sort_rows(rows, request.order);
  fmt::print("{}\n{}\n{}", heading(table, rows, mean), block_table(table, blocks, mean),
             operator_table(rows, mean));
}

}  // namespace

Status ops_command(const OpsRequest& request) {
  const auto table = table_of(request);
  if (!table.ok()) return table.status();
  if (Status fits = check_pattern(*table, request.block); !fits.ok()) return fits;
  request.form == ReportForm::json ? print_json(*table, request.block)
                                   : print_tables(*table, request);
  return ok_status();
}

}  // namespace cox::tools
