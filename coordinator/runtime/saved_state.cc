#include "coordinator/runtime/saved_state.h"

#include <span>
#include <string>
#include <string_view>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/wire/control_codec.h"

namespace cox::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStateMagic = "COXSTATE";
constexpr std::uint32_t kStateVersion = 5;
constexpr std::size_t kHeaderBytes = 20;  // magic, version, length, checksum of the payload

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_of(std::string_view payload) {
  ByteWriter header;
  header.append(kStateMagic);
  header.u32(kStateVersion);
  header.u32(static_cast<std::uint32_t>(payload.size()));
  header.u32(crc32(as_bytes(payload)));
  return std::string(header.text()).append(payload);
}

Result<std::string_view> payload_of(std::string_view file) {
  if (file.size() < kHeaderBytes || file.substr(0, kStateMagic.size()) != kStateMagic)
    return data_loss("expected a saved control state, found other bytes");
  ByteReader header(as_bytes(file.substr(kStateMagic.size(), kHeaderBytes - kStateMagic.size())));
  const std::uint32_t version = header.u32();
  if (version != kStateVersion)
    return failed_precondition(
        "expected version ", kStateVersion, ", found ", version,
        "; restore the state with the Coxswain that wrote it, or start without the state");
  const std::uint32_t length = header.u32();
  const std::string_view payload = file.substr(kHeaderBytes);
  if (payload.size() != length)
    return data_loss("expected ", length, " bytes behind the header, found ", payload.size(),
                     "; use an older save");
  if (crc32(as_bytes(payload)) != header.u32())
    return data_loss("the checksum does not match the content; use an older save");
  return payload;
}

}  // namespace

Result<std::string> control_state_file(const ControlState& state) {
  const std::string payload = wire::serialize(state);
  if (payload.size() > wire::kMaxMessageBytes) return resource_exhausted("too large to be saved");
  return file_of(payload);
}

Result<ControlState> load_control_state(const fs::path& path) {
  const std::string context = concat("control state ", path.string());
  const auto file = io::read_file(path, wire::kMaxMessageBytes + kHeaderBytes, io::Links::refused);
  if (!file.ok()) return file.status().with_context(context);
  auto state = read_control_state(*file);
  if (!state.ok()) return state.status().with_context(context);
  return state;
}

Result<ControlState> read_control_state(std::string_view file) {
  const auto payload = payload_of(file);
  if (!payload.ok()) return payload.status();
  return wire::parse_control_state(*payload);
}

}  // namespace cox::runtime
