// Kernels compiled at run time, as far as a machine without a device can test them. Kernels compile
// for every supported kind of device, and every failure has a reason.
#include "sdk/src/device/cuda_program.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "sdk/src/precision/fp8_kernels.h"

#include <doctest/doctest.h>

using cox::Result;
using cox::StatusCode;
using cox::detail::compile_for;
using cox::detail::CudaSource;
using cox::detail::fp8_kernel_source;

namespace {

// Returns whether a compiler is available. Prints the reason if not.
bool can_compile() {
  const auto tried = compile_for(90, {{"none.cu", ""}, {}, {}});
  if (tried.ok() || tried.status().code() != StatusCode::not_found) return true;
  MESSAGE("skipped: ", tried.status().text());
  return false;
}

bool has(const std::string& code, const std::string& name) {
  return code.find(name) != std::string::npos;
}

}  // namespace

TEST_CASE("the kernels that quantise compile for each kind of device and type of value") {
  if (!can_compile()) return;
  struct Case {
    int capability;
    at::ScalarType type;
  };
  for (const auto& [capability, type] :
       {Case{89, at::kFloat}, Case{90, at::kBFloat16}, Case{100, at::kHalf}}) {
    CAPTURE(capability);
    const Result<std::string> code = compile_for(capability, fp8_kernel_source(type));
    REQUIRE_MESSAGE(code.ok(), code.status().text());
    for (const char* name : {"cox_fp8_amax", "cox_fp8_codes_e4m3", "cox_fp8_codes_e5m2",
                             "cox_fp8_both_e4m3", "cox_fp8_both_e5m2"}) {
      CHECK(has(*code, name));
    }
  }
}

TEST_CASE("what does not compile is told in the compiler's words, with the place") {
  if (!can_compile()) return;
  const Result<std::string> code =
      compile_for(90, {{"wrong.cu", "#include \"a.h\"\n"}, {{"a.h", "int wrong(\n"}}, {}});
  REQUIRE_FALSE(code.ok());
  CHECK(code.status().code() == StatusCode::invalid_argument);
  CHECK(has(code.status().text(), "a.h(1): error"));
  CHECK_FALSE(compile_for(12, {{"none.cu", ""}, {}, {}}).ok());
}

TEST_CASE("definitions reach the source") {
  if (!can_compile()) return;
  const std::string text = "extern \"C\" __global__ void NAME(int* p) { *p = 1; }";
  const Result<std::string> code = compile_for(90, {{"a.cu", text}, {}, {"NAME=one_of_ours"}});
  REQUIRE(code.ok());
  CHECK(has(*code, "one_of_ours"));
}
