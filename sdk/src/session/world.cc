#include "sdk/src/session/world.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "coordinator/core/stall.h"
#include "coordinator/core/text.h"
#include "coordinator/core/units.h"
#include "coordinator/io/thread.h"
#include "coordinator/transport/launch.h"
#include "coordinator/transport/solo.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/slow_wait.h"

namespace cox::detail {
namespace {

std::string value_of(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

// All ranks fail alike to join, unless MPI itself is in trouble.
template <class T>
T joined(Result<T> result) {
  const bool is_usage = result.status().code() == StatusCode::failed_precondition;
  return require(std::move(result), is_usage ? Error::Scope::all_ranks : Error::Scope::this_rank);
}

transport::MpiOptions mpi_options(const ControlConfig& control,
                                  const std::vector<std::string>& environment) {
  transport::MpiOptions options;
  options.ranks_per_node = static_cast<std::int32_t>(control.ranks_per_node);
  const std::string folder = value_of(environment, "COX_SHM_DIR");
  std::error_code error;
  const auto absolute = std::filesystem::absolute(folder, error);
  if (!folder.empty()) options.shared_folder = error ? folder : absolute.string();
  return options;
}

}  // namespace

World::World(const io::LoadedConfig& loaded, const std::vector<std::string>& environment,
             const WrapRanks& wrap_ranks) {
  const ControlConfig& control = loaded.config.control;
  if (joined(transport::launch_of(environment)) == transport::Launch::mpi) {
    mpi_.emplace(joined(transport::MpiRuntime::start(nullptr, nullptr)));
    all_ = joined(mpi_->world(mpi_options(control, environment)));
  } else {
    all_ = transport::solo_communicator();
  }
  const auto named = name_calls("Session::start");
  const auto others =
      loaded.config.run.allow_other_programs ? OtherPrograms::allow : OtherPrograms::refuse;
  identities_ = require(gather_values(*all_, own_identity(others, loaded.rest)));
  if (wrap_ranks) all_ = wrap_ranks(std::move(all_));
  wait_policy_ = wait_policy_of(*all_);
  data_ = require(all_->duplicate());
  farewell_ = require(all_->duplicate());
  devices_ = std::make_unique<DeviceLink>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(control.nccl_seconds)));
}

void World::watch_start(const Log& log, Seconds limit) {
  if (calls() == nullptr) return;
  calls()->on_slow([this, &log, limit, told = std::string()](const auto& slow) mutable {
    const Seconds patience = std::min(limit, Seconds(10));
    if (attend_ || slow.waited < patience) return;
    const std::string whom =
        slow.missing.empty()
            ? "all other ranks wait in this call as well"
            : cox::text_of(std::span<const RankId>(slow.missing)) + " has not made this call";
    const std::string text = concat("rank ", all().rank(), " has waited ",
                                    fixed(slow.waited.count(), 0), " s in ", slow.call, ": ", whom);
    if (std::exchange(told, slow.call) != slow.call) log.warning(text);
    if (slow.waited > limit) end_waiting(log, concat(text, ", beyond control.wait_seconds"));
  });
}

void World::leave_after_failure(const Log& log) noexcept try {
  if (!mpi_ || all().size() == 1) return;
  // Messages of calls that never match are left over, and MPI's end would wait for them. The first
  // rank to leave logs the reason: the launcher ends the others.
  if (calls()->has_failed()) {
    log.error(calls()->failure().message());
    return end_by_exit(log);
  }
  const auto patience =
      transport::with_timeout(wait_policy(), std::chrono::seconds(5), "other ranks that failed");
  const Status together =
      transport::finish(*farewell_,
                        farewell_->start_all_reduce(
                            std::as_writable_bytes(std::span<std::uint64_t>(&ranks_failing_, 1)),
                            transport::sum_u64()),
                        patience);
  if (together.ok()) return;
  log.error("this rank failed while other ranks run; the job ends here");
  end_by_exit(log);
} catch (const std::exception&) {
  mpi_->leave_to_exit();  // no memory to ask the others: the program's own message comes next
}

// Lets the job end with this process, without finalising MPI. A program that continues anyway is
// ended after a few seconds. A program that initialised MPI itself is ended at once.
void World::end_by_exit(const Log& log) {
  if (!mpi_->initialized_here()) transport::MpiRuntime::abort_all(1);
  mpi_->leave_to_exit();
  auto patience = io::start_thread("end of the job", [] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(1);
  });
  if (patience.ok()) return patience->detach();
  log.warning("this process ends only when its program ends: " + patience.status().message());
}

}  // namespace cox::detail
