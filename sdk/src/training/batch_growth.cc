#include "sdk/src/training/batch_growth.h"

#include "coordinator/core/text.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {

std::optional<double> BatchGrowth::look(const OperatorCall& call, BlockId block,
                                        const AdoptedModels& models) {
  const std::size_t b = block.value();
  enters_block_ = false;
  if (b >= measured_.size()) return std::nullopt;
  std::int64_t elements = 0;
  for_each_tensor_of(call, [&](const at::Tensor& tensor) {
    if (!models.has_parameter(tensor)) elements += tensor.numel();
  });
  enters_block_ = elements == 0;
  entered_[b] += elements;
  const auto measured = static_cast<double>(measured_[b]);
  const auto entered = static_cast<double>(entered_[b]);
  if (measured == 0 || entered <= growth_ * measured) return std::nullopt;
  return entered / measured;
}

void BatchGrowth::make_room(Session& session, double growth) {
  growth_ = growth;
  const Capabilities& capabilities = session.capabilities();
  if (!capabilities.memory.make_room(growth)) return;
  capabilities.blocks.visits()->steer_anew(VisitWatch::Anew::visit);
  if (growth < 1.25 * told_) return;
  told_ = growth;
  session.state().job().log().info(
      concat("adopted model: a step reads ", significant(growth, 3),
             " times the measured batch: a larger batch, or an evaluation with gradients on "
             "(torch::NoGradGuard saves its memory); in such a step the blocks get less memory "
             "than the plan has"));
}

void BatchGrowth::note_measured() {
  for (std::size_t b = 0; b < measured_.size(); ++b)
    measured_[b] = std::max(measured_[b], entered_[b]);
}

}  // namespace cox::detail
