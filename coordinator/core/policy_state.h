// PolicyState: what a policy remembers between rounds, as a value of the policy's own type. Decide
// keeps one per policy, hands it in and takes the next one back; journals and saves see its bytes.
// Within a job the value is moved in and out and nothing is converted; after a restore the state
// holds bytes, which the first take_or_fresh() decodes.
//
//   PolicyOutput propose(const PolicyInput& input, PolicyState state) const override {
//     auto mine = state.take_or_fresh<GuardState>();
//     ...
//     output.state = PolicyState::of(std::move(mine));
//   }
//
// A value: copies are deep. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "coordinator/core/state_codec.h"

namespace cox {

class PolicyState {
 public:
  PolicyState() = default;  // fresh
  PolicyState(const PolicyState& other)
      : held_(other.held_ ? other.held_->copy() : nullptr), bytes_(other.bytes_) {}
  PolicyState(PolicyState&& other) noexcept = default;
  PolicyState& operator=(PolicyState other) noexcept {
    held_ = std::move(other.held_);
    bytes_ = std::move(other.bytes_);
    return *this;
  }
  ~PolicyState() = default;

  template <State T>
  static PolicyState of(T value) {
    PolicyState state;
    state.held_ = std::make_unique<Held<T>>(std::move(value));
    return state;
  }

  // Of a restored state. Nothing is checked before take_or_fresh(); no bytes are a fresh state.
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
    const std::unique_ptr<Holder> held = std::exchange(held_, nullptr);
    const std::string bytes = std::exchange(bytes_, {});
    if (auto* const typed = dynamic_cast<Held<T>*>(held.get())) return std::move(typed->value);
    if (bytes.empty()) return T{};
    Result<T> decoded = decode_state<T>(bytes);
    return decoded.ok() ? *std::move(decoded) : T{};
  }

  // For journals and saves; empty when fresh.
  std::string bytes() const { return held_ ? held_->bytes() : bytes_; }

  bool is_fresh() const { return !held_ && bytes_.empty(); }

  friend bool operator==(const PolicyState& a, const PolicyState& b) {
    return a.bytes() == b.bytes();
  }

 private:
  struct Holder {
    virtual ~Holder() = default;
    virtual std::unique_ptr<Holder> copy() const = 0;
    virtual std::string bytes() const = 0;
  };

  template <class T>
  struct Held final : Holder {
    explicit Held(T v) : value(std::move(v)) {}
    std::unique_ptr<Holder> copy() const override { return std::make_unique<Held>(value); }
    std::string bytes() const override { return encode_state(value); }
    T value;
  };

  std::unique_ptr<Holder> held_;
  std::string bytes_;  // not decoded yet; empty when held_ is set
};

}  // namespace cox
