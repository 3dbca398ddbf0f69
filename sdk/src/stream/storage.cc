#include "sdk/src/stream/storage.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace cox::detail {
namespace {

// Below autograd, where copies raise no version counter: putting a value back is no change.
void write(at::Tensor buffer, const at::Tensor& value) {
  const at::AutoDispatchBelowADInplaceOrView below;
  buffer.copy_(value);
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().clone();
}

}  // namespace

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.layout() != at::kStrided || b.layout() != at::kStrided) return false;
  if (a.numel() == 0) return true;
  const at::NoGradGuard no_grad;
  const at::Tensor x = a.detach().contiguous().view({-1}).view(at::kByte);
  const at::Tensor y = b.detach().contiguous().view({-1}).view(at::kByte);
  if (!x.is_cpu()) return at::equal(x, y);
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), static_cast<std::size_t>(x.numel())) ==
         0;
}

std::string changed_in_place(at::IntArrayRef sizes, std::int64_t expected_version,
                             std::int64_t found_version) {
  std::ostringstream text;
  text << "a tensor of sizes " << sizes
       << " that its backward pass needs was changed in place; expected version "
       << expected_version << ", found " << found_version
       << "; use an operation that is not in place, or clone the tensor first";
  return text.str();
}

void TensorVersions::add(const at::Tensor& tensor) {
  if (tensor.defined()) watched_.push_back({tensor.detach(), version_of(tensor)});
}

const TensorVersions::Watched* TensorVersions::changed() const {
  const auto found = std::ranges::find_if(watched_, [](const Watched& watched) {
    return version_of(watched.tensor) != watched.version;
  });
  return found == watched_.end() ? nullptr : &*found;
}

BufferCopies::BufferCopies(const std::vector<at::Tensor>& buffers) {
  for (const at::Tensor& buffer : buffers) {
    if (buffer.defined()) copies_.push_back({buffer, copy_of(buffer)});
  }
}

std::vector<at::Tensor> BufferCopies::keep_edited() {
  std::erase_if(copies_, [](const Copy& copy) { return same_bits(copy.buffer, copy.before); });
  std::vector<at::Tensor> edited;
  for (const Copy& copy : copies_) edited.push_back(copy.buffer);
  return edited;
}

bool BufferCopies::has_memory_of(const at::Tensor& tensor) const {
  return std::ranges::any_of(
      copies_, [&](const Copy& copy) { return storage_of(copy.buffer) == storage_of(tensor); });
}

BufferScope::BufferScope(const BufferCopies& copies) {
  for (const BufferCopies::Copy& copy : copies.copies_) {
    now_.push_back({copy.buffer, copy_of(copy.buffer)});
    write(copy.buffer, copy.before);
  }
}

BufferScope::~BufferScope() {
  for (const BufferCopies::Copy& copy : now_) write(copy.buffer, copy.before);
}

}  // namespace cox::detail
