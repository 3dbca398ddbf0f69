#include <string>

#include "coordinator/core/config_rows.h"
#include "coordinator/core/memory_values.h"
#include "coordinator/core/parallel_values.h"

namespace cox::config_rows {
namespace {

constexpr values::IntegerRange kSettling = {1, 1000000};
constexpr values::IntegerRange kAnchors = {1, 65536};

std::string format_speeds(const std::map<std::int32_t, double>& speeds) {
  return values::format(speeds);
}

std::string format_samples(const std::map<std::int32_t, std::uint64_t>& samples) {
  return values::format(samples);
}

}  // namespace

void add_reduction(std::vector<ConfigRow>& t) {
  t.push_back(flag({"reduction.reproducible", "",
                    "weights do not depend on the number of ranks, their shares or their timing"},
                   COX_FIELD(reduction.reproducible)));
  t.push_back(parsed({"reduction.bucket_bytes", "bytes",
                      "of gradients reduced at once; 0 = sizes are tried in the first steps"},
                     "bytes", "0, or 1KiB .. 1024TiB", values::parse_bytes, values::format_bytes,
                     COX_FIELD(reduction.bucket_bytes)));
  t.push_back(flag({"reduction.shared_memory", "", "off: ranks of a node reduce through MPI too"},
                   COX_FIELD(reduction.shared_memory)));
}

void add_shares(std::vector<ConfigRow>& t) {
  t.push_back(choice({"shares.mode", "", "fits each rank's part of the batch to its speed"}, "mode",
                     values::kModeNames, COX_FIELD(shares.mode)));
  t.push_back(parsed({"shares.hint", "ratio", "speeds to start from; 1 for ranks not named"},
                     "ranks", "RANK=0.001 .. 1000,...", values::parse_speeds, format_speeds,
                     COX_FIELD(shares.hint)));
  t.push_back(integer({"shares.min_samples", "samples", "of every rank in a step"},
                      {0, values::kMostSamples}, COX_FIELD(shares.min_samples)));
  t.push_back(parsed({"shares.max_samples", "samples", "of single ranks; others have no cap"},
                     "ranks", "RANK=0 .. 2147483648,...", values::parse_samples, format_samples,
                     COX_FIELD(shares.max_samples)));
  t.push_back(integer({"shares.settle_rounds", "rounds", "seen before each change"}, kSettling,
                      COX_FIELD(shares.settle_rounds)));
  t.push_back(number({"shares.smallest_gain_ratio", "ratio", "of a step's time, for a change"},
                     {0, 1}, COX_FIELD(shares.smallest_gain_ratio)));
}

void add_accumulation(std::vector<ConfigRow>& t) {
  t.push_back(choice({"accumulation.mode", "",
                      "makes steps larger where synchronising is dear; changes the batch"},
                     "mode", values::kModeNames, COX_FIELD(accumulation.mode)));
  t.push_back(
      number({"accumulation.target_ratio", "ratio", "of a step's time that synchronising may take"},
             {0.001, 0.9}, COX_FIELD(accumulation.target_ratio)));
  t.push_back(integer({"accumulation.min_anchor", "micro-batches", "least of the slowest rank"},
                      kAnchors, COX_FIELD(accumulation.min_anchor)));
  t.push_back(integer({"accumulation.max_anchor", "micro-batches", "most of the slowest rank"},
                      kAnchors, COX_FIELD(accumulation.max_anchor)));
  t.push_back(integer({"accumulation.settle_rounds", "rounds", "seen before each change"},
                      kSettling, COX_FIELD(accumulation.settle_rounds)));
}

}  // namespace cox::config_rows
