// The outcome of a call that can fail for reasons outside the program: bytes from elsewhere, other
// ranks, files, configuration. Core, wire, transport and runtime return these; they do not throw.
//
//   Result<Plan> plan = wire::decode_plan(bytes);
//   if (!plan.ok()) return plan.status();   // not: plan.value() without the check, which aborts
//   apply(*plan);
//
// A message says what was expected, what was found and what to do. Plain values, no shared state.
#pragma once

#include <cassert>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace cox {

enum class StatusCode {
  ok = 0,
  invalid_argument,     // the caller asked for something that can never work
  failed_precondition,  // right request, wrong moment
  not_found,
  data_loss,           // bytes are damaged, truncated or hostile
  resource_exhausted,  // memory, disk, descriptors, a size cap
  unavailable,         // a peer or a device does not answer; trying again may help
  internal,            // a bug of ours, reported instead of hidden
};

// The code's name in the exact spelling of the enumerator, for logs and labels.
const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // Requires: code != ok, message not empty.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "data_loss: mask: expected 32 bytes, found 7", or "ok".
  std::string text() const;
  // The same error with `context` and ": " put before its message. An ok status stays ok.
  Status with_context(const std::string& context) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

inline Status ok_status() {
  return {};
}
inline Status invalid_argument(std::string m) {
  return {StatusCode::invalid_argument, std::move(m)};
}
inline Status failed_precondition(std::string m) {
  return {StatusCode::failed_precondition, std::move(m)};
}
inline Status not_found(std::string m) {
  return {StatusCode::not_found, std::move(m)};
}
inline Status data_loss(std::string m) {
  return {StatusCode::data_loss, std::move(m)};
}
inline Status resource_exhausted(std::string m) {
  return {StatusCode::resource_exhausted, std::move(m)};
}
inline Status unavailable(std::string m) {
  return {StatusCode::unavailable, std::move(m)};
}
inline Status internal_error(std::string m) {
  return {StatusCode::internal, std::move(m)};
}

// Either a value or the Status that says why there is none. Requires for value(), * and ->: ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    if (!value_) std::abort();
    return *value_;
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace cox
