#include "coxswain/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/file.h"
#include "coordinator/io/large_file.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/save_folder.h"
#include "sdk/src/checkpoint/save_layout.h"
#include "sdk/src/checkpoint/tensor_file.h"

namespace cox {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little endian");

struct DtypePair {
  std::string_view name;
  c10::ScalarType type;
};
constexpr std::array<DtypePair, 16> kDtypes = {{{"BOOL", c10::ScalarType::Bool},
                                                {"U8", c10::ScalarType::Byte},
                                                {"I8", c10::ScalarType::Char},
                                                {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
                                                {"F8_E5M2", c10::ScalarType::Float8_e5m2},
                                                {"U16", c10::ScalarType::UInt16},
                                                {"I16", c10::ScalarType::Short},
                                                {"F16", c10::ScalarType::Half},
                                                {"BF16", c10::ScalarType::BFloat16},
                                                {"U32", c10::ScalarType::UInt32},
                                                {"I32", c10::ScalarType::Int},
                                                {"F32", c10::ScalarType::Float},
                                                {"U64", c10::ScalarType::UInt64},
                                                {"I64", c10::ScalarType::Long},
                                                {"F64", c10::ScalarType::Double},
                                                {"C64", c10::ScalarType::ComplexFloat}}};
// The format has no complex type with two F64, so such tensors get a last dimension of 2. The
// metadata lists them under names with this prefix.
constexpr std::string_view kComplex = "coxswain.complex.";

// Blocks of this size stay in the processor's cache between a copy or read and the hash.
constexpr std::size_t kBytesAtOnce = std::size_t{1} << 20;

std::string_view dtype_name(c10::ScalarType type) {
  const auto* found = std::ranges::find(kDtypes, type, &DtypePair::type);
  return found == kDtypes.end() ? std::string_view() : found->name;
}

// REQUIRES: a name of io::kSafetensorsDtypes.
c10::ScalarType type_of(std::string_view dtype) {
  return std::ranges::find(kDtypes, dtype, &DtypePair::name)->type;
}

Result<at::Tensor> empty_tensor(const io::SafetensorsEntry& entry) {
  try {
    return at::empty(entry.shape, at::TensorOptions(type_of(entry.dtype)));
  } catch (const std::exception&) {
    return resource_exhausted("tensor \"" + entry.name + "\": no memory for " +
                              std::to_string(entry.end - entry.begin) + " bytes");
  }
}

// A bool with a bit pattern other than 0 or 1 is undefined behaviour at every use.
Status check_bools(const io::SafetensorsEntry& entry, const at::Tensor& tensor) {
  if (entry.dtype != "BOOL") return ok_status();
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  if (std::all_of(bytes, bytes + tensor.numel(), [](unsigned char b) { return b <= 1; })) {
    return ok_status();
  }
  return data_loss("tensor \"" + entry.name + "\": expected 0 or 1 for each BOOL, found another");
}

// Fills `bytes` from the file and adds them to its hash.
Status read_hashed(const io::InputFile& file, std::uint64_t offset, std::span<std::byte> bytes,
                   io::ContentHash& hash) {
  for (std::size_t at = 0; at < bytes.size(); at += kBytesAtOnce) {
    const auto block = bytes.subspan(at, std::min(kBytesAtOnce, bytes.size() - at));
    if (Status read = file.read_at(offset + at, block.data(), block.size()); !read.ok())
      return read;
    hash.add(block);
  }
  return ok_status();
}

Result<at::Tensor> read_tensor(const io::InputFile& file, const io::PlacedHeader& opened,
                               const io::SafetensorsEntry& entry, io::ContentHash& hash) {
  Result<at::Tensor> tensor = empty_tensor(entry);
  if (!tensor.ok()) return tensor;
  const std::span bytes(static_cast<std::byte*>(tensor->mutable_data_ptr()), tensor->nbytes());
  Status status = read_hashed(file, opened.data_offset + entry.begin, bytes, hash);
  if (status.ok()) status = check_bools(entry, *tensor);
  if (!status.ok()) return status;
  return tensor;
}

// Restores the form of a tensor that write_tensor_file() changed.
Status restore_form(const std::map<std::string, std::string>& metadata, NamedTensor& named) {
  if (!metadata.contains(concat(kComplex, named.name))) return ok_status();
  const at::Tensor& pairs = named.tensor;
  if (pairs.scalar_type() != c10::ScalarType::Double || pairs.dim() == 0 || pairs.size(-1) != 2)
    return data_loss(
        "tensor \"" + named.name +
        "\": expected complex numbers as F64 with a last dimension of 2, found another form");
  named.tensor = at::view_as_complex(pairs);
  return ok_status();
}

// Adds the bytes before the data.
Status add_header(const io::InputFile& file, std::uint64_t data_offset, io::ContentHash& hash) {
  std::vector<std::byte> bytes(data_offset);
  if (Status read = file.read_at(0, bytes.data(), bytes.size()); !read.ok()) return read;
  hash.add(bytes);
  return ok_status();
}

// The entries cover the data in order without a gap, so their bytes are all bytes.
Result<detail::ReadTensors> read_opened(const io::InputFile& file, const std::string& name) {
  Result<io::PlacedHeader> opened = io::read_safetensors_header(file);
  if (!opened.ok()) return opened.status();
  io::ContentHash hash;
  if (Status added = add_header(file, opened->data_offset, hash); !added.ok()) return added;
  detail::ReadTensors out{.content = {.tensors = {}, .metadata = opened->header.metadata},
                          .found = {}};
  for (const io::SafetensorsEntry& entry : opened->header.entries) {
    Result<at::Tensor> tensor = read_tensor(file, *opened, entry, hash);
    if (!tensor.ok()) return tensor.status();
    out.found.pieces.push_back(io::piece_of(entry, name, opened->data_offset));
    out.content.tensors.push_back({entry.name, *std::move(tensor)});
    Status restored = restore_form(opened->header.metadata, out.content.tensors.back());
    if (!restored.ok()) return restored;
  }
  out.found.file = {name, file.size_bytes(), hash.value()};
  std::ranges::sort(out.content.tensors,
                    [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  return out;
}

Status check_tensor(const NamedTensor& named) {
  const std::string who = "tensor \"" + named.name + "\": ";
  if (!is_utf8(named.name)) return invalid_argument("a tensor's name is not UTF-8");
  if (named.name == "__metadata__") return invalid_argument(who + "the format reserves this name");
  if (!named.tensor.defined()) return invalid_argument(who + "expected a tensor, found undefined");
  if (named.tensor.layout() != c10::kStrided) {
    return invalid_argument(who + "expected a dense tensor");
  }
  if (dtype_name(named.tensor.scalar_type()).empty()) {
    return invalid_argument(who + "the format has no dtype for " +
                            c10::toString(named.tensor.scalar_type()));
  }
  if (static_cast<std::size_t>(named.tensor.dim()) > io::kMaxSafetensorsDimensions) {
    return invalid_argument(who + "more than 64 dimensions");
  }
  return ok_status();
}

Status check_arguments(std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  if (tensors.size() > io::kMaxSafetensorsTensors)
    return invalid_argument(tensors.size(), " tensors, expected at most ",
                            io::kMaxSafetensorsTensors, " in a file; write several files");
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

// Falling element size keeps every tensor aligned; names make the order a function of the values.
std::vector<NamedTensor> in_file_order(std::span<const NamedTensor> tensors) {
  std::vector<NamedTensor> sorted(tensors.begin(), tensors.end());
  std::ranges::sort(sorted, [](const NamedTensor& a, const NamedTensor& b) {
    const auto falling_size = [](const NamedTensor& n) {
      return -static_cast<std::int64_t>(n.tensor.element_size());
    };
    return std::tuple(falling_size(a), std::string_view(a.name)) <
           std::tuple(falling_size(b), std::string_view(b.name));
  });
  return sorted;
}

io::SafetensorsHeader header_of(const std::vector<NamedTensor>& sorted,
                                const std::map<std::string, std::string>& metadata) {
  io::SafetensorsHeader header{.entries = {}, .metadata = metadata};
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : sorted) {
    const std::uint64_t begin = end;
    end += static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header.entries.push_back({.name = name,
                              .dtype = dtype_name(tensor.scalar_type()),
                              .shape = tensor.sizes().vec(),
                              .begin = begin,
                              .end = end});
  }
  return header;
}

// HashedFile writes bytes and hashes all of them.
class HashedFile {
 public:
  explicit HashedFile(io::LargeFile file) : file_(std::move(file)) {}
  // Writes the bytes and returns their hash.
  Result<std::uint64_t> write(std::span<const std::byte> bytes) {
    io::ContentHash own;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(kBytesAtOnce, bytes.size()))) {
      const auto block = bytes.first(std::min(kBytesAtOnce, bytes.size()));
      if (Status written = file_.write(block); !written.ok()) return written;
      hash_.add(block);
      own.add(block);
      size_ += block.size();
    }
    return own.value();
  }
  Status commit() { return file_.commit(); }
  std::uint64_t size() const { return size_; }
  std::uint64_t hash() const { return hash_.value(); }

 private:
  io::LargeFile file_;
  io::ContentHash hash_;
  std::uint64_t size_ = 0;
};

// Converts tensors without a type in the format.
void put_in_form(std::vector<NamedTensor>& tensors, std::map<std::string, std::string>& metadata) {
  for (NamedTensor& each : tensors) {
    if (!each.tensor.defined() || each.tensor.scalar_type() != c10::ScalarType::ComplexDouble)
      continue;
    each.tensor = at::view_as_real(each.tensor.detach().resolve_conj());
    metadata[concat(kComplex, each.name)] = "F64";
  }
}

// Writes the tensor and returns the hash of its bytes.
Result<std::uint64_t> write_tensor(HashedFile& file, const NamedTensor& named) {
  try {
    const at::Tensor dense = named.tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    return file.write({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
  } catch (const std::exception& error) {
    return resource_exhausted("tensor \"" + named.name +
                              "\": cannot copy it to host memory: " + error.what());
  }
}

Result<detail::WrittenTensors> write_all(HashedFile& file, const std::string& name,
                                         const std::vector<NamedTensor>& sorted,
                                         const std::map<std::string, std::string>& metadata) {
  const io::SafetensorsHeader header = header_of(sorted, metadata);
  const std::string json = io::format_safetensors_header(header);
  const std::uint64_t length = json.size();
  if (length > io::kMaxSafetensorsHeaderBytes)
    return invalid_argument("a header of ", length, " bytes, expected at most ",
                            io::kMaxSafetensorsHeaderBytes, "; write several files");
  Status status = file.write(std::as_bytes(std::span(&length, 1))).status();
  if (status.ok()) status = file.write(std::as_bytes(std::span(json))).status();
  if (!status.ok()) return status;
  const std::uint64_t data_offset = file.size();
  detail::WrittenTensors written;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const Result<std::uint64_t> hash = write_tensor(file, sorted[i]);
    if (!hash.ok()) return hash.status();
    written.pieces.push_back(io::piece_of(header.entries[i], name, data_offset));
    written.pieces.back().hash = *hash;
  }
  written.file = {name, file.size(), file.hash()};
  if (status = file.commit(); !status.ok()) return status;
  return written;
}

// Returns the files that share the tensors of `path`, or `path` itself if there are none.
std::vector<std::filesystem::path> pieces_of(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(io::folder_of(path), ignored)) {
    const std::string name = entry.path().filename().string();
    if (io::whole_name(name) == path.filename().string()) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files.empty() ? std::vector{path} : files;
}

// Checks that all files counted by the last one exist, and that no tensor is in two of them.
Status check_pieces(const std::vector<std::filesystem::path>& files,
                    const std::vector<NamedTensor>& tensors) {
  const std::string count = concat("-of-", zero_padded(files.size(), 5));
  const std::string last = files.back().filename().string();
  if (io::whole_name(last) != last && !files.back().stem().string().ends_with(count))
    return data_loss("expected as many files as ", last, " counts, found ", files.size());
  std::set<std::string_view> names;
  for (const NamedTensor& each : tensors) {
    if (!names.insert(each.name).second)
      return data_loss("expected each tensor in one file, found \"", each.name, "\" in two");
  }
  return ok_status();
}

constexpr std::size_t kNamesListed = 8;

using ByName = std::map<std::string_view, const NamedTensor*>;

Status index_names(std::span<const NamedTensor> tensors, const char* side, ByName& out) {
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined()) {
      return invalid_argument(std::string(side) + " \"" + named.name + "\" is undefined");
    }
    if (!out.emplace(named.name, &named).second) {
      return invalid_argument(std::string(side) + " \"" + named.name + "\" occurs twice");
    }
  }
  return ok_status();
}

// Lists the first few names.
class NameList {
 public:
  void add(const std::string& name) {
    if (++count_ <= kNamesListed) text_ += (count_ == 1 ? "" : ", ") + name;
  }
  std::string text() const {
    if (count_ <= kNamesListed) return text_;
    return text_ + " and " + std::to_string(count_ - kNamesListed) + " more";
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

std::string list_names(const ByName& names, const ByName& without) {
  NameList list;
  for (const auto& [name, named] : names) {
    if (!without.contains(name)) list.add(std::string(name));
  }
  return list.text();
}

std::string describe(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), tensor.sizes());
}

std::string differences(const ByName& targets, const ByName& source) {
  NameList list;
  for (const auto& [name, target] : targets) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    const at::Tensor& want = target->tensor;
    const at::Tensor& have = found->second->tensor;
    if (want.sizes() == have.sizes() && want.scalar_type() == have.scalar_type()) continue;
    list.add(std::string(name) + " (expected " + describe(want) + ", found " + describe(have) +
             ")");
  }
  return list.text();
}

