#include "coordinator/wire/message_limits.h"

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/core/bytes.h"

namespace cox::wire {
namespace {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kFixed32 = 5 };

Status no_message() {
  return data_loss("message: expected tagged fields, found other bytes");
}

// Steps over the value of a field; a delimited one is returned.
std::span<const std::byte> skip(ByteReader& in, std::uint32_t type) {
  switch (type) {
    case kVarint:
      in.varint();
      return {};
    case kFixed64:
      in.take(8);
      return {};
    case kFixed32:
      in.take(4);
      return {};
    case kDelimited:
      return in.take(in.varint());
    default:
      in.fail();
      return {};
  }
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Status check_limits(std::string_view message, std::span<const FieldLimit> limits) {
  ByteReader in(std::as_bytes(std::span(message.data(), message.size())));
  std::vector<std::size_t> seen(limits.size(), 0);
  while (!in.at_end()) {
    const std::uint64_t tag = in.varint();
    const auto body = skip(in, static_cast<std::uint32_t>(tag & 7u));
    if (in.failed()) return no_message();
    const auto limit = std::find_if(limits.begin(), limits.end(),
                                    [&](const FieldLimit& l) { return l.field == tag >> 3; });
    if (limit == limits.end() || (tag & 7u) != kDelimited) continue;
    if (++seen[static_cast<std::size_t>(limit - limits.begin())] > limit->most)
      return resource_exhausted("message: expected at most " + std::to_string(limit->most) +
                                " parts of field " + std::to_string(limit->field) + ", found more");
    if (limit->inside.empty()) continue;
    if (Status status = check_limits(as_text(body), limit->inside); !status.ok()) return status;
  }
  return in.failed() ? no_message() : ok_status();
}

}  // namespace cox::wire
