#include "sdk/src/session/membership.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "coordinator/decide/policy.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/identity.h"

namespace cox::detail {
namespace {

// Returns "NAME=value" entries.
std::vector<std::string> process_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

io::LoadedConfig take(Result<io::LoadedConfig> loaded, Status& status) {
  status = loaded.status();
  return loaded.ok() ? std::move(*loaded) : io::LoadedConfig{};
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  return {argv + std::min(argc, 1), argv + argc};
}

void write_to_stderr(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
}

struct RankSetting {
  std::string_view key;
  std::int64_t last_rank = -1;  // last rank that the setting names
};

// Checks that settings of single ranks name ranks that exist.
Status check_ranks(const Config& config, std::int32_t world_size) {
  const std::size_t forced = config.force.shares.size();
  if (forced != 0 && forced != static_cast<std::size_t>(world_size)) {
    return invalid_argument("force.shares: expected one share for each of " +
                            std::to_string(world_size) + " ranks, found " + std::to_string(forced) +
                            "; list one number a rank, separated by commas");
  }
  const auto last = [](const auto& by_rank) {
    return by_rank.empty() ? std::int64_t{-1} : std::int64_t{by_rank.rbegin()->first};
  };
  const std::array<RankSetting, 3> settings = {
      RankSetting{"shares.hint", last(config.shares.hint)},
      RankSetting{"shares.max_samples", last(config.shares.max_samples)},
      RankSetting{"memory.budget_of_rank", last(config.memory.budget_of_rank)}};
  for (const RankSetting& setting : settings) {
    if (setting.last_rank < world_size) continue;
    return invalid_argument(setting.key, ": expected ranks from 0 to ", world_size - 1,
                            ", found rank ", setting.last_rank);
  }
  return ok_status();
}

// Gives each policy of the program a mode, and so a key, as the built-in ones have.
Config with_modes_of(const PolicySet& policies, Config config) {
  for (const auto& policy : policies) {
    config.policy_modes.emplace(std::string(policy->name()), PolicyMode::on);
  }
  return config;
}

}  // namespace

Membership::Membership(int argc, const char* const* argv, const SessionOptions& options,
                       const WrapRanks& wrap_ranks)
    : environment_(process_environment()),
      loaded_(take(io::load_config(with_modes_of(options.policies, options.config), environment_,
                                   arguments_of(argc, argv)),
                   config_status_)),
      world_(std::make_unique<World>(loaded_, environment_, wrap_ranks)),
      log_(loaded_.config.run.log, rank(), write_to_stderr, loaded_.config.run.log_width) {
  const auto named = world_->name_calls("Session::start");
  world_->watch_start(log_, Seconds(config().control.wait_seconds));
  check_identities();
  agree(config_status_);
  check_equal(*this, fingerprint(loaded_.config), "the same configuration",
              "give every rank the same file, COX_ variables and --cox flags");
  agree(check_ranks(loaded_.config, world_size()));
  place_ = agree_on_device(all(), config().run.device, log_);
  clocks_ = std::make_unique<NodeClocks>(require(NodeClocks::make(data())));
}

void Membership::agree(const Status& mine) const {
  const auto named = world_->name_calls("a check on all ranks");
  require(agree_on_status(all(), mine, world_->between_polls()), Error::Scope::all_ranks);
}

std::vector<std::uint64_t> Membership::gather(std::uint64_t mine) const {
  const auto named = world_->name_calls("a comparison of all ranks");
  return require(gather_values(all(), mine, world_->between_polls()));
}

void Membership::check_identities() const {
  const Compared compared = compare(world_->identities());
  require(compared.status, Error::Scope::all_ranks);
  if (!is_root()) return;
  for (const std::string& warning : compared.warnings) log_.warning(warning);
}

void check_equal(const Membership& job, std::uint64_t number, const std::string& expected,
                 const std::string& advice) {
  const std::string different = ranks_that_differ(job.gather(number));
  if (different.empty()) return;
  throw Error(invalid_argument("expected " + expected +
                               " on all ranks, found a different one from rank 0's on rank " +
                               different + "; " + advice),
              Error::Scope::all_ranks);
}

}  // namespace cox::detail
