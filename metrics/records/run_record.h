// RunRecord: what a run directory says, rank by rank, as columns: a step is an index, a quantity is
// a Column. The first stage of the diagnosis.
//
//   run directory (records/run_reader.h) -> RunRecord -> figures.h -> published_rules.h,
//   own_rules.h
//
// Columns are packed, because a run has millions of steps and its quantities few digits: a step as
// our own record has it, of some twenty quantities, takes about 50 bytes. Plain values; reading a
// const record is safe from any thread.
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

// Stands for "this step has no such value", which is not the same as a value that is NaN.
inline constexpr std::uint64_t kAbsentBits = 0x7FF8C0C0C0C0C0C0;
inline double absent() {
  return std::bit_cast<double>(kAbsentBits);
}
inline bool is_absent(double value) {
  return std::bit_cast<std::uint64_t>(value) == kAbsentBits;
}

// StepLine and its parts: one line of a rank's steps.jsonl, as readers of run directories pass it
// on, to the columns of a RankRecord (records/run_reader.h) and to the lanes of a picture
// (rank_lanes.h).

// Where in a line a value stands; `own`: outside of the three objects that all tools write.
enum class StepSection : std::uint8_t { phases, scalars, memory, own };

// A number; true is 1, false 0, null absent(). Names are as they stand in the file.
struct StepValue {
  StepSection section = StepSection::own;
  std::string_view name;
  double value = 0;
};

// Gradient buckets of a step (docs/run-directory.md): seconds from the end of backward until they
// were summed. Numbers are as they stand in the file.
struct StepBucketSpan {
  double buckets = 0;
  double bytes = 0;
  double begin_seconds = 0;
  double end_seconds = 0;
};
inline constexpr std::size_t kMostBucketSpans = 32;  // of a step; what a file has beyond is ignored

// What a line says, valid during the call that passes it. `step` is a whole number of at most 2^53
// in magnitude; `timestamp` is Unix time in s, absent() where the line has none.
struct StepLine {
  double step = 0;
  double timestamp = 0;
  std::span<const StepValue> values;
  std::span<const StepBucketSpan> buckets{};
};

// Returns the value of that name, or absent().
double value_in(const StepLine& line, StepSection section, std::string_view name);

// A list of doubles, kept in blocks of kBlock. A block is kept as whole numbers of a power of ten
// or two, of so many bytes as their range asks for, where that is shorter than the doubles
// themselves: none for a constant, two to four for times in nanoseconds, six or seven for most that
// have all their digits. Every value comes back exactly.
class Column {
 public:
  static constexpr std::size_t kBlock = 4096;

  // REQUIRES: close() was not called.
  void push(double value);
  // Appends absent values until there are `size`.
  void pad(std::size_t size);
  // Nothing follows: the last block is packed, too, and what is not needed given back.
  void close();

  std::size_t size() const { return size_; }
  std::size_t blocks() const { return packed_.size() + (open_.empty() ? 0 : 1); }
  // Puts the values of a block into `out`. REQUIRES: block < blocks().
  void read(std::size_t block, std::vector<double>& out) const;
  // All values from `first` on.
  std::vector<double> values(std::size_t first = 0) const;
  // Passes all values from `first` on, with the memory of a block.
  template <class Take>
  void each(std::size_t first, const Take& take) const {
    std::vector<double> block;
    for (std::size_t b = first / kBlock; b < blocks(); ++b) {
      read(b, block);
      for (std::size_t i = b == first / kBlock ? first % kBlock : 0; i < block.size(); ++i)
        take(block[i]);
    }
  }
  // Whether any value is there.
  bool any() const;

 private:
  struct Packed {
    double scale = 1;        // values are (base + code - 1) / scale
    std::int64_t base = 0;   // of code 1; code 0 is an absent value
    std::uint8_t width = 0;  // bytes of a code; 8: the doubles themselves
    std::vector<std::uint8_t> bytes;
  };
  static Packed pack(std::span<const double> values);

  std::vector<Packed> packed_;
  std::vector<double> open_;
  std::size_t size_ = 0;
};

