#include "tests/fuzz/targets.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

namespace cox::fuzz {
namespace {

constexpr std::array<Target, 22> kTargets = {{{"config", fuzz_config},
                                              {"control_state", fuzz_control_state},
                                              {"gzip", fuzz_gzip},
                                              {"http_head", fuzz_http_head},
                                              {"instances", fuzz_instances},
                                              {"journal", fuzz_journal},
                                              {"json", fuzz_json},
                                              {"kernels", fuzz_kernels},
                                              {"manifest", fuzz_manifest},
                                              {"mask", fuzz_mask},
                                              {"memory_profile", fuzz_memory_profile},
                                              {"operators", fuzz_operators},
                                              {"page", fuzz_page},
                                              {"phases", fuzz_phases},
                                              {"pipeline", fuzz_pipeline},
                                              {"plan", fuzz_plan},
                                              {"query", fuzz_query},
                                              {"run", fuzz_run},
                                              {"safetensors", fuzz_safetensors},
                                              {"signals", fuzz_signals},
                                              {"steps", fuzz_steps},
                                              {"trace", fuzz_trace}}};

}  // namespace

void expect(bool holds, const char* message) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: expected %s\n", message);
  std::abort();
}

std::span<const Target> targets() {
  return kTargets;
}

const Target* find_target(std::string_view name) {
  const auto found = std::ranges::find(kTargets, name, &Target::name);
  return found == kTargets.end() ? nullptr : &*found;
}

}  // namespace cox::fuzz