std::string unmatched(const ByName& targets, const ByName& source) {
  std::string message;
  const auto add = [&](const char* label, const std::string& names) {
    if (!names.empty()) message += (message.empty() ? "" : "; ") + (label + (": " + names));
  };
  add("missing", list_names(targets, source));
  add("unexpected", list_names(source, targets));
  add("different", differences(targets, source));
  return message;
}

Status compare_names(const ByName& targets, const ByName& source) {
  const std::string message = unmatched(targets, source);
  if (message.empty()) return ok_status();
  return invalid_argument("the tensors do not fit the model: " + message);
}

}  // namespace

Result<SafetensorsFile> read_safetensors(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files{path};
  if (!io::is_there(path)) files = pieces_of(path);
  SafetensorsFile out;
  for (const std::filesystem::path& file : files) {
    auto read = detail::read_tensor_file(file);
    if (!read.ok()) return read.status();
    std::ranges::move(read->content.tensors, std::back_inserter(out.tensors));
    if (out.metadata.empty()) out.metadata = std::move(read->content.metadata);
  }
  Status joined = check_pieces(files, out.tensors);
  if (joined.ok()) joined = detail::join_tied(out.metadata, out.tensors);
  if (!joined.ok()) return joined.with_context(path.string());
  std::ranges::sort(out.tensors, {}, &NamedTensor::name);
  return out;
}

