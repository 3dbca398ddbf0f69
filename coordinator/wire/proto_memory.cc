#include <string>

#include "coordinator/wire/proto_convert.h"

namespace cox::wire {
namespace {

constexpr std::size_t kActionsPerByte = 4;

std::string packed(const std::vector<MemoryAction>& actions) {
  std::string bytes((actions.size() + kActionsPerByte - 1) / kActionsPerByte, '\0');
  for (std::size_t b = 0; b < actions.size(); ++b) {
    const auto bits = static_cast<unsigned>(actions[b]) << (2 * (b % kActionsPerByte));
    char& byte = bytes[b / kActionsPerByte];
    byte = static_cast<char>(static_cast<unsigned char>(byte) | bits);
  }
  return bytes;
}

// Requires: enough bytes.
std::vector<MemoryAction> unpacked(const std::string& bytes, std::size_t blocks) {
  std::vector<MemoryAction> actions(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto byte = static_cast<unsigned char>(bytes[b / kActionsPerByte]);
    actions[b] = static_cast<MemoryAction>(byte >> (2 * (b % kActionsPerByte)) & 3u);
  }
  return actions;
}

Result<MemoryPoint> point_of(const pb::MemoryPoint& message, std::size_t blocks) {
  if (message.actions().size() != (blocks + kActionsPerByte - 1) / kActionsPerByte)
    return wrong_field("memory.actions", "2 bits for each of " + std::to_string(blocks) +
                                             " blocks, found " +
                                             std::to_string(message.actions().size()) + " bytes");
  MemoryPoint point;
  point.peak_bytes = message.peak_bytes();
  point.added_us = message.added_us();
  point.actions = unpacked(message.actions(), blocks);
  return point;
}

Result<MemoryModel> model_of(const pb::MemoryModel& message, std::size_t blocks) {
  MemoryModel model;
  model.base_bytes = message.base_bytes();
  model.step_us = message.step_us();
  model.kept_bytes.assign(message.kept_bytes().begin(), message.kept_bytes().end());
  for (const pb::MemoryPoint& part : message.points()) {
    Result<MemoryPoint> point = point_of(part, blocks);
    if (!point.ok()) return point.status();
    model.front.push_back(std::move(*point));
  }
  return model;
}

void set_model(pb::MemoryModel& message, const MemoryModel& model) {
  message.set_base_bytes(model.base_bytes);
  message.set_step_us(model.step_us);
  message.mutable_kept_bytes()->Assign(model.kept_bytes.begin(), model.kept_bytes.end());
  for (const MemoryPoint& point : model.front) {
    pb::MemoryPoint& part = *message.add_points();
    part.set_peak_bytes(point.peak_bytes);
    part.set_added_us(point.added_us);
    part.set_actions(packed(point.actions));
  }
}

}  // namespace

pb::MemoryFacts to_proto(const MemoryFacts& value) {
  pb::MemoryFacts message;
  for (const MemoryModel& model : value.models) set_model(*message.add_models(), model);
  message.mutable_model_of_rank()->Assign(value.model_of_rank.begin(), value.model_of_rank.end());
  message.mutable_limit_bytes()->Assign(value.limit_bytes.begin(), value.limit_bytes.end());
  return message;
}

Result<MemoryFacts> from_proto(const pb::MemoryFacts& message, const JobFacts& job) {
  MemoryFacts facts;
  for (const pb::MemoryModel& part : message.models()) {
    Result<MemoryModel> model = model_of(part, job.blocks.size());
    if (!model.ok()) return model.status();
    facts.models.push_back(std::move(*model));
  }
  facts.model_of_rank.assign(message.model_of_rank().begin(), message.model_of_rank().end());
  facts.limit_bytes.assign(message.limit_bytes().begin(), message.limit_bytes().end());
  const Status status =
      validate(facts, static_cast<std::size_t>(job.world_size), job.blocks.size());
  if (!status.ok()) return data_loss("message: " + status.message());
  return facts;
}

}  // namespace cox::wire
