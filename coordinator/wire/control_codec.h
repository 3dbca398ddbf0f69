// The records of the journal and the saved control state as bytes: the messages of control.proto,
// written by core/state_codec.h from the lists in control_fields.h. Doubles and floats come back
// bit for bit (NaN, infinities, -0). The step path never sees them.
//
// Pure functions, any thread. Parsing treats its bytes as hostile: data_loss for bytes that are no
// such record, or one with more parts than its job can have, before memory is spent on them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/status.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/decide/decide.h"
#include "coordinator/wire/plan_codec.h"

namespace cox::wire {

inline constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 28;
inline constexpr std::size_t kMaxPolicies = 256;

// JournalStart has everything but the signals that Decide needs to run a journal again.
struct JournalStart {
  JobFacts job;
  std::string config;  // text() of the configuration
  ControlState state;
  std::vector<std::string> policies;  // names, in the order in which Decide asks them
  std::optional<Decision> first{};    // begin_job()'s answer to `state`; empty: it had none
};

// JournalRound has the signals that Decide saw in one round, and of its decision the plan and the
// reasons.
struct JournalRound {
  StepSignals signals;
  Decision decision;
};

std::string serialize(const JournalStart& value);
// Returns the bytes of a JournalRound, from its parts.
std::string serialize(const StepSignals& signals, const Decision& decision);
std::string serialize(const ControlState& value);

Result<JournalStart> parse_journal_start(std::string_view bytes);
Result<JournalRound> parse_journal_round(std::string_view bytes, const JobSize& size);
Result<ControlState> parse_control_state(std::string_view bytes);

}  // namespace cox::wire
