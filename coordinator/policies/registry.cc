#include "coordinator/policies/registry.h"

#include <memory>

#include "coordinator/policies/accumulation/accumulation.h"
#include "coordinator/policies/guard/guard.h"
#include "coordinator/policies/loss_scale/loss_scale.h"
#include "coordinator/policies/memory/memory.h"
#include "coordinator/policies/precision/precision.h"
#include "coordinator/policies/shares/shares.h"
#include "coordinator/policies/stragglers/stragglers.h"

namespace cox {

PolicySet default_policies() {
  return {std::make_shared<Guard>(),
          std::make_shared<LossScalePolicy>(),
          std::make_shared<PrecisionPolicy>(),
          std::make_shared<MemoryPolicy>(),
          std::make_shared<Stragglers>(),
          std::make_shared<SharesPolicy>(),
          std::make_shared<AccumulationPolicy>()};
}

}  // namespace cox
