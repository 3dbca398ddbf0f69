#include "sdk/src/stream/storage.h"

#include <sstream>

namespace cox::detail {

std::string changed_in_place(at::IntArrayRef sizes, std::int64_t expected_version,
                             std::int64_t found_version) {
  std::ostringstream text;
  text << "a tensor of sizes " << sizes
       << " that its backward pass needs was changed in place; expected version "
       << expected_version << ", found " << found_version
       << "; use an operation that is not in place, or clone the tensor first";
  return text.str();
}

}  // namespace cox::detail
