#include "sdk/src/optim/archive_bytes.h"

#include <torch/torch.h>

#include <cstddef>

namespace cox::detail {

std::string bytes_of(torch::serialize::OutputArchive& archive) {
  std::string bytes;
  archive.save_to([&bytes](const void* part, std::size_t size) {
    bytes.append(static_cast<const char*>(part), size);
    return size;
  });
  return bytes;
}

}  // namespace cox::detail
