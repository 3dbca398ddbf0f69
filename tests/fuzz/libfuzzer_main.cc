// The program of scripts/fuzz: `fuzz_target TARGET [options of libFuzzer] [folders]`.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const cox::fuzz::Target*& chosen() {
  static const cox::fuzz::Target* target = nullptr;
  return target;
}

}  // namespace

// libFuzzer requires these names.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc > 1) chosen() = cox::fuzz::find_target((*argv)[1]);
  if (chosen() == nullptr) {
    std::fprintf(stderr, "fuzz_target: expected the name of a target first, one of:");
    for (const auto& target : cox::fuzz::targets())
      std::fprintf(stderr, " %.*s", static_cast<int>(target.name.size()), target.name.data());
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  (*argv)[1] = (*argv)[0];
  ++*argv;
  --*argc;
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen()->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
