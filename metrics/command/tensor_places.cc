#include "metrics/command/tensor_places.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "coordinator/io/file.h"
#include "coordinator/io/save_folder.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

Status add_file(const fs::path& path, TensorGroups& groups) {
  const auto file = io::InputFile::open(path);
  if (!file.ok()) return file.status();
  const auto opened = io::read_safetensors_header(*file);
  if (!opened.ok()) return opened.status().with_context(path.string());
  TensorGroup& group = groups[io::whole_name(path.filename().string())];
  if (group.metadata.empty()) group.metadata = opened->header.metadata;
  for (const io::SafetensorsEntry& entry : opened->header.entries) {
    const TensorPlace place{path, entry, opened->data_offset + entry.begin};
    if (!group.tensors.emplace(entry.name, place).second)
      return data_loss(path.string(), ": expected tensors that no other file has, found \"",
                       entry.name, "\"");
  }
  return ok_status();
}

}  // namespace

Result<TensorGroups> tensors_in(const fs::path& path) {
  std::error_code ignored;
  std::vector<fs::path> files;
  if (!fs::is_directory(path, ignored)) files.push_back(path);
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  TensorGroups groups;
  for (const fs::path& file : files) {
    if (Status added = add_file(file, groups); !added.ok()) return added;
  }
  if (!groups.empty()) return groups;
  return not_found(path.string(),
                   ": expected a save or a safetensors file, found no tensors in it");
}

}  // namespace cox::tools
