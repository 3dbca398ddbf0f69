#include "sdk/src/session/world.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "coordinator/transport/launch.h"
#include "coordinator/transport/solo.h"

namespace cox::detail {

Result<World> World::join(const ControlConfig& control,
                          const std::vector<std::string>& environment) {
  World world;
  auto launch = transport::launch_of(environment);
  if (!launch.ok()) return launch.status();
  if (*launch == transport::Launch::mpi) {
    auto runtime = transport::MpiRuntime::start(nullptr, nullptr);
    if (!runtime.ok()) return runtime.status();
    world.mpi_.emplace(std::move(*runtime));
    transport::MpiOptions options;
    options.ranks_per_node = static_cast<std::int32_t>(control.ranks_per_node);
    const std::string folder = value_of(environment, "COX_SHM_DIR");
    if (!folder.empty()) options.shared_folder = folder;
    auto all = world.mpi_->world(options);
    if (!all.ok()) return all.status();
    world.all_ = std::move(*all);
  } else {
    world.all_ = transport::solo_communicator();
  }
  world.wait_policy_ =
      transport::wait_policy(world.all_->ranks_on_node(), transport::usable_cores());
  return world;
}

void World::end_by_exit() {
  if (!mpi_->initialized_here()) transport::MpiRuntime::abort_all(1);
  mpi_->leave_to_exit();
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(1);
  }).detach();
}

std::vector<std::string> process_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

std::string value_of(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

}  // namespace cox::detail
