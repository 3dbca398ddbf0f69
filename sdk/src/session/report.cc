#include <cstdio>

#include "coxswain/error.h"
#include "sdk/src/session/world.h"

namespace cox {

int report(const Error& error) {
  const std::string rank = detail::value_of(detail::process_environment(), "PMI_RANK");
  const bool is_first = rank.empty() || rank == "0";
  if (error.scope() == Error::Scope::this_rank || is_first) {
    std::fprintf(stderr, "error: %s\n", error.status().message().c_str());
  }
  return 1;
}

}  // namespace cox
