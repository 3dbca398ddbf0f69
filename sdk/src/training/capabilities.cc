// The one place where a session's capabilities are listed: Session::start() makes their actuators,
// and those calls of Session that belong to one capability find it here.
#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "coxswain/session.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"

namespace cox {
namespace {

using detail::Actuator;
using detail::BlockWatch;
using detail::FormatActuator;
using detail::Membership;
using detail::MemoryActuator;
using detail::MemoryProbe;
using detail::NumericsWatch;
using detail::SessionState;

// Formats before memory: what a block keeps for its backward pass depends on its format. The probe
// before numerics, whose own tensors are no part of a step. Blocks last: profiles wait for what is
// asked for and what failed.
std::vector<std::unique_ptr<Actuator>> make_actuators(const Membership& job) {
  const Config& config = job.config();
  auto blocks = std::make_unique<BlockWatch>();
  auto probe = std::make_unique<MemoryProbe>(job.all().ranks_on_node());
  auto formats = std::make_unique<FormatActuator>(config, *blocks, job.log());
  auto memory = std::make_unique<MemoryActuator>(config.memory, config.run.directory, job.rank(),
                                                 *blocks, *probe, job.log());
  auto numerics =
      std::make_unique<NumericsWatch>(config.precision, job.rank(), *blocks, *formats, job.log());
  std::vector<std::unique_ptr<Actuator>> all;
  all.push_back(std::move(formats));
  all.push_back(std::move(memory));
  all.push_back(std::move(probe));
  all.push_back(std::move(numerics));
  all.push_back(std::move(blocks));
  return all;
}

FormatActuator& formats_of(SessionState& state) {
  return state.actuators().get<FormatActuator>();
}

}  // namespace

Session Session::start(int argc, const char* const* argv, SessionOptions options) {
  return Session(std::make_shared<SessionState>(argc, argv, std::move(options), make_actuators));
}

void Session::force_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  formats_of(*state_).request(
      block, {.what = PrecisionRequest::What::force, .format = format, .rounds = rounds});
}
void Session::forbid_precision(std::string_view block, Precision format, std::uint32_t rounds) {
  formats_of(*state_).request(
      block, {.what = PrecisionRequest::What::forbid, .format = format, .rounds = rounds});
}
void Session::release_precision(std::string_view block) {
  formats_of(*state_).request(block, {.what = PrecisionRequest::What::release});
}

}  // namespace cox
