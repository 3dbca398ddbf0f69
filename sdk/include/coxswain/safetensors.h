// Reads and writes safetensors files, the format of Python's `safetensors`. Python opens the files
// written here, and read_safetensors() opens Python's.
//
//   auto file = cox::read_safetensors("model.safetensors");
//   if (!file.ok()) return file.status();
//   cox::Status loaded = cox::load_into(targets, file->tensors);
//
// The reader treats a file as hostile. Nothing in the file is executed, and memory is allocated
// only after the whole header was checked against the file's size. The functions block on the disk,
// do not communicate and may be called from any thread. Returned tensors own their memory, on the
// CPU. Errors: not_found, failed_precondition (permissions), data_loss (names the file, the
// expected and the actual contents), resource_exhausted (memory, disk), invalid_argument (a
// caller's argument).
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace cox {

struct SafetensorsFile {
  std::vector<NamedTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
};

// Reads a file. If no file has the name, reads the parts into which several ranks and Hugging Face
// divide tensors: "model-00001-of-00002.safetensors" and so on for "model.safetensors". A tensor
// that was saved once for two names is returned under both names.
//
// Dtypes: C64, F64 F32 F16 BF16 F8_E4M3 F8_E5M2, I64 I32 I16 I8, U64 U32 U16 U8, BOOL. A complex
// number of two F64 is stored as F64 with a last dimension of 2 and a note in the metadata. Errors:
// - another dtype, or a duplicate name
// - a header above 32 MiB, or of more than 262,144 tensors
// - ranges that overlap, leave gaps or start off their element size
// - a header that is not strict JSON in UTF-8
Result<SafetensorsFile> read_safetensors(const std::filesystem::path& path);

// Replaces `path` in one step: after an error (a full disk, say) the previous file is still there
// and no temporary file is left. The bytes depend only on the arguments' values: tensors are stored
// by falling element size, then by name. Tensors may lie on any device and have any strides.
// REQUIRES: names are unique and UTF-8. Python's transformers expects metadata {"format": "pt"}.
Status write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata = {});

// Copies each tensor of `source` into the target of the same name. Names must match one to one;
// shapes and dtypes must be equal. Otherwise copies nothing and returns invalid_argument; the
// message lists missing, unexpected and different tensors. Targets may lie on any device and may
// require grad; autograd does not record the copy.
Status load_into(std::span<const NamedTensor> targets, std::span<const NamedTensor> source);

}  // namespace cox
