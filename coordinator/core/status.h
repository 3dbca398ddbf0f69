// The outcome of a call that can fail for reasons outside the program: untrusted bytes, other
// ranks, files, configuration. Core, wire, transport and runtime return a Status or Result; they do
// not throw. A message says what was expected, what was found and what to do. Plain values, no
// shared state.
//
//   Result<BlockProfile> profile = read_block_profile(signal.fragment);
//   if (!profile.ok()) return profile.status();  // value() without this check would abort
//   show(*profile);
#pragma once

#include <cassert>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/text.h"

namespace cox {

enum class StatusCode {
  ok = 0,
  invalid_argument,     // the request can never work
  failed_precondition,  // right request, wrong moment
  not_found,
  data_loss,           // bytes are damaged, truncated or hostile
  resource_exhausted,  // memory, disk, descriptors, a size cap
  unavailable,         // a peer or a device does not answer; a retry may help
  internal,            // a bug of ours, reported instead of hidden
};

// Returns the code's name in the exact spelling of the enumerator, for logs and labels.
constexpr std::string_view to_string(StatusCode code) {
  constexpr std::string_view kNames[] = {"ok",          "invalid_argument", "failed_precondition",
                                         "not_found",   "data_loss",        "resource_exhausted",
                                         "unavailable", "internal"};
  return kNames[static_cast<std::size_t>(code)];
}

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // REQUIRES: code != ok, message not empty.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Returns "data_loss: mask: expected 32 bytes, found 7", or "ok".
  std::string text() const { return ok() ? "ok" : concat(code_, ": ", message_); }
  // Returns the same error with `context` and ": " before its message. An ok status stays ok.
  Status with_context(std::string_view context) const {
    return ok() ? *this : Status(code_, concat(context, ": ", message_));
  }

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

inline Status ok_status() {
  return {};
}
// Each function makes an error whose message is the concatenated parts (concat() of text.h):
//
//   return data_loss("mask: expected ", kSize, " bytes, found ", bytes.size());
Status invalid_argument(const auto&... parts) {
  return {StatusCode::invalid_argument, concat(parts...)};
}
Status failed_precondition(const auto&... parts) {
  return {StatusCode::failed_precondition, concat(parts...)};
}
Status not_found(const auto&... parts) {
  return {StatusCode::not_found, concat(parts...)};
}
Status data_loss(const auto&... parts) {
  return {StatusCode::data_loss, concat(parts...)};
}
Status resource_exhausted(const auto&... parts) {
  return {StatusCode::resource_exhausted, concat(parts...)};
}
Status unavailable(const auto&... parts) {
  return {StatusCode::unavailable, concat(parts...)};
}
Status internal_error(const auto&... parts) {
  return {StatusCode::internal, concat(parts...)};
}

// Result is either a value or the Status that says why there is none. With a value status() is ok.
// REQUIRES for value(), * and ->: ok().
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
