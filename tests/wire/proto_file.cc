#include "tests/wire/proto_file.h"

#include "coordinator/core/proto_schema.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/decide.h"
#include "coordinator/policies/registry.h"
#include "coordinator/wire/control_codec.h"
#include "tests/wire/random_values.h"

namespace cox::test {
namespace {

constexpr std::string_view kControlHead =
    R"(// The records of a journal (JournalStart, JournalRound) and the saved control state (ControlState).
// docs/journal.md has their files, and ten lines of Python that read one.
//
// Made from the lists of fields in the sources: do not edit. COX_WRITE_PROTO=1 in the environment
// of the test wire.proto_file writes it again.
//
// Names that users give need not be UTF-8, so texts are bytes. A rank or block of -1 is none. A
// uint32 may hold an enum that has numbers alone.
syntax = "proto3";

package coxswain.v1;

)";

constexpr std::string_view kStatesHead =
    R"(// The states in NamedPolicyState of control.proto: what Decide and the policies of Coxswain keep
// between rounds. Made as control.proto is: do not edit.
//
// The message of each state, by the name of the policy or part that keeps it. A program's own
// policy keeps a message of its own. `version` goes up when a field changes its meaning.
//
)";

}  // namespace

ControlState deciding_state(RandomValues& random) {
  JobFacts job = capable_job(2, 3);
  job.memory = random.memory(job);
  Config config;
  const Status set = apply_text(
      config,
      "shares.mode = on\naccumulation.mode = on\nprecision.format = auto\nmemory.budget = 0.9\n",
      "test");
  if (!set.ok()) return {};
  Begun begun = begin_job(job, config, default_policies(), initial_state(job));
  return decide(job, config, default_policies(), std::move(begun.state),
                random.signals(job, RoundId(1)))
      .state;
}

ProtoFiles proto_files() {
  ProtoSchema schema;
  schema.add<wire::JournalStart>();
  StepSignals signals;
  Decision decision;
  wire::RoundParts<StepSignals, Decision> round{{signals, {}}, {decision, {}}};
  schema.add(round);
  const std::string control = concat(kControlHead, schema.text());
  const std::size_t size = schema.text().size();
  std::string names;
  RandomValues random(2);
  const ControlState state = deciding_state(random);
  for (const NamedPolicyState& named : state.policies)
    names += concat("//   ", named.policy, ": ", named.state.describe(schema), "\n");
  for (const std::string& name : schema.conflicts())
    names += concat("//   two messages have the name ", name, "\n");
  return {control, concat(kStatesHead, names, R"(syntax = "proto3";

package coxswain.v1;

import "coordinator/wire/control.proto";
)",
                          schema.text().substr(size))};
}

}  // namespace cox::test
