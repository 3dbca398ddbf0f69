#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "coxswain/safetensors.h"
#include "sdk/src/checkpoint/input_file.h"
#include "sdk/src/checkpoint/safetensors_header.h"
#include "sdk/src/checkpoint/tensor_dtype.h"

namespace cox {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little endian");

struct OpenedFile {
  detail::SafetensorsHeader header;
  std::uint64_t data_offset = 0;
};

Result<OpenedFile> read_header(const detail::InputFile& file) {
  std::uint64_t header_bytes = 0;
  if (file.size_bytes() >= sizeof header_bytes) {
    if (Status status = file.read_at(0, &header_bytes, sizeof header_bytes); !status.ok()) {
      return status;
    }
  }
  Status length = detail::check_header_length(header_bytes, file.size_bytes());
  if (!length.ok()) return length;
  std::string json(header_bytes, '\0');
  Status read = file.read_at(sizeof header_bytes, json.data(), header_bytes);
  if (!read.ok()) return read;
  const std::uint64_t data_offset = sizeof header_bytes + header_bytes;
  Result<detail::SafetensorsHeader> header =
      detail::parse_header(json, file.size_bytes() - data_offset);
  if (!header.ok()) return header.status();
  return OpenedFile{*std::move(header), data_offset};
}

Result<at::Tensor> empty_tensor(const detail::TensorEntry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions(*detail::dtype_from_name(entry.dtype)));
  } catch (const std::exception&) {
    return resource_exhausted("tensor \"" + entry.name + "\": no memory for " +
                              std::to_string(entry.end - entry.begin) + " bytes");
  }
}

// A bool with another bit pattern than 0 or 1 is undefined behaviour wherever it is used.
Status check_bools(const detail::TensorEntry& entry, const at::Tensor& tensor) {
  if (entry.dtype != "BOOL") return ok_status();
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  if (std::all_of(bytes, bytes + tensor.numel(), [](unsigned char b) { return b <= 1; })) {
    return ok_status();
  }
  return data_loss("tensor \"" + entry.name + "\": expected 0 or 1 for each BOOL, found another");
}

Result<at::Tensor> read_tensor(const detail::InputFile& file, const OpenedFile& opened,
                               const detail::TensorEntry& entry) {
  Result<at::Tensor> tensor = empty_tensor(entry);
  if (!tensor.ok()) return tensor;
  Status status = file.read_at(opened.data_offset + entry.begin, tensor->mutable_data_ptr(),
                               entry.end - entry.begin);
  if (status.ok()) status = check_bools(entry, *tensor);
  if (!status.ok()) return status;
  return tensor;
}

Result<SafetensorsFile> read_opened(const detail::InputFile& file) {
  Result<OpenedFile> opened = read_header(file);
  if (!opened.ok()) return opened.status();
  SafetensorsFile out{.tensors = {}, .metadata = opened->header.metadata};
  for (const detail::TensorEntry& entry : opened->header.entries) {
    Result<at::Tensor> tensor = read_tensor(file, *opened, entry);
    if (!tensor.ok()) return tensor.status();
    out.tensors.push_back({entry.name, *std::move(tensor)});
  }
  std::sort(out.tensors.begin(), out.tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  return out;
}

}  // namespace

Result<SafetensorsFile> read_safetensors(const std::filesystem::path& path) {
  Result<detail::InputFile> file = detail::InputFile::open(path);
  if (!file.ok()) return file.status();
  Result<SafetensorsFile> out = read_opened(*file);
  if (!out.ok()) return out.status().with_context(path.string());
  return out;
}

}  // namespace cox
