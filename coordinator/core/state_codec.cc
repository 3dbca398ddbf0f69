#include "coordinator/core/state_codec.h"

namespace cox {

std::uint64_t version_of_state(std::string_view bytes) {
  using namespace state_codec;
  ByteReader in(std::as_bytes(std::span(bytes)));
  std::uint64_t version = 0;
  while (!in.at_end()) {
    const Tag tag = read_tag(in);
    if (tag.number == kVersionNumber && tag.type == WireType::varint) {
      version = in.varint();
    } else {
      skip(in, tag.type);
    }
  }
  return in.failed() ? 0 : version;
}

}  // namespace cox
