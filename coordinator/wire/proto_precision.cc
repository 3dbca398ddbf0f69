#include <string>

#include "coordinator/wire/proto_convert.h"

namespace cox::wire {

pb::PrecisionFacts to_proto(const PrecisionFacts& value) {
  pb::PrecisionFacts message;
  for (const BlockFormats& block : value.blocks) {
    for (const std::int64_t us : block.step_us) message.add_step_us(us);
  }
  message.set_emulated(value.emulated);
  return message;
}

Result<PrecisionFacts> from_proto(const pb::PrecisionFacts& message, const JobFacts& job) {
  const auto times = static_cast<std::size_t>(message.step_us_size());
  if (times != 0 && times != kPrecisions * job.blocks.size())
    return wrong_field("precision.step_us", "4 times for each of " +
                                                std::to_string(job.blocks.size()) +
                                                " blocks or none, found " + std::to_string(times));
  if (message.emulated() >= 1u << kPrecisions) return wrong_field("precision.emulated", "4 bits");
  PrecisionFacts facts;
  facts.blocks.resize(times / kPrecisions);
  for (std::size_t i = 0; i < times; ++i) {
    facts.blocks[i / kPrecisions].step_us[i % kPrecisions] = message.step_us(static_cast<int>(i));
  }
  facts.emulated = static_cast<PrecisionSet>(message.emulated());
  const Status status = validate(facts, job.blocks.size());
  if (!status.ok()) return data_loss("message: " + status.message());
  return facts;
}

}  // namespace cox::wire
