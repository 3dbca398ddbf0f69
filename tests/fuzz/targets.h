// The decoders of bytes from outside, each as a function that takes any bytes. libFuzzer calls them
// with what it makes up (scripts/fuzz), the test fuzz.corpus with the files below corpus/ and small
// changes of them. A find is a crash, a report of a sanitizer, or expect() of something false.
// Functions keep nothing between calls; one thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cox::fuzz {

// Ends the process with the message when `holds` is false, in every build.
void expect(bool holds, const char* message);

// Whether a decoder took the bytes for what it reads.
enum class Taken { no, yes };

struct Target {
  std::string_view name;  // also that of its folder below corpus/
  Taken (*run)(std::string_view bytes);
};

// All targets, in the order of their names.
std::span<const Target> targets();
// Returns null for an unknown name.
const Target* find_target(std::string_view name);

// Checksums stand between made-up bytes and the decoders behind them. These functions put the right
// ones into a copy, so that what is tested is not the checksum.

// A journal with its file header, and checksums of all records.
std::string repaired_journal(std::string_view bytes);
// A control state with its file header.
std::string repaired_control_state(std::string_view bytes);
// The manifest of a save; what the bytes end with counts as the hash when it stands where one does.
std::string repaired_manifest(std::string_view bytes);
// One frame of a mask.
std::string repaired_frame(std::string_view bytes);

// The targets themselves.
Taken fuzz_config(std::string_view bytes);
Taken fuzz_control_state(std::string_view bytes);
Taken fuzz_gzip(std::string_view bytes);
Taken fuzz_http_head(std::string_view bytes);
Taken fuzz_instances(std::string_view bytes);
Taken fuzz_journal(std::string_view bytes);
Taken fuzz_json(std::string_view bytes);
Taken fuzz_kernels(std::string_view bytes);
Taken fuzz_manifest(std::string_view bytes);
Taken fuzz_mask(std::string_view bytes);
Taken fuzz_memory_profile(std::string_view bytes);
Taken fuzz_operators(std::string_view bytes);
Taken fuzz_page(std::string_view bytes);
Taken fuzz_phases(std::string_view bytes);
Taken fuzz_pipeline(std::string_view bytes);
Taken fuzz_plan(std::string_view bytes);
Taken fuzz_query(std::string_view bytes);
Taken fuzz_run(std::string_view bytes);
Taken fuzz_safetensors(std::string_view bytes);
Taken fuzz_signals(std::string_view bytes);
Taken fuzz_steps(std::string_view bytes);
Taken fuzz_trace(std::string_view bytes);

}  // namespace cox::fuzz
