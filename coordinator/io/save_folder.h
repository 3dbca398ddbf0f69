// The files of a save of training state: a folder with manifest.json, written last, which lists the
// required content of the other files. A save can thus be checked without knowing its content: by
// the SDK before a resume, and by `cox checkpoint verify`. Format: docs/checkpoints.md. Functions
// of values, and functions that block on the disk; no state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox::io {

inline constexpr std::string_view kManifestName = "manifest.json";
// Version 1, with one file of each kind, is still readable.
inline constexpr std::int64_t kManifestVersion = 2;

struct SaveFile {
  std::string name;  // within the save's folder
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // content_hash() of all bytes
};

// SavePiece is a run of a tensor's elements, in the order of a dense tensor, and the place of its
// bytes. Today each tensor is one piece, in the file of the rank that wrote it. A save of shards
// has several.
struct SavePiece {
  std::string tensor;
  std::string dtype;                // in the spelling of safetensors: "F32"
  std::vector<std::int64_t> shape;  // shape of the whole tensor
  std::uint64_t first = 0;          // first element
  std::uint64_t count = 0;          // number of elements
  std::string file{};
  std::uint64_t offset = 0;  // bytes from the start of the file
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // content_hash() of the piece's bytes
};

// Returns the name of a file of tensors when only one rank writes: "model.safetensors" for
// "model-00001-of-00002.safetensors". Returns other names unchanged.
std::string whole_name(std::string_view file);

struct SafetensorsEntry;
// Returns the piece of a whole tensor of a safetensors file, without a hash. `data_offset` is the
// start of the data in the file.
SavePiece piece_of(const SafetensorsEntry& entry, std::string file, std::uint64_t data_offset);

struct SaveManifest {
  std::string id;  // new for each save; tells two saves of one step apart
  std::uint64_t step = 0;
  std::uint32_t incarnation = 0;  // number of the job's start
  std::int32_t world_size = 0;    // ranks of the writing job
  std::string writer;             // for people: run, host and process of rank 0
  UnixTime written{};             // by rank 0's clock
  std::vector<SaveFile> files{};
  std::vector<SavePiece> pieces{};
};

// Returns a name for a new save: 32 hexadecimal digits. `high` and `low` are entropy, for example
// from std::random_device.
std::string save_id(std::uint64_t high, std::uint64_t low);

// Returns the manifest's text. The text ends with a hash of itself, so damage is detected.
std::string to_json(const SaveManifest& manifest);
// Parses a manifest. Returns data_loss if the text is damaged or impossible: a file's name with a
// folder in it, a piece beyond its file or tensor, two pieces with a common byte. Returns
// failed_precondition for an unknown version.
Result<SaveManifest> parse_manifest(std::string_view text);

// Returns "step-000000000120" for step 120.
std::string save_name(std::uint64_t step);
// Returns the step in a save's folder name. Returns nothing for other folders, for example a user's
// own "step-best".
std::optional<std::uint64_t> step_of_save(const std::filesystem::path& folder);
// Returns the saves of a directory, oldest step first. Returns none if the directory does not
// exist.
std::vector<std::filesystem::path> saves_in(const std::filesystem::path& directory);

// Fills step, files and pieces from the files in the folder. For a save that was changed by hand,
// or of a version without manifests. Returns data_loss if a file of tensors is unreadable or of
// another step, and invalid_argument if the folder does not have a save's name.
Status describe_files(const std::filesystem::path& save, SaveManifest& manifest);

// Writes the manifest into the save's folder, after checking that its text can be parsed again.
// Returns data_loss if the check fails. Other errors: those of replace_file().
Status write_manifest(const std::filesystem::path& save, const SaveManifest& manifest,
                      std::string_view name = kManifestName);

// Reads the manifest alone. Returns data_loss when there is none: a damaged save and a save of
// version 0.2 or earlier both look this way.
Result<SaveManifest> read_manifest(const std::filesystem::path& save,
                                   std::string_view name = kManifestName);

// Returns "part-00002-of-00004.json" for rank 1 of four: the manifest of the rank's files, until
// the save is complete.
std::string part_manifest_name(std::size_t rank, std::size_t ranks);

enum class VerifyDepth {
  files,  // all files are complete: enough for a resume
  pieces  // each piece matches its hash in the manifest, too
};
// Reads all of a save and compares it with its manifest:
//
// - Every listed file exists, is regular, and has the listed size and content.
// - Files of tensors contain exactly the listed tensors.
// - All files agree with the step in the folder's name.
//
// Returns data_loss with the first file that fails, or InputFile's error for a file that cannot be
// read. Ignores files that the manifest does not list.
Result<SaveManifest> verify_save(const std::filesystem::path& save, VerifyDepth depth);
// Does the same beside a job that may remove or replace the save meanwhile. Returns not_found when
// the save is gone. Starts again when another save took the name.
Result<SaveManifest> verify_listed_save(const std::filesystem::path& save, VerifyDepth depth);

// Compares the tensors of a file with the manifest's list for the file, except hashes. Returns
// data_loss with the file's name.
Status check_tensors(const std::filesystem::path& path, std::vector<SavePiece> found,
                     const SaveManifest& manifest);

// Returns the id in the save's manifest, or an empty text if there is no readable manifest.
std::string id_of_save(const std::filesystem::path& save);

}  // namespace cox::io
