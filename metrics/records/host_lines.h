// host.jsonl of a rank's folder (docs/run-directory.md): a line for each HostSample, and what a
// reader keeps of them. Lines are read as those of steps.jsonl are (step_lines.h): numbers by name,
// and what is damaged is passed over.
//
//   HostSample -> host_line() -> host.jsonl -> read_host_samples() -> HostTrack
//
// Pure, but for the functions that take a path, which block on the disk.
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
inline constexpr std::size_t kMostGpus = 16;  // of a node that are told

// One line with its newline.
std::string host_line(const HostSample& sample);

// What a line says; numbers that cannot be are kUnknown.
HostSample host_sample_of(const diagnosis::StepLine& line);

// Whether a line stays when a file is thinned out: where its moment is, to the nearest, a multiple
// of `period_seconds`, or a process begins with it. All ranks keep the same moments.
bool stays(std::string_view line, double period_seconds);

// Thins the file out, as a whole or not at all. Holds a piece of it.
Status thin_out(const std::filesystem::path& file, double period_seconds);

// Passes the samples of a file in its order. Errors: those of InputFile; not_found where there is
// none.
Status each_host_sample(const std::filesystem::path& file,
                        const std::function<void(const HostSample&)>& take);

// Reads the samples of a rank: of more than `most`, those of a coarser
// grid. REQUIRES: most >= 2.
Result<diagnosis::HostTrack> read_host_samples(const std::filesystem::path& file, std::int32_t rank,
                                               std::size_t most);

// Returns the tracks of the ranks whose folders have a host.jsonl; empty where none has. Keeps at
// most kMaxHostSamples of all ranks together. Adds to `gaps` a sentence for each file that it
// cannot read, and one when only some of the ranks have a track.
inline constexpr std::size_t kMaxHostSamples = std::size_t{1} << 21;
std::vector<diagnosis::HostTrack> read_host_tracks(const std::vector<RankFolder>& folders,
                                                   std::vector<std::string>& gaps);

}  // namespace cox::io
