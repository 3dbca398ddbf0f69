// The one exception type of the SDK. Constructors that cannot do their work throw it (a file that
// is missing, an option out of range), and so does a user's own error that surfaces in a call of
// theirs. Functions that read or write files return Status or Result instead. The step path never
// throws because of the control plane.
#pragma once

#include <stdexcept>
#include <utility>

#include "coordinator/core/status.h"

namespace cox {

class Error : public std::runtime_error {
 public:
  // Requires: !status.ok(). what() is the status as one line, code first.
  explicit Error(Status status) : std::runtime_error(status.text()), status_(std::move(status)) {}

  const Status& status() const { return status_; }

 private:
  Status status_;
};

}  // namespace cox
