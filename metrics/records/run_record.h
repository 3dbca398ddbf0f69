// RunRecord holds a run directory as columns, rank by rank: a step is an index, a quantity is a
// Column. First stage of the diagnosis.
//
//   run directory (run_reader.h) -> RunRecord -> figures.h -> published_rules.h, own_rules.h
//
// Columns are packed, because a run has millions of steps and short numbers: a step of our own
// record, about twenty quantities, takes about 50 bytes. Plain values; any thread may read a const
// record.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/reason.h"

namespace cox::diagnosis {

// Marks "this step has no such value". A value that is NaN has other bits.
inline constexpr std::uint64_t kAbsentBits = 0x7FF8C0C0C0C0C0C0;
inline double absent() {
  return std::bit_cast<double>(kAbsentBits);
}
inline bool is_absent(double value) {
  return std::bit_cast<std::uint64_t>(value) == kAbsentBits;
}

// StepLine and its parts are one line of a rank's steps.jsonl. Readers pass the line to the columns
// of a RankRecord (records/run_reader.h) and to the lanes of a picture (rank_lanes.h).

// StepSection names the JSON object of a line that holds a value. `own` is the line itself, outside
// the three objects that all tools write.
enum class StepSection : std::uint8_t { phases, scalars, memory, own };

// A number: true is 1, false 0, null absent(). Names are as in the file.
struct StepValue {
  StepSection section = StepSection::own;
  std::string_view name;
  double value = 0;
};

// Gradient buckets of a step (docs/run-directory.md). Seconds count from the end of backward.
// Numbers are as in the file.
struct StepBucketSpan {
  double buckets = 0;
  double bytes = 0;
  double begin_seconds = 0;
  double end_seconds = 0;
};
inline constexpr std::size_t kMostBucketSpans = 32;  // in a step; later spans of a line are ignored

// One parsed line, valid during the call that passes it. `step` is a whole number of at most 2^53
// in magnitude. `timestamp` is Unix time in s, or absent().
struct StepLine {
  double step = 0;
  double timestamp = 0;
  std::span<const StepValue> values;
  std::span<const StepBucketSpan> buckets{};
};

// Returns the value of that name, or absent().
double value_in(const StepLine& line, StepSection section, std::string_view name);

// Column is a list of doubles in blocks of kBlock. A block stores whole numbers, scaled by a power
// of ten or two, if they need fewer bytes than doubles. A value takes no bytes in a constant block,
// two to four for times in nanoseconds, six or seven for most full-precision values. Every value
// reads back exactly.
class Column {
 public:
  static constexpr std::size_t kBlock = 4096;

  // REQUIRES: close() was not called.
  void push(double value);
  // Appends absent values until the size is `size`.
  void pad(std::size_t size);
  // Packs the last block and frees unused memory. No push() may follow.
  void close();

  std::size_t size() const { return size_; }
  std::size_t blocks() const { return packed_.size() + (open_.empty() ? 0 : 1); }
  // Copies the values of a block into `out`. REQUIRES: block < blocks().
  void read(std::size_t block, std::vector<double>& out) const;
  // Returns all values from `first` on.
  std::vector<double> values(std::size_t first = 0) const;
  // Passes all values from `first` on. Unpacks one block at a time.
  template <class Take>
  void each(std::size_t first, const Take& take) const {
    std::vector<double> block;
    for (std::size_t b = first / kBlock; b < blocks(); ++b) {
      read(b, block);
      for (std::size_t i = b == first / kBlock ? first % kBlock : 0; i < block.size(); ++i)
        take(block[i]);
    }
  }
  // Returns whether any value is present.
  bool any() const;

 private:
  struct Packed {
    double scale = 1;        // values are (base + code - 1) / scale
    std::int64_t base = 0;   // value of code 1; code 0 is an absent value
    std::uint8_t width = 0;  // bytes of a code; 8 = plain doubles
    std::vector<std::uint8_t> bytes;
  };
  static Packed pack(std::span<const double> values);

