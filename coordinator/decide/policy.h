// The interface of policies. A policy is a pure function: it turns the facts of a round and its own
// state into proposals with reasons, and a new state. A policy never writes the plan, reads no
// clock and draws no randomness, so `cox replay` can run it again from the journal. Decide owns the
// states and calls policies one after another on the coordinator's thread.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/proto_schema.h"
#include "coordinator/core/reason.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/core/summary.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/plan_change.h"
#include "coordinator/estimates/estimates.h"

namespace cox {

// PolicyState holds a policy's memory between rounds, as a value of the policy's own type. Decide
// keeps one state per policy, passes the state in and stores the next one. Within a job the value
// is moved without conversion. Journals and saves store bytes; after a restore the first
// take_or_fresh() decodes the bytes.
//
//   PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
//     auto mine = state.take_or_fresh<GuardState>();
//     ...
//     output.state = PolicyState::of(std::move(mine));
//   }
//
// A value: copies are deep. One thread at a time.
class PolicyState {
 public:
  PolicyState() = default;  // fresh

  template <State T>
  static PolicyState of(T value) {
    PolicyState state;
    state.held_ = std::move(value);
    state.encode_ = [](const std::any& held) {
      return encode_state(std::any_cast<const T&>(held));
    };
    state.describe_ = [](ProtoSchema& schema) { return schema.add<T>(); };
    return state;
  }

  // Makes a restored state from bytes; no bytes make a fresh state. take_or_fresh() checks the
  // bytes.
  static PolicyState from_bytes(std::string bytes) {
    PolicyState state;
    state.bytes_ = std::move(bytes);
    return state;
  }

  // Moves the value out and leaves a fresh state. Returns T{} if the state is fresh, damaged, or of
  // another type or version. The caller checks sizes against the world, and the ranges of values.
  template <State T>
  T take_or_fresh() {
    std::any held = std::exchange(held_, {});
    const std::string bytes = std::exchange(bytes_, {});
    if (T* const value = std::any_cast<T>(&held)) return std::move(*value);
    if (bytes.empty()) return T{};
    Result<T> decoded = decode_state<T>(bytes);
    return decoded.ok() ? *std::move(decoded) : T{};
  }

  // Returns the bytes for journals and saves; none if the state is fresh.
  std::string bytes() const { return held_.has_value() ? encode_(held_) : bytes_; }

  // Adds the message type of the state to the schema and returns the type's name. Returns an empty
  // name if the state is fresh or restored, because the type is then unknown.
  std::string describe(ProtoSchema& schema) const {
    return held_.has_value() ? describe_(schema) : std::string();
  }

  bool is_fresh() const { return !held_.has_value() && bytes_.empty(); }

  friend bool operator==(const PolicyState& a, const PolicyState& b) {
    return a.bytes() == b.bytes();
  }

 private:
  std::any held_;
  std::string (*encode_)(const std::any& held) = nullptr;
  std::string (*describe_)(ProtoSchema& schema) = nullptr;
  std::string bytes_;  // not decoded yet; empty while a value is held
};

template <>
struct BytesOf<PolicyState> {
  static std::string of(const PolicyState& state) { return state.bytes(); }
  static bool set(PolicyState& state, std::string_view bytes) {
    state = PolicyState::from_bytes(std::string(bytes));
    return true;
  }
};

// Motive says whether a change can be taken back. A gain is taken back if its forecast promised a
// shorter step and the measured step is surely not shorter. The gain then rests for a while
// (effects.h). A necessity is never taken back, whatever its forecast.
enum class Motive : std::uint8_t { gain, necessity };

// Proposal is a change and its reason. Decide sets `reason.outcome`.
struct Proposal {
  PlanChange change;
  Reason reason;
  Motive motive = Motive::gain;
};

// WorkFactors forecasts the work of ranks under other shares. `shares` and the result have one
// entry per rank, as in SetShares. A factor is the new work for one sample, relative to the present
// work. Work changes because policies asked earlier in the round adapt the plan to the shares.
// Empty = no policy adapts.
using WorkFactors = std::function<std::vector<double>(const std::vector<std::uint32_t>& shares)>;

// PolicyInput has the facts for a policy. References are valid during the call only.
struct PolicyInput {
  const JobFacts& job;
  const Config& config;
  const Plan& plan;  // the newest published one
  const StepSignals& signals;
  const StepSummary& summary;
  const Estimates& estimates;  // after this round; before the first one, the restored ones
  const History& history;      // without this round
  const Effects& effects;      // of earlier decisions, this round included
  // The largest number of samples of a step that each rank may have, as set by the policies asked
  // earlier in this round; empty = unlimited.
  std::span<const std::uint64_t> most_samples{};
  WorkFactors work_factors{};  // may be empty
};

struct PolicyOutput {
  std::vector<Proposal> proposals;
  std::vector<Reason> findings;  // findings without a proposal
  PolicyState state;
  // The largest number of samples of a step that each rank may have, for the policies asked later
  // in the round; empty = unlimited. Ignored if the policy is off.
  std::vector<std::uint64_t> most_samples{};
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyKind kind() const = 0;
  // Returns the name of the policy's state and mode, which never changes. A custom policy returns a
  // name of its own.
  virtual std::string_view name() const { return to_string(kind()); }
  // Proposes changes for a round. Linear in the number of ranks. REQUIRES: `state` is fresh or was
  // returned by an earlier call of the same policy, perhaps in an earlier run of the job. The
  // policy treats a state of another world size as fresh.
  virtual PolicyOutput propose(const PolicyInput& input, PolicyState state) const = 0;
  // Proposes changes for the first step. Called once on rank 0 before the first round. `signals`
  // and `summary` of the input are empty; `state` is fresh or restored.
  virtual PolicyOutput at_start(const PolicyInput&, PolicyState state) const {
    return {{}, {}, std::move(state)};
  }
  // Proposes changes that must go into the same plan as the shares of `draft`, such as memory
  // actions that make room for more samples. Called after all policies have proposed, if the draft
  // gives ranks different numbers of samples. Findings are ignored. Not called for policies that
  // are off, or custom.
  virtual PolicyOutput fit(const PolicyInput&, const Plan& draft, PolicyState state) const {
    static_cast<void>(draft);
    return {{}, {}, std::move(state)};
  }
  // Returns the factors of WorkFactors for a draft with other shares, as they will be after this
  // policy has adapted, in one plan or several. Called under the same conditions as fit(). Linear
  // in the number of ranks.
  virtual std::vector<double> work_factors(const PolicyInput&, const Plan& draft,
                                           const PolicyState& state) const {
    static_cast<void>(draft);
    static_cast<void>(state);
    return {};
  }
};

// In every round Decide asks the guard first, then the other policies in this order.
using PolicySet = std::vector<std::shared_ptr<const Policy>>;

}  // namespace cox
