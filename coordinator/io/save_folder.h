// What a save of training state is on the disk: a folder of files, and manifest.json, written last,
// which says what has to be in them. So a save can be checked without knowing what is inside: by
// the SDK before it resumes, by `cox checkpoint verify` afterwards. The format is on
// docs/checkpoints.md. Functions of values, and functions that block on the disk; no state.
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
// Version 1, with one file of each kind, is read as well.
inline constexpr std::int64_t kManifestVersion = 2;

struct SaveFile {
  std::string name;  // within the save's folder
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // content_hash() of all bytes
};

// A piece is a run of a tensor's elements, in the order of a dense tensor, and where its bytes lie.
// Today each tensor is one piece, in the file of the rank that wrote it; a save of shards has
// several.
struct SavePiece {
  std::string tensor;
  std::string dtype;                // as safetensors spells it: "F32"
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::uint64_t first = 0;          // element
  std::uint64_t count = 0;          // elements
  std::string file{};
  std::uint64_t offset = 0;  // bytes from the start of the file
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // content_hash() of these bytes
};

// Returns the name that a file of tensors has where one rank writes: "model.safetensors" for
// "model-00001-of-00002.safetensors". Other names stay as they are.
std::string whole_name(std::string_view file);

struct SafetensorsEntry;
// The piece that a whole tensor of a safetensors file is, without its hash. `data_offset`: where
// the data begins in the file.
SavePiece piece_of(const SafetensorsEntry& entry, std::string file, std::uint64_t data_offset);

struct SaveManifest {
  std::string id;  // made anew for each save, so that two saves of one step can be told apart
  std::uint64_t step = 0;
  std::uint32_t incarnation = 0;  // of the job: how often it was started
  std::int32_t world_size = 0;    // ranks of the job that wrote it
  std::string writer;             // for people: run, host and process of rank 0
  UnixTime written{};             // by rank 0's clock
  std::vector<SaveFile> files{};
  std::vector<SavePiece> pieces{};
};

// A name that no other save has: 32 hexadecimal digits of `entropy`, as std::random_device gives
// it, for one.
std::string save_id(std::uint64_t high, std::uint64_t low);

// The text ends with a hash of itself, so that no damage to it goes unnoticed.
std::string to_json(const SaveManifest& manifest);
// data_loss where the text is damaged or says what cannot be (a file's name with a folder in it, a
// piece beyond its file or tensor, two pieces of one byte); failed_precondition for a version that
// is not known here.
Result<SaveManifest> parse_manifest(std::string_view text);

// "step-000000000120" for step 120.
std::string save_name(std::uint64_t step);
// Nothing for a folder that is not called as a save is: "step-best" is somebody's own.
std::optional<std::uint64_t> step_of_save(const std::filesystem::path& folder);
// The saves of a directory, oldest step first. Empty where there is no such directory.
std::vector<std::filesystem::path> saves_in(const std::filesystem::path& directory);

// Fills step, files and pieces from what lies in the folder, for a save that was changed by hand or
// is of a version without manifests. data_loss where a file of tensors cannot be read or is of
// another step; invalid_argument when the folder is not called as a save is.
Status describe_files(const std::filesystem::path& save, SaveManifest& manifest);

// Writes the manifest of the save that lies in the folder, once it is sure that the text can be
// read again. data_loss where that fails; the errors of replace_file().
Status write_manifest(const std::filesystem::path& save, const SaveManifest& manifest,
                      std::string_view name = kManifestName);

// Reads the manifest alone. data_loss when there is none, for that is how a damaged save and one of
// version 0.2 or earlier look.
Result<SaveManifest> read_manifest(const std::filesystem::path& save,
                                   std::string_view name = kManifestName);

// "part-00002-of-00004.json", the manifest of what rank 1 of four wrote: there until the
// save is whole.
std::string part_manifest_name(std::size_t rank, std::size_t ranks);

enum class VerifyDepth {
  files,  // what a resume needs: all files, whole
  pieces  // that each piece has the hash that the manifest says, too
};
// Reads all of a save and compares it with its manifest: every file is there, regular, of the right
// size and content, the files of tensors have those that the manifest lists, and all say the step
// of the folder's name. data_loss naming the first file that is not so; the codes of InputFile for
// one that cannot be read; files that the manifest does not name are not looked at.
Result<SaveManifest> verify_save(const std::filesystem::path& save, VerifyDepth depth);
// Does the same beside a job that may remove or replace the save meanwhile: not_found when the save
// is gone, and another look where another save took its name.
Result<SaveManifest> verify_listed_save(const std::filesystem::path& save, VerifyDepth depth);

// Compares the tensors of a file with those that the manifest lists for it; hashes are not looked
// at. data_loss naming the file.
Status check_tensors(const std::filesystem::path& path, std::vector<SavePiece> found,
                     const SaveManifest& manifest);

// Returns the id that the save's manifest has; empty where there is none to read.
std::string id_of_save(const std::filesystem::path& save);

}  // namespace cox::io
