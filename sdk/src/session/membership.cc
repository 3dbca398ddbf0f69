#include "sdk/src/session/membership.h"

#include <chrono>
#include <cstdio>
#include <span>
#include <string_view>
#include <utility>

#include "coordinator/core/policy.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/startup_summary.h"

namespace cox::detail {
namespace {

io::LoadedConfig take(Result<io::LoadedConfig> loaded, Status& status) {
  status = loaded.ok() ? ok_status() : loaded.status();
  return loaded.ok() ? std::move(*loaded) : io::LoadedConfig{};
}

// What keeps a rank from joining is the same on all of them, unless MPI itself is in trouble.
World join(const ControlConfig& control, const std::vector<std::string>& environment) {
  auto world = World::join(control, environment);
  if (world.ok()) return std::move(*world);
  const bool is_usage = world.status().code() == StatusCode::failed_precondition;
  throw Error(world.status(), is_usage ? Error::Scope::all_ranks : Error::Scope::this_rank);
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

void write_to_stderr(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// What the configuration says of single ranks must be of ranks that exist.
Status check_ranks(const Config& config, std::int32_t world_size) {
  const std::size_t forced = config.force.shares.size();
  if (forced != 0 && forced != static_cast<std::size_t>(world_size)) {
    return invalid_argument("force.shares: expected one share for each of " +
                            std::to_string(world_size) + " ranks, found " + std::to_string(forced));
  }
  const auto beyond = [world_size](const auto& by_rank) {
    return !by_rank.empty() && by_rank.rbegin()->first >= world_size;
  };
  if (!beyond(config.shares.hint) && !beyond(config.shares.max_samples)) return ok_status();
  return invalid_argument("shares.hint and shares.max_samples: expected ranks from 0 to " +
                          std::to_string(world_size - 1) + ", found one that does not exist");
}

// A policy that the program brings along has a mode, and so a key, as the built-in ones do.
Config with_modes_of(const PolicySet& policies, Config config) {
  for (const auto& policy : policies) {
    config.policy_modes.emplace(std::string(policy->name()), PolicyMode::on);
  }
  return config;
}

}  // namespace

Membership::Membership(int argc, const char* const* argv, const SessionOptions& options)
    : environment_(process_environment()),
      loaded_(take(io::load_config(with_modes_of(options.policies, options.config), environment_,
                                   arguments_of(argc, argv)),
                   config_status_)),
      world_(join(loaded_.config.control, environment_)),
      data_(require(world_.all().duplicate())),
      farewell_(require(world_.all().duplicate())),
      log_(loaded_.config.run.log, rank(), write_to_stderr) {
  agree(config_status_);
  check_equal_configs();
  agree(check_ranks(loaded_.config, world_size()));
}

void Membership::agree(const Status& mine) const {
  const Status agreed = agree_on_status(all(), mine);
  if (!agreed.ok()) throw Error(agreed, Error::Scope::all_ranks);
}

std::vector<std::uint64_t> Membership::gather(std::uint64_t mine) const {
  return require(gather_numbers(all(), mine));
}

void Membership::check_equal_configs() const {
  const std::string different = ranks_that_differ(gather(fingerprint(loaded_.config)));
  if (different.empty()) return;
  const Status status = invalid_argument(
      "expected the same configuration on all ranks, found another than rank 0's on rank " +
      different + "; give every rank the same file, COX_ variables and --cox flags");
  throw Error(status, Error::Scope::all_ranks);
}

void Membership::log_hosts() const {
  const auto hosts = require(gather_hosts(all(), wait_policy()));
  if (!is_root()) return;
  for (const std::string& line : summary_lines(hosts)) log_.info(line);
}

void Membership::leave_after_failure() noexcept {
  if (!world_.uses_mpi() || world_size() == 1) return;
  const auto patience =
      transport::with_timeout(wait_policy(), std::chrono::seconds(5), "ranks that fail as well");
  const Status together =
      transport::finish(*farewell_,
                        farewell_->start_all_reduce(
                            std::as_writable_bytes(std::span<std::uint64_t>(&ranks_failing_, 1)),
                            transport::sum_u64()),
                        patience);
  if (together.ok()) return;
  log_.error("this rank fails while others go on; the job ends here");
  world_.end_by_exit();
}

}  // namespace cox::detail
