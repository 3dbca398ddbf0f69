#include "coordinator/core/status.h"

namespace cox {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid_argument";
    case StatusCode::failed_precondition:
      return "failed_precondition";
    case StatusCode::not_found:
      return "not_found";
    case StatusCode::data_loss:
      return "data_loss";
    case StatusCode::resource_exhausted:
      return "resource_exhausted";
    case StatusCode::unavailable:
      return "unavailable";
    case StatusCode::internal:
      return "internal";
  }
  return "unknown";
}

std::string Status::text() const {
  if (ok()) return "ok";
  return std::string(to_string(code_)) + ": " + message_;
}

Status Status::with_context(const std::string& context) const {
  if (ok()) return *this;
  return Status(code_, context + ": " + message_);
}

}  // namespace cox
