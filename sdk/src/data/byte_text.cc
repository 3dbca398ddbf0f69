#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "coordinator/io/file.h"
#include "coxswain/dataset.h"
#include "coxswain/error.h"

namespace cox {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& message) {
  throw Error(invalid_argument(path.string() + ": " + message));
}

}  // namespace

class ByteTextDataset::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    Result<io::InputFile> file = io::InputFile::open(path);
    detail::require(file.status(), "training text");
    bytes_ = file->size_bytes();
    if (bytes_ == 0) refuse(path, "expected a text to train on, found an empty file");
    void* start = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file->descriptor(), 0);
    if (start == MAP_FAILED) {
      const int error = errno;
      throw Error(resource_exhausted(path.string() + ": cannot map " + std::to_string(bytes_) +
                                     " bytes: " + std::generic_category().message(error)));
    }
    start_ = static_cast<const unsigned char*>(start);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(const_cast<unsigned char*>(start_), bytes_); }

  const unsigned char* start() const { return start_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_); }

 private:
  const unsigned char* start_ = nullptr;
  std::uint64_t bytes_ = 0;
};

ByteTextDataset::ByteTextDataset(const std::filesystem::path& file, std::int64_t block)
    : block_(block) {
  if (block < 1) refuse(file, "expected a block of 1 byte or more, found " + std::to_string(block));
  mapping_ = std::make_unique<const Mapping>(file);
  size_ = (mapping_->bytes() - 1) / block;
  if (size_ < 1) {
    refuse(file, "expected more than " + std::to_string(block) +
                     " bytes (one block and its target), " + "found " +
                     std::to_string(mapping_->bytes()) + "; use a longer text or a shorter block");
  }
}

ByteTextDataset::~ByteTextDataset() = default;

Batch ByteTextDataset::get(std::span<const std::int64_t> indices) const {
  const auto rows = static_cast<std::int64_t>(indices.size());
  Batch batch{.inputs = at::empty({rows, block_}, at::kLong),
              .targets = at::empty({rows, block_}, at::kLong),
              .samples = rows};
  auto* input = batch.inputs.mutable_data_ptr<std::int64_t>();
  auto* target = batch.targets.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= size_) {
      throw Error(invalid_argument("data set: expected a sample in [0, " + std::to_string(size_) +
                                   "), found " + std::to_string(index)));
    }
    const unsigned char* first = mapping_->start() + index * block_;
    input = std::copy(first, first + block_, input);
    target = std::copy(first + 1, first + block_ + 1, target);
  }
  return batch;
}

}  // namespace cox
