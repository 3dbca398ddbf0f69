#include "coordinator/core/settings/parallel.h"

#include <algorithm>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/core/units.h"
#include "coordinator/core/words.h"

namespace cox {
namespace {

using namespace settings;

constexpr std::int64_t kLeastBucket = 1024;
constexpr std::string_view kShardModeNames[] = {"off", "state"};
constexpr IntegerRange kSettling = {1, 1000000};
constexpr IntegerRange kAnchors = {1, 65536};
constexpr IntegerRange kForcedShares = {0, 1 << 20};

Result<std::int64_t> parse_bucket(std::string_view text) {
  const Result<std::int64_t> bytes = parse_bytes(text);
  if (!bytes.ok() || *bytes == 0 || *bytes >= kLeastBucket) return bytes;
  return invalid_argument("expected 0 or at least 1KiB, found '", shown(text), "'");
}

template <class Value, class Parse>
Setting<SharesConfig> by_rank(std::map<std::int32_t, Value> SharesConfig::*field, SettingName name,
                              std::string range, Parse parse) {
  return settings::by_rank(field, std::move(name), "ranks", "RANK=VALUE", std::move(range), parse,
                           [](Value value) { return format(value); });
}

Result<std::vector<std::uint32_t>> parse_shares(std::string_view text) {
  return parse_list<std::uint32_t>(text, [](std::string_view part) -> Result<std::uint32_t> {
    const auto value = parse_integer(part, kForcedShares);
    if (!value.ok()) return value.status();
    return static_cast<std::uint32_t>(*value);
  });
}

std::string format_shares(const std::vector<std::uint32_t>& shares) {
  return format_list(shares, [](std::uint32_t share) { return std::to_string(share); });
}

}  // namespace

std::vector<Setting<ReductionConfig>> reduction_settings() {
  using C = ReductionConfig;
  return {
      flag(&C::reproducible,
           {"reproducible", "",
            "weights do not depend on the number of ranks, their shares or their timing"}),
      parsed(&C::bucket_bytes,
             {"bucket_bytes", "bytes",
              "bytes of gradients in one reduction; 0 = the first steps try several sizes"},
             "bytes", "0, or 1KiB .. 1024TiB", parse_bucket, format_bytes),
      flag(&C::shared_memory, {"shared_memory", "", "off: ranks of a node reduce through MPI too"}),
      integer(
          &C::verify_steps,
          {"verify_steps", "steps", "ranks compare a hash of their weights that often; 0 = never"},
          {0, 1000000000}),
  };
}

std::vector<Setting<SharesConfig>> shares_settings() {
  using C = SharesConfig;
  return {
      mode(&C::mode, {"mode", "", "fits each rank's part of the batch to its speed"}),
      by_rank(&C::hint, {"hint", "ratio", "speeds to start from; 1 for ranks not named"},
              "RANK=0.001 .. 1000,...",
              [](std::string_view text) {
                return parse_number(text, {0.001, 1000});
              }),
      integer(&C::min_samples, {"min_samples", "samples", "least samples of every rank in a step"},
              {0, kMaxStepSamples}),
      by_rank(&C::max_samples,
              {"max_samples", "samples",
               "most samples of single ranks in a step; other ranks have no cap"},
              concat("RANK=0 .. ", kMaxStepSamples, ",..."),
              [](std::string_view text) {
                return parse_integer(text, {0, kMaxStepSamples});
              }),
      integer(&C::settle_rounds,
              {"settle_rounds", "rounds", "rounds that are observed before each change"},
              kSettling),
      number(
          &C::smallest_gain_ratio,
          {"smallest_gain_ratio", "ratio", "least gain for a change, as a part of a step's time"},
          {0, 1}),
  };
}

std::vector<Setting<AccumulationConfig>> accumulation_settings() {
  using C = AccumulationConfig;
  return {
      mode(&C::mode, {"mode", "", "enlarges the batch if synchronising takes much of a step"}),
      number(&C::target_ratio,
             {"target_ratio", "ratio", "part of a step's time that synchronising may take"},
             {0.001, 0.9}),
      integer(&C::min_anchor,
              {"min_anchor", "micro-batches", "fewest micro-batches of the slowest rank in a step"},
              kAnchors),
      integer(&C::max_anchor,
              {"max_anchor", "micro-batches", "most micro-batches of the slowest rank in a step"},
              kAnchors),
      integer(&C::settle_rounds,
              {"settle_rounds", "rounds", "rounds that are observed before each change"},
              kSettling),
  };
}

std::vector<Setting<ShardConfig>> shard_settings() {
  return {
      choice(&ShardConfig::mode,
             {"mode", "", "state: ranks of a node hold parameters once, divide optimizer state"},
             kShardModeNames),
      integer(&ShardConfig::grain,
              {"grain", "elements",
               "of a parameter that stay on one rank, as states kept by blocks do"},
              {1, 1 << 30}),
  };
}

std::vector<Setting<OverrideConfig>> force_settings() {
  return {
      parsed(&OverrideConfig::shares,
             {"shares", "ratio", "relative, one per rank, from the first step on; empty = free"},
             "list", concat("each ", kForcedShares.min, " .. ", kForcedShares.max), parse_shares,
             format_shares),
  };
}

Status validate(const SharesConfig& config) {
  for (const auto& [rank, most] : config.max_samples) {
    if (most >= config.min_samples) continue;
    return invalid_argument("shares.max_samples of rank ", rank,
                            ": expected at least shares.min_samples (", config.min_samples,
                            "), found ", most);
  }
  return ok_status();
}

Status validate(const AccumulationConfig& config) {
  if (config.min_anchor <= config.max_anchor) return ok_status();
  return invalid_argument("accumulation.min_anchor: expected 1 to accumulation.max_anchor (",
                          config.max_anchor, "), found ", config.min_anchor);
}

Status validate(const OverrideConfig& config) {
  const std::vector<std::uint32_t>& shares = config.shares;
  const bool nobody_works =
      std::ranges::all_of(shares, [](std::uint32_t share) { return share == 0; });
  if (shares.empty() || !nobody_works) return ok_status();
  return invalid_argument("force.shares gives no rank any work; at least one must be above 0");
}

}  // namespace cox
