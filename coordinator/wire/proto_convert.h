// Converts core values to the messages of control.proto and back. Private to this folder: the only
// header that shows protobuf types. from_proto() checks ranges and counts (data_loss); sizes that
// cost memory were checked before parsing, see control_codec.cc. Pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/wire/control.pb.h"
#include "coordinator/wire/control_codec.h"

namespace cox::wire {

namespace pb = coxswain::v1;

pb::JobFacts to_proto(const JobFacts& value);
pb::MemoryFacts to_proto(const MemoryFacts& value);
pb::PrecisionFacts to_proto(const PrecisionFacts& value);
pb::Reason to_proto(const Reason& value);
pb::Signal to_proto(const RankSignal& value);
pb::StepSignals to_proto(const StepSignals& value);
pb::ControlState to_proto(const ControlState& value);
pb::Decision to_proto(const Decision& value);

Result<JobFacts> from_proto(const pb::JobFacts& message);
// REQUIRE: world_size and blocks of `job` are known.
Result<MemoryFacts> from_proto(const pb::MemoryFacts& message, const JobFacts& job);
Result<PrecisionFacts> from_proto(const pb::PrecisionFacts& message, const JobFacts& job);
Result<Reason> from_proto(const pb::Reason& message);
Result<RankSignal> from_proto(const pb::Signal& message);
Result<StepSignals> from_proto(const pb::StepSignals& message);
Result<ControlState> from_proto(const pb::ControlState& message);
Result<Decision> from_proto(const pb::Decision& message);

// An error that says which field of a message cannot be.
inline Status wrong_field(std::string_view field, std::string_view expected) {
  return data_loss("message: " + std::string(field) + ": expected " + std::string(expected));
}

}  // namespace cox::wire
