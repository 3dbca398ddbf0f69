// Error is the one exception type of the SDK. Constructors that cannot do their work throw it (a
// file that is missing, an option out of range), and so does a user's own error that surfaces in a
// call of theirs. Functions that read or write files return Status or Result instead. The step path
// never throws because of the control plane.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/status.h"

namespace cox {

// The exit codes of a program that ends by report(): docs/endings.md.
enum class ExitCode : int {
  failure = 1,
  hopeless = 74,  // guard.nonfinite_limit steps in a row were not finite
  waited = 75,    // a rank kept the others waiting for longer than control.wait_seconds
};

class Error : public std::runtime_error {
 public:
  // Scope says which ranks throw it: this one on its own, or all of them with the same text.
  enum class Scope { this_rank, all_ranks };

  // REQUIRES: !status.ok(). what() is the status as one line, code first.
  explicit Error(Status status, Scope scope = Scope::this_rank,
                 ExitCode exit_code = ExitCode::failure)
      : std::runtime_error(status.text()),
        status_(std::move(status)),
        scope_(scope),
        exit_code_(exit_code) {}

  const Status& status() const { return status_; }
  Scope scope() const { return scope_; }
  ExitCode exit_code() const { return exit_code_; }

 private:
  Status status_;
  Scope scope_;
  ExitCode exit_code_;
};

// Writes one line "error: ..." to stderr and returns the exit code that main() should end with: the
// error's, 1 for another exception. The line appears once a job where all ranks fail together, else
// it names the rank; of an exception that is no Error it has the first line. Call it in a handler
// outside the scope of session and trainer, as in `int main() try {} catch`: while the exception
// passes them they tell the other ranks, and after a handler inside they would wait for the others.
int report(const std::exception& error);

namespace detail {

// Cuts the backtrace off the text of one of torch's exceptions.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Throws the error, if it is one.
inline void require(const Status& status, Error::Scope scope = Error::Scope::this_rank) {
  if (!status.ok()) throw Error(status, scope);
}
// The same, with `context` put before the message.
inline void require(const Status& status, const char* context) {
  if (!status.ok()) throw Error(status.with_context(context));
}
// Returns the value, or throws the error.
template <class T>
T require(Result<T> result, Error::Scope scope = Error::Scope::this_rank) {
  if (!result.ok()) throw Error(result.status(), scope);
  return *std::move(result);
}

}  // namespace detail
}  // namespace cox
