// What a block's function reads besides its arguments, watched and put back, so that running it
// again starts from what the first run started from and leaves nothing changed.
// TensorVersions: notes the version counters of inputs, parameters and buffers.
// BufferCopies: the buffers that the function itself edits (statistics, counters), as they were
// before it. Copying back raises no version counter. Values; used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace cox::detail {

std::int64_t version_of(const at::Tensor& tensor);  // 0 for inference tensors, which have none
bool same_bits(const at::Tensor& a, const at::Tensor& b);

class TensorVersions {
 public:
  struct Watched {
    at::Tensor tensor;
    std::int64_t version;
  };
  // Undefined tensors are not watched. Keeps the data alive, not the history.
  void add(const at::Tensor& tensor);
  // The first tensor that was changed in place since it was added.
  const Watched* changed() const;

 private:
  std::vector<Watched> watched_;
};

class BufferCopies {
 public:
  BufferCopies() = default;
  explicit BufferCopies(const std::vector<at::Tensor>& buffers);

  // Forgets the buffers that still have the bits of their copies; returns the others.
  std::vector<at::Tensor> keep_edited();
  // Whether `tensor` shares memory with one of the buffers.
  bool has_memory_of(const at::Tensor& tensor) const;

 private:
  friend class BufferScope;
  struct Copy {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::vector<Copy> copies_;
};

// The buffers are as the copies say; afterwards as they were when the scope began.
class BufferScope {
 public:
  explicit BufferScope(const BufferCopies& copies);
  ~BufferScope();
  BufferScope(const BufferScope&) = delete;
  BufferScope& operator=(const BufferScope&) = delete;

 private:
  std::vector<BufferCopies::Copy> now_;
};

}  // namespace cox::detail
