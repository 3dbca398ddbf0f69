// The seam for policies. A policy is a pure function: from what is known about a round and the
// state it kept, to proposals with reasons and its next state. It never writes the plan, reads no
// clock and draws no randomness, so the journal can run it again. Decide owns the states and calls
// policies one after another on the coordinator's thread.
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

// PolicyState holds what a policy remembers between rounds, as a value of the policy's own type.
// Decide keeps one per policy, hands it in and takes the next one back; journals and saves see its
// bytes. Within a job the value is moved in and out and nothing is converted; after a restore the
// state holds bytes, which the first take_or_fresh() decodes.
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

  // Makes a restored state. Nothing is checked before take_or_fresh(); no bytes are a fresh state.
  static PolicyState from_bytes(std::string bytes) {
    PolicyState state;
    state.bytes_ = std::move(bytes);
    return state;
  }

  // Moves the value out, which leaves a fresh state. Returns T{} when the state is fresh, of
  // another type or version, or damaged. The caller checks what only it can know: the size of the
  // world, ranges of values.
  template <State T>
  T take_or_fresh() {
    std::any held = std::exchange(held_, {});
    const std::string bytes = std::exchange(bytes_, {});
    if (T* const value = std::any_cast<T>(&held)) return std::move(*value);
    if (bytes.empty()) return T{};
    Result<T> decoded = decode_state<T>(bytes);
    return decoded.ok() ? *std::move(decoded) : T{};
  }

  // Returns the bytes for journals and saves; none when the state is fresh.
  std::string bytes() const { return held_.has_value() ? encode_(held_) : bytes_; }

  // Adds the message that the bytes are of to the schema. Returns its name; no name where the type
  // is not known, because the state is fresh or restored.
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
  std::string bytes_;  // not decoded yet; empty when a value is held
};

template <>
struct BytesOf<PolicyState> {
  static std::string of(const PolicyState& state) { return state.bytes(); }
  static bool set(PolicyState& state, std::string_view bytes) {
    state = PolicyState::from_bytes(std::string(bytes));
    return true;
  }
};

// Motive says whether a change may be measured by the time that it promises. A gain whose forecast
// promises a shorter step is taken back when it surely did not bring one, and rests for a while
// (effects.h); a necessity never is, whatever its forecast.
enum class Motive : std::uint8_t { gain, necessity };

// Proposal is one change and the reason for it. Decide sets `reason.outcome`.
struct Proposal {
  PlanChange change;
  Reason reason;
  Motive motive = Motive::gain;
};

// PolicyInput has the facts that a policy may look at. References are valid during the call only.
// Foretells for shares that ranks might get, one a rank as in SetShares, by which factor the work
// of each rank for a sample would differ from now, because the policies that were asked before
// follow with lighter or heavier plans. Empty = they follow with nothing.
using WorkFactors = std::function<std::vector<double>(const std::vector<std::uint32_t>& shares)>;

struct PolicyInput {
  const JobFacts& job;
  const Config& config;
  const Plan& plan;  // the newest published one
  const StepSignals& signals;
  const StepSummary& summary;
  const Estimates& estimates;  // after this round; before the first one, what was restored
  const History& history;      // without this round
  const Effects& effects;      // of earlier decisions, with this round measured
  // The most samples of a step that each rank may have, by the policies that were asked before in
  // this round; empty = nothing limits them.
  std::span<const std::uint64_t> most_samples{};
  WorkFactors work_factors{};  // may be empty
};

struct PolicyOutput {
  std::vector<Proposal> proposals;
  std::vector<Reason> findings;  // what it saw without proposing anything
  PolicyState state;
  // The most samples of a step that each rank may have, for the policies that are asked later;
  // empty = nothing limits them. Counts where the policy is on.
  std::vector<std::uint64_t> most_samples{};
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyKind kind() const = 0;
  // Returns the name under which its state is saved and its mode is set. It never changes. A custom
  // policy overrides it with a name of its own.
  virtual std::string_view name() const { return to_string(kind()); }
  // REQUIRES: `state` is fresh or was returned by an earlier call of the same policy, perhaps in an
  // earlier run of the job: a state of another world size counts as fresh. Linear in the number of
  // ranks.
  virtual PolicyOutput propose(const PolicyInput& input, PolicyState state) const = 0;
  // Called once on rank 0 before the first round. Proposes changes for the first step. `signals`
  // and `summary` of the input are empty; `state` is fresh or restored.
  virtual PolicyOutput at_start(const PolicyInput&, PolicyState state) const {
    return {{}, {}, std::move(state)};
  }
  // Asked after all policies have proposed, in a round whose draft gives ranks other numbers of
  // samples than the newest plan: proposes what else must change in the same plan, so that no share
  // is granted without the actions that hold it. Findings are ignored. Only asked where the policy
  // is on; custom policies are not.
  virtual PolicyOutput fit(const PolicyInput&, const Plan& draft, PolicyState state) const {
    static_cast<void>(draft);
    return {{}, {}, std::move(state)};
  }
  // Returns for a draft with other shares what WorkFactors foretell, once this policy has followed
  // it in one plan or several. Asked as fit() is. Linear in the number of ranks.
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
