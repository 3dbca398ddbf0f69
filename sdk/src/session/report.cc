// cox::report(): the line by which a program reports why it ends.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "coordinator/io/limits.h"
#include "coxswain/error.h"

namespace cox {
namespace {

// Before MPI has started, or with another MPI, only the environment knows the rank.
std::string rank_of_this_process() {
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const char* rank = std::getenv(name);
    if (rank != nullptr && *rank != '\0') return rank;
  }
  return {};
}

// TorchScript wraps an operator's error in a traceback, which ends with the error.
std::string line_of(std::string_view text) {
  constexpr std::string_view kTraceback = "The following operation failed in the TorchScript";
  constexpr std::string_view kCause = "RuntimeError: ";
  const std::size_t cause = text.starts_with(kTraceback) ? text.rfind(kCause) : text.npos;
  return detail::first_line(cause == text.npos ? text : text.substr(cause + kCause.size()));
}

}  // namespace

int report(const std::exception& error) {
  const std::string rank = rank_of_this_process();
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool on_all_ranks = ours != nullptr && ours->scope() == Error::Scope::all_ranks;
  const int exit_code = static_cast<int>(ours == nullptr ? ExitCode::failure : ours->exit_code());
  if (on_all_ranks && !rank.empty() && rank != "0") return exit_code;
  const std::string where = on_all_ranks || rank.empty() ? "" : "rank " + rank + ": ";
  const std::string text =
      ours != nullptr ? ours->status().message() : line_of(error.what()) + io::limit_behind(error);
  std::fputs(("error: " + where + text + "\n").c_str(), stderr);
  return exit_code;
}

}  // namespace cox