// One member of run.json's config or environment. `json` is the value as canonical JSON text, so
// that equal values have equal texts; members of `environment.env` are named "env.NAME".
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

// Returns the number that a member of `config` has; nothing where it has none.
std::optional<double> number_setting(const RunInfo& info, std::string_view key);

using Columns = std::map<std::string, Column, std::less<>>;

// One rank's folder. All columns have as many values as there are steps.
struct RankRecord {
  std::int32_t rank = 0;
  RunInfo info;
  Column steps;       // numbers; they may repeat after a rollback
  Column timestamps;  // Unix time, s
  Columns phases;     // s
  Columns scalars;
  Columns memory;  // bytes
  Columns own;     // what only our own rows have: plan, overflow, skipped (1), loss_scale, ...

  std::size_t size() const { return steps.size(); }
};

// PlanHistory: the plans of a job with what changed and why, as its journal has them.
struct PlanEvent {
  std::uint32_t incarnation = 0;     // start of the job, from 1
  std::uint64_t plan = 0;            // its number
  std::uint64_t round = 0;           // in which it went out; 0 = with the start
  std::uint64_t step = 0;            // newest one that a rank had closed then
  std::vector<std::string> changes;  // a line each
  std::vector<std::string> reasons;  // a sentence each
};

struct PlanHistory {
  static constexpr std::size_t kMost = 200;  // events that are kept,
  static constexpr std::size_t kFirst = 50;  // of these from the beginning; the others are newest

  std::vector<PlanEvent> events;  // in the order of the journal
  std::size_t left_out = 0;       // between the first kFirst and the newest ones
  std::string gap;                // why the journal could not be read to its end; empty = it was
};

struct RunRecord {
  std::string name;               // of the directory
  std::vector<RankRecord> ranks;  // ascending
  std::vector<std::string> gaps;  // what was left out or is doubtful; a sentence each
  std::vector<Reason> decisions;  // as keep_newest() leaves them; oldest first
  PlanHistory plans;              // empty where no journal lies in the directory

  const RankRecord& lowest() const { return ranks.front(); }
};

// Adds "rank 3: 2 damaged lines are left out" to the gaps of a record; nothing of no lines.
void tell_gap(std::vector<std::string>& gaps, std::int32_t rank, std::size_t count,
              std::string_view what);

// The steps that all ranks have, ascending, and where they are: a row for each step and rank; the
// last one where a rank has a step several times, because what was done before a rollback is lost
// work.
struct CommonSteps {
  std::vector<std::int64_t> numbers;
  std::vector<std::vector<std::uint32_t>> rows;  // empty where all ranks have these steps only
  std::size_t missing = 0;  // that some rank has and another has not, among those of all their time
};
// REQUIRES: the record has a rank.
CommonSteps common_steps(const RunRecord& run);

// Adds the reasons of the next decision. They replace those of earlier decisions that have the same
// policy, code and block; of more than kMostDecisions the oldest go.
inline constexpr std::size_t kMostDecisions = 512;
void keep_newest(std::vector<Reason>& kept, std::span<const Reason> reasons);
// Adds the reasons of a start of the job, or of its new description. A policy that speaks there
// decides anew, so its earlier reasons are out of date.
void keep_start(std::vector<Reason>& kept, std::span<const Reason> reasons);

// Returns the column of that name, or null when no step has it.
const Column* find(const Columns& columns, std::string_view name);

// Returns the values from `first` on; all absent when no step has the column.
std::vector<double> values_of(const Columns& columns, std::string_view name, std::size_t steps,
                              std::size_t first = 0);

// Returns the value of one row. REQUIRES: the columns have that row.
double value_at(const Columns& columns, std::string_view name, std::size_t row);

// Returns per step the sum of all columns, each exactly rounded, from `first` on. Columns of the
// names in `without` are left out.
std::vector<double> row_sums(const Columns& columns, std::size_t steps, std::size_t first,
                             std::span<const std::string_view> without = {});

}  // namespace cox::diagnosis
