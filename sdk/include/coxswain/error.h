// Error is the one exception type of the SDK. Constructors throw an Error if their work is
// impossible: a file is missing, an option is out of range. Other calls throw an Error for a
// mistake of the caller. Functions that read or write files return Status or Result instead. The
// step path never throws because of the control plane.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/status.h"

namespace cox {

// The exit codes of a program that ends by report(). See docs/endings.md.
enum class ExitCode : int {
  failure = 1,
  hopeless = 74,  // guard.nonfinite_limit steps in a row were not finite
  waited = 75,    // a rank kept the others waiting for longer than control.wait_seconds
};

class Error : public std::runtime_error {
 public:
  // Scope names the ranks that throw an error: this rank alone, or all ranks with the same text.
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

// Writes one line "error: ..." to stderr and returns the exit code for main(): the error's code, or
// 1 for another exception. If all ranks fail together the line appears once in the job; otherwise
// the line names the rank. An exception that is no Error is reported by its first line.
//
// Call report() in a handler outside the scope of session and trainer, as in `int main() try {}
// catch`. Session and trainer tell the other ranks while the exception passes. With a handler
// inside, session and trainer would later wait for the other ranks.
int report(const std::exception& error);

namespace detail {

// Cuts the backtrace off the text of one of torch's exceptions.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Throws the error unless `status` is ok.
inline void require(const Status& status, Error::Scope scope = Error::Scope::this_rank) {
  if (!status.ok()) throw Error(status, scope);
}
// Like above, with `context` put before the message.
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
