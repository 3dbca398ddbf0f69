#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "coxswain/dataset.h"
#include "coxswain/error.h"

namespace cox {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& message) {
  throw Error(invalid_argument(path.string() + ": " + message));
}

}  // namespace

class ByteTextDataset::File {
 public:
  explicit File(const std::filesystem::path& path) : path_(path), input_(open(path)) {
    if (input_.size_bytes() == 0) refuse(path, "expected a text to train on, found an empty file");
  }

  std::int64_t bytes() const { return static_cast<std::int64_t>(input_.size_bytes()); }
  void read(std::int64_t offset, std::span<unsigned char> to) const {
    const Status got = input_.read_at(static_cast<std::uint64_t>(offset), to.data(), to.size());
    detail::require(got.with_context(path_.string()));
  }

 private:
  static io::InputFile open(const std::filesystem::path& path) {
    Result<io::InputFile> file = io::InputFile::open(path);
    detail::require(file.status(), "training text");
    return *std::move(file);
  }

  const std::filesystem::path path_;
  const io::InputFile input_;
};

ByteTextDataset::ByteTextDataset(const std::filesystem::path& file, std::int64_t block)
    : block_(block) {
  if (block < 1) refuse(file, "expected a block of 1 byte or more, found " + std::to_string(block));
  file_ = std::make_unique<const File>(file);
  size_ = (file_->bytes() - 1) / block;
  if (size_ < 1) {
    refuse(file, "expected more than " + std::to_string(block) +
                     " bytes (one block and its target), " + "found " +
                     std::to_string(file_->bytes()) + "; use a longer text or a shorter block");
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
  std::vector<unsigned char> bytes(static_cast<std::size_t>(block_) + 1);
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= size_) {
      throw Error(invalid_argument("data set: expected a sample in [0, " + std::to_string(size_) +
                                   "), found " + std::to_string(index)));
    }
    file_->read(index * block_, bytes);
    input = std::copy(bytes.begin(), bytes.end() - 1, input);
    target = std::copy(bytes.begin() + 1, bytes.end(), target);
  }
  return batch;
}

}  // namespace cox
