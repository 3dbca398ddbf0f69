#include <cstdio>
#include <exception>
#include <string>

#include "coxswain/error.h"
#include "sdk/src/blocks/first_line.h"
#include "sdk/src/session/world.h"

namespace cox {
namespace {

// Before MPI has started (or when it is another one) only the environment knows the rank.
std::string rank_of_this_process() {
  const auto environment = detail::process_environment();
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    const std::string rank = detail::value_of(environment, name);
    if (!rank.empty()) return rank;
  }
  return {};
}

}  // namespace

int report(const std::exception& error) {
  const std::string rank = rank_of_this_process();
  const auto* ours = dynamic_cast<const Error*>(&error);
  const bool on_all_ranks = ours != nullptr && ours->scope() == Error::Scope::all_ranks;
  if (on_all_ranks && !rank.empty() && rank != "0") return 1;
  const std::string where = on_all_ranks || rank.empty() ? "" : "rank " + rank + ": ";
  const std::string text =
      ours != nullptr ? ours->status().message() : detail::first_line(error.what());
  std::fprintf(stderr, "error: %s%s\n", where.c_str(), text.c_str());
  return 1;
}

}  // namespace cox
