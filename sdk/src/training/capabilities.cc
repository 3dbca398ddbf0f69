#include "sdk/src/training/capabilities.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/blocks/operator_watch.h"
#include "sdk/src/memory/allocator_report.h"
#include "sdk/src/memory/memory_calibration.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/fp8_watch.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/host_facts.h"
#include "sdk/src/session/host_watch.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {
namespace {

HostWatch::Setup host_setup(const Membership& job) {
  HostWatch::Setup setup;
  setup.host = this_host().host;
  setup.cores = static_cast<std::int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  setup.clock_error = [&job] { return job.clocks().error(); };
  setup.on_trouble = [log = job.log()](const Status& trouble) {
    log.warning("causes of slow ranks are not searched for: " + trouble.message());
  };
  return setup;
}

}  // namespace

// Order matters:
// - formats before memory: a block's saved bytes depend on its format
// - the probe before numerics, whose own tensors are not part of a step
// - blocks late: profiles need the requests and failures of the capabilities before
// - evidence of the host and of the allocator after all others
Capabilities add_capabilities(ActuatorList& list, const Membership& job) {
  const Config& config = job.config();
  auto blocks = std::make_unique<BlockWatch>(config.blocks);
  auto probe = std::make_unique<MemoryProbe>(
      MemorySharers{.of_node = job.all().ranks_on_node(), .of_device = job.place().ranks});
  auto allocator = std::make_unique<AllocatorReport>(*probe);
  auto formats = std::make_unique<FormatActuator>(config, *blocks, job.log());
  auto loss_scale = std::make_unique<LossScale>(*formats, *blocks);
  auto fp8 = std::make_unique<Fp8Watch>(config.precision, job.rank(), job.log());
  auto memory = std::make_unique<MemoryCalibration>(config.memory, config.run.directory, job.rank(),
                                                    *blocks, *probe, job.log());
  auto numerics = std::make_unique<NumericsWatch>(config.precision, job.rank(), *blocks,
                                                  *loss_scale, *fp8, job.log());
  auto operators = std::make_unique<OperatorWatch>(*blocks);
  const Capabilities added{*formats, *loss_scale, *fp8,    memory->actuator(),
                           *probe,   *numerics,   *blocks, memory->gradient_holders()};
  list.own(std::move(formats));
  list.own(std::move(loss_scale));
  list.own(std::move(fp8));
  list.own(std::move(memory));
  list.add(added.memory);
  list.own(std::move(probe));
  list.own(std::move(numerics));
  list.own(std::move(operators));
  list.own(std::move(blocks));
  list.own(std::make_unique<HostWatch>(host_setup(job)));
  list.own(std::move(allocator));
  return added;
}

}  // namespace cox::detail
