#include "sdk/src/training/out_of_memory.h"

#include <c10/util/Exception.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

TEST_CASE("what ran out of memory is known by its type, or by the words of whoever has none") {
  struct Case {
    std::shared_ptr<const std::exception> error;
    bool is_it;
  };
  const auto said = [](const char* words) { return std::make_shared<std::runtime_error>(words); };
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const Case cases[] = {
      {std::make_shared<c10::OutOfMemoryError>(here, "CUDA out of memory. Tried ..."), true},
      {std::make_shared<std::bad_alloc>(), true},
      {said("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), true},
      {said("CUDA error: out of memory\nCUDA kernel errors might be ..."), true},
      {said("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), true},
      {said("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), true},
      {said("CUDA error: an illegal memory access was encountered"), false},
      {said("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"), false},
      {said("mat1 and mat2 shapes cannot be multiplied"), false},
  };
  for (const Case& each : cases) {
    CAPTURE(std::string(each.error->what()));
    CHECK(cox::detail::is_out_of_memory(*each.error) == each.is_it);
  }
}