Result<detail::ReadTensors> detail::read_tensor_file(const std::filesystem::path& path) {
  Result<io::InputFile> file = io::InputFile::open(path);
  if (!file.ok()) return file.status();
  auto out = read_opened(*file, path.filename().string());
  if (!out.ok()) return out.status().with_context(path.string());
  return out;
}

Status write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  return detail::write_tensor_file(path, tensors, metadata).status();
}

std::string detail::describe_unmatched(std::span<const NamedTensor> targets,
                                       std::span<const NamedTensor> source) {
  ByName to, from;
  for (const NamedTensor& each : targets) to.emplace(each.name, &each);
  for (const NamedTensor& each : source) from.emplace(each.name, &each);
  return unmatched(to, from);
}

Status detail::check_savable(std::span<const NamedTensor> tensors) {
  std::vector<NamedTensor> in_form(tensors.begin(), tensors.end());
  std::map<std::string, std::string> metadata;
  put_in_form(in_form, metadata);
  return check_arguments(in_form, metadata);
}

Result<detail::WrittenTensors> detail::write_tensor_file(
    const std::filesystem::path& path, std::span<const NamedTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> in_form(tensors.begin(), tensors.end());
  std::map<std::string, std::string> all_metadata = metadata;
  put_in_form(in_form, all_metadata);
  Status arguments = check_arguments(in_form, all_metadata);
  if (!arguments.ok()) return arguments.with_context(path.string());
  Result<io::LargeFile> file = io::LargeFile::create(path);
  if (!file.ok()) return file.status();
  HashedFile hashed(std::move(*file));
  return write_all(hashed, path.filename().string(), in_file_order(in_form), all_metadata);
}

Status detail::check_match(std::span<const NamedTensor> targets,
                           std::span<const NamedTensor> source) {
  ByName to, from;
  Status status = index_names(targets, "target", to);
  if (status.ok()) status = index_names(source, "source", from);
  return status.ok() ? compare_names(to, from) : status;
}

Status load_into(std::span<const NamedTensor> targets, std::span<const NamedTensor> source) {
  Status status = detail::check_match(targets, source);
  if (!status.ok()) return status;
  ByName to, from;
  for (const NamedTensor& each : targets) to.emplace(each.name, &each);
  for (const NamedTensor& each : source) from.emplace(each.name, &each);
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : to) target->tensor.copy_(from.at(name)->tensor);
  return status;
}

}  // namespace cox
