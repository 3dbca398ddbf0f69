#include "sdk/src/stream/storage.h"

#include "coordinator/core/text.h"

namespace cox::detail {

std::string changed_in_place(at::IntArrayRef sizes, std::int64_t expected_version,
                             std::int64_t found_version) {
  std::string listed;
  for (const std::int64_t size : sizes) listed += concat(listed.empty() ? "" : ", ", size);
  return concat("a tensor of sizes [", listed,
                "] that its backward pass needs was changed in place; expected version ",
                expected_version, ", found ", found_version,
                "; use an operation that is not in place, or clone the tensor first");
}

}  // namespace cox::detail
