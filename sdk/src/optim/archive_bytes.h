// The bytes of one of torch's archives, in memory. Pure.
#pragma once

#include <string>

namespace torch::serialize {
class OutputArchive;
}

namespace cox::detail {

// Throws c10::Error if the archive cannot be written.
std::string bytes_of(torch::serialize::OutputArchive& archive);

}  // namespace cox::detail
