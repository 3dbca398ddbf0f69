#include "sdk/src/blocks/visit_listener.h"

#include <utility>

namespace cox::detail {

std::optional<ProductFormat> VisitListener::product_format() const {
  const std::optional<BlockId> block = visits_.current();
  if (!block) return std::nullopt;
  const BlockSteering& steering = visits_.parts().steering;
  const std::optional<ProductFormat> narrow = steering.narrow_format(*block);
  return narrow || !steering.has_narrow() ? narrow : ProductFormat{at::kFloat};
}

// The meter runs last before the operator and first after it.
void VisitListener::begin(const OperatorCall& call) {
  if (Tape* tape = visits_.parts().region.recording()) tape->begin(call);
  if (is_metered()) visits_.parts().meter.begin(call, *visits_.current());
}

void VisitListener::end(std::span<const c10::IValue> results) {
  VisitParts& parts = visits_.parts();
  if (parts.meter.is_running()) parts.meter.end(results);
  if (Tape* tape = parts.region.recording()) tape->end(results);
  parts.comparison.operator_ended();
}

void VisitListener::failed() noexcept {
  VisitParts& parts = visits_.parts();
  if (parts.meter.is_running()) parts.meter.failed();
  if (Tape* tape = parts.region.recording()) tape->failed();
  parts.comparison.operator_failed();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> VisitListener::make_hooks() {
  VisitParts& parts = visits_.parts();
  auto deciding = parts.region.make_hooks();
  const std::optional<BlockId> block = visits_.current();
  if (!block) return deciding;
  const BlockId region = *parts.region.block();
  if (parts.comparison.is_on() && deciding != nullptr) {
    std::shared_ptr<BitsComparison> shared(shared_from_this(), &parts.comparison);
    deciding = BitsComparison::make_hooks(std::move(shared), region, std::move(deciding));
  }
  if (parts.clock.mode() == MeasureMode::off) return deciding;
  std::shared_ptr<VisitClock> shared(shared_from_this(), &parts.clock);
  return VisitClock::make_hooks(std::move(shared), {*block, region}, std::move(deciding));
}

}  // namespace cox::detail
