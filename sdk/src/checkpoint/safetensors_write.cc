#include <algorithm>
#include <bit>
#include <exception>
#include <set>
#include <tuple>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/safetensors.h"
#include "sdk/src/checkpoint/atomic_file.h"
#include "sdk/src/checkpoint/safetensors_header.h"
#include "sdk/src/checkpoint/tensor_dtype.h"

namespace cox {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little endian");

Status check_tensor(const NamedTensor& named) {
  const std::string who = "tensor \"" + named.name + "\": ";
  if (!is_utf8(named.name)) return invalid_argument("a tensor's name is not UTF-8");
  if (named.name == "__metadata__") return invalid_argument(who + "the format reserves this name");
  if (!named.tensor.defined()) return invalid_argument(who + "expected a tensor, found undefined");
  if (named.tensor.layout() != c10::kStrided) {
    return invalid_argument(who + "expected a dense tensor");
  }
  if (detail::dtype_name(named.tensor.scalar_type()).empty()) {
    return invalid_argument(who + "the format has no dtype for " +
                            c10::toString(named.tensor.scalar_type()));
  }
  if (static_cast<std::size_t>(named.tensor.dim()) > detail::kMaxDimensions) {
    return invalid_argument(who + "more than 64 dimensions");
  }
  return ok_status();
}

Status check_arguments(std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> seen;
  for (const NamedTensor& named : tensors) {
    if (Status status = check_tensor(named); !status.ok()) return status;
    if (!seen.insert(named.name).second) {
      return invalid_argument("tensor \"" + named.name + "\" occurs twice");
    }
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      return invalid_argument("the metadata is not UTF-8");
    }
  }
  return ok_status();
}

// Falling element size keeps every tensor aligned; the name makes the order a function of the
// values.
std::vector<NamedTensor> in_file_order(std::span<const NamedTensor> tensors) {
  std::vector<NamedTensor> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const auto falling_size = [](const NamedTensor& n) {
      return -static_cast<std::int64_t>(n.tensor.element_size());
    };
    return std::tuple(falling_size(a), std::string_view(a.name)) <
           std::tuple(falling_size(b), std::string_view(b.name));
  });
  return sorted;
}

detail::SafetensorsHeader header_of(const std::vector<NamedTensor>& sorted,
                                    const std::map<std::string, std::string>& metadata) {
  detail::SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : sorted) {
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.entries.push_back({.name = name,
                              .dtype = std::string(detail::dtype_name(tensor.scalar_type())),
                              .shape = tensor.sizes().vec(),
                              .begin = begin,
                              .end = end});
  }
  return header;
}

Status write_tensor(detail::AtomicFile& file, const NamedTensor& named) {
  try {
    const at::Tensor dense = named.tensor.detach().cpu().contiguous();
    return file.write(dense.const_data_ptr(), dense.nbytes());
  } catch (const std::exception& error) {
    return resource_exhausted("tensor \"" + named.name +
                              "\": cannot copy it to host memory: " + error.what());
  }
}

Status write_all(detail::AtomicFile& file, const std::vector<NamedTensor>& sorted,
                 const std::map<std::string, std::string>& metadata) {
  const std::string json = detail::format_header(header_of(sorted, metadata));
  const std::uint64_t length = json.size();
  if (length > detail::kMaxHeaderBytes) return invalid_argument("a header above 100 MB");
  Status status = file.write(&length, sizeof length);
  if (status.ok()) status = file.write(json.data(), json.size());
  for (const NamedTensor& named : sorted) {
    if (!status.ok()) return status;
    status = write_tensor(file, named);
  }
  return status.ok() ? file.commit() : status;
}

}  // namespace

Status write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  Status arguments = check_arguments(tensors, metadata);
  if (!arguments.ok()) return arguments.with_context(path.string());
  Result<detail::AtomicFile> file = detail::AtomicFile::create(path);
  if (!file.ok()) return file.status();
  return write_all(*file, in_file_order(tensors), metadata);
}

}  // namespace cox
