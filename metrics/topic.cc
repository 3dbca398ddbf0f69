#include "metrics/topic.h"

#include "metrics/topics/decisions.h"
#include "metrics/topics/findings.h"
#include "metrics/topics/memory.h"
#include "metrics/topics/numerics.h"
#include "metrics/topics/operators.h"
#include "metrics/topics/parallel.h"
#include "metrics/topics/plan.h"
#include "metrics/topics/progress.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {

const std::vector<Topic>& topics() {
  static const std::vector<Topic> all = {
      findings_topic(), progress_topic(),  ranks_topic(),     stalls_topic(),
      plan_topic(),     parallel_topic(),  operators_topic(), memory_topic(),
      numerics_topic(), decisions_topic(), control_topic(),
  };
  return all;
}

}  // namespace cox::metrics