  std::vector<Packed> packed_;
  std::vector<double> open_;
  std::size_t size_ = 0;
};

// One member of run.json's config or environment. `json` is the value as canonical JSON text, so
// that equal values have equal texts. Members of `environment.env` are named "env.NAME".
struct RunSetting {
  std::string key;
  std::string json;
};

struct RunInfo {
  std::string name;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::int32_t node = -1;  // the lowest rank of the machine; -1 = not known
  double started = 0;      // Unix time in s; 0 = unknown
  double wall_seconds = 0;
  std::vector<RunSetting> config;
  std::vector<RunSetting> environment;
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;  // FLOP/s of the device
  double dropped_rows = 0;
};

// Returns the number of a member of `config`; nullopt if the member is missing or no number.
std::optional<double> number_setting(const RunInfo& info, std::string_view key);

using Columns = std::map<std::string, Column, std::less<>>;

// One rank's folder. Every column has one value for each step.
struct RankRecord {
  std::int32_t rank = 0;
  RunInfo info;
  Column steps;       // step numbers; may repeat after a rollback
  Column timestamps;  // Unix time, s
  Columns phases;     // s
  Columns scalars;
  Columns memory;  // bytes
  Columns own;     // fields of our own rows only: plan, overflow, skipped (1), loss_scale, ...

  std::size_t size() const { return steps.size(); }
};

// PlanHistory has the plans of a job from its journal: the changes of each plan and their reasons.
struct PlanEvent {
  std::uint32_t incarnation = 0;     // start of the job, from 1
  std::uint64_t plan = 0;            // the plan's number
  std::uint64_t round = 0;           // round of publication; 0 = at the start
  std::uint64_t step = 0;            // newest step closed by a rank at the time
  std::vector<std::string> changes;  // a line each
  std::vector<std::string> reasons;  // a sentence each
};

struct PlanHistory {
  static constexpr std::size_t kMost = 200;  // events kept
  static constexpr std::size_t kFirst = 50;  // the oldest of them; the rest are the newest

  std::vector<PlanEvent> events;  // in the order of the journal
  std::size_t left_out = 0;       // events between the two parts
  std::string gap;                // why the journal was read in part; empty = read to the end
};

struct RunRecord {
  std::string name;               // the directory's
  std::vector<RankRecord> ranks;  // ascending
  std::vector<std::string> gaps;  // data left out or doubtful; a sentence each
  std::vector<Reason> decisions;  // as keep_newest() leaves them; oldest first
  PlanHistory plans;              // empty if the directory has no journal

  const RankRecord& lowest() const { return ranks.front(); }
};

// Adds "rank 3: 2 damaged lines are left out" to the gaps of a record. Adds nothing if `count` is
// 0.
void tell_gap(std::vector<std::string>& gaps, std::int32_t rank, std::size_t count,
              std::string_view what);

// CommonSteps has the steps that all ranks have, ascending, with a row for each step and rank. If a
// rank has several rows of a step, the last row counts, because a rollback discards the earlier
// work.
struct CommonSteps {
  std::vector<std::int64_t> numbers;
  std::vector<std::vector<std::uint32_t>> rows;  // empty if all ranks have these steps only
  std::size_t missing = 0;                       // steps of the shared time that not every rank has
};
// REQUIRES: the record has a rank.
CommonSteps common_steps(const RunRecord& run);

// Adds the reasons of the next decision. Replaces earlier reasons of the same policy, code and
// block. Drops the oldest beyond kMostDecisions.
inline constexpr std::size_t kMostDecisions = 512;
void keep_newest(std::vector<Reason>& kept, std::span<const Reason> reasons);
// Adds the reasons of a job's start, or of its new description. A policy with a reason in `reasons`
// decides anew, so its earlier reasons are dropped as stale.
void keep_start(std::vector<Reason>& kept, std::span<const Reason> reasons);

// Returns the column of that name, or null if no step has such a value.
const Column* find(const Columns& columns, std::string_view name);

// Returns the values from `first` on; all absent if no step has the column.
std::vector<double> values_of(const Columns& columns, std::string_view name, std::size_t steps,
                              std::size_t first = 0);

// Returns the value of one row. REQUIRES: the columns have the row.
double value_at(const Columns& columns, std::string_view name, std::size_t row);

// Returns the exactly rounded sum of all columns for each step from `first` on. Leaves out columns
// named in `without`.
std::vector<double> row_sums(const Columns& columns, std::size_t steps, std::size_t first,
                             std::span<const std::string_view> without = {});

}  // namespace cox::diagnosis
