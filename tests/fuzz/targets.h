// The decoders of outside bytes, each as a function of any bytes. libFuzzer calls them with made-up
// bytes (scripts/fuzz); the test fuzz.corpus with the files below corpus/ and small changes of
// these. A find is a crash, a sanitizer report, or expect() of a false value. Functions keep no
// state between calls; one thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cox::fuzz {

// Ends the process with the message if `holds` is false, in every build.
void expect(bool holds, const char* message);

// Whether a decoder accepted the bytes.
enum class Taken { no, yes };

struct Target {
  std::string_view name;  // also the name of the target's folder below corpus/
  Taken (*run)(std::string_view bytes);
};

// Returns all targets, in the order of their names.
std::span<const Target> targets();
// Returns null for an unknown name.
const Target* find_target(std::string_view name);

// Put the right checksums into a copy of the bytes. Otherwise the checksums would shield the
// decoders behind them from made-up bytes.

// Repairs the file header and the checksums of all records of a journal.
std::string repaired_journal(std::string_view bytes);
// Repairs a control state with its file header.
std::string repaired_control_state(std::string_view bytes);
// Repairs the manifest of a save. Trailing bytes in place of a hash count as the hash.
std::string repaired_manifest(std::string_view bytes);
// Repairs one frame of a mask.
std::string repaired_frame(std::string_view bytes);

// The targets.
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
