// Formats and reads host.jsonl of a rank's folder (docs/run-directory.md): one line for each
// HostSample. Parses lines as step_lines.h parses steps.jsonl: numbers by name, damaged lines
// skipped.
//
//   HostSample -> host_line() -> host.jsonl -> read_host_samples() -> HostTrack
//
// Pure, except that functions with a path block on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/host_sample.h"
#include "coordinator/core/status.h"
#include "metrics/records/host_track.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/run_record.h"

namespace cox::io {

inline constexpr const char* kHostFileName = "host.jsonl";
inline constexpr std::size_t kMostGpus = 16;  // GPUs of a node that a line reports

// Returns the line of a sample with its newline.
std::string host_line(const HostSample& sample);

// Parses a line. Numbers that are absent or impossible become kUnknown.
HostSample host_sample_of(const diagnosis::StepLine& line);

// Returns whether thinning keeps a line. A line stays if its moment is the sample nearest to a
// multiple of `period_seconds`, or a process begins with it. All ranks keep the same moments.
bool stays(std::string_view line, double period_seconds);

// Thins out the file completely or leaves the file as it was. Buffers one piece of the file.
Status thin_out(const std::filesystem::path& file, double period_seconds);

// Passes the samples of a file in file order. Errors: those of InputFile; not_found if the file is
// missing.
Status each_host_sample(const std::filesystem::path& file,
                        const std::function<void(const HostSample&)>& take);

// Reads the samples of a rank. Reads a coarser grid if there are more than `most`. REQUIRES: most
// >= 2.
Result<diagnosis::HostTrack> read_host_samples(const std::filesystem::path& file, std::int32_t rank,
                                               std::size_t most);

// Returns the tracks of the ranks whose folders have a host.jsonl; empty if none has. Keeps at most
// kMaxHostSamples of all ranks together. Adds a sentence to `gaps` for each unreadable file, and
// one if only some of the ranks have a track.
inline constexpr std::size_t kMaxHostSamples = std::size_t{1} << 21;
std::vector<diagnosis::HostTrack> read_host_tracks(const std::vector<RankFolder>& folders,
                                                   std::vector<std::string>& gaps);

}  // namespace cox::io
