#include "coordinator/runtime/saved_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"
#include "coordinator/wire/control_codec.h"

namespace cox::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "COXSTATE";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 20;  // magic, version, length, checksum of the payload

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string file_of(std::string_view payload) {
  ByteWriter header;
  header.append(as_bytes(kMagic));
  header.u32(kVersion);
  header.u32(static_cast<std::uint32_t>(payload.size()));
  header.u32(crc32(as_bytes(payload)));
  std::string file(reinterpret_cast<const char*>(header.bytes().data()), header.size());
  return file.append(payload);
}

// 0, or the error of the call that failed.
int write_and_sync(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return ::fsync(file) == 0 ? 0 : errno;
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  (void)::fsync(file);
  ::close(file);
}

Status cannot_save(const fs::path& path, int error) {
  return resource_exhausted("control state " + path.string() +
                            ": cannot be written: " + std::generic_category().message(error) +
                            "; an older one is still there");
}

Result<std::string_view> payload_of(std::string_view file) {
  if (file.size() < kHeaderBytes || file.substr(0, kMagic.size()) != kMagic)
    return data_loss("expected a saved control state, found other bytes");
  ByteReader header(as_bytes(file.substr(kMagic.size(), kHeaderBytes - kMagic.size())));
  const std::uint32_t version = header.u32();
  if (version != kVersion)
    return failed_precondition("expected version " + std::to_string(kVersion) + ", found " +
                               std::to_string(version) + "; use the Coxswain that wrote it");
  const std::uint32_t length = header.u32();
  const std::string_view payload = file.substr(kHeaderBytes);
  if (payload.size() != length)
    return data_loss("expected " + std::to_string(length) + " bytes behind the header, found " +
                     std::to_string(payload.size()) + "; use an older save");
  if (crc32(as_bytes(payload)) != header.u32())
    return data_loss("its checksum does not fit its bytes; use an older save");
  return payload;
}

}  // namespace

Status save_control_state(const fs::path& path, const ControlState& state) {
  const std::string payload = wire::serialize(state);
  if (payload.size() > wire::kMaxMessageBytes)
    return resource_exhausted("control state " + path.string() + ": too large to be saved");
  fs::path temporary = path;
  temporary += ".writing";
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return cannot_save(path, errno);
  int error = write_and_sync(file, file_of(payload));
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    return cannot_save(path, error);
  }
  sync_folder(path);
  return ok_status();
}

Result<ControlState> load_control_state(const fs::path& path) {
  const std::string context = "control state " + path.string();
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  std::ifstream stream(path, std::ios::binary);
  if (error || !stream) return not_found(context + ": cannot be read");
  if (size > wire::kMaxMessageBytes + kHeaderBytes)
    return data_loss(context + ": expected at most 256 MiB, found " + std::to_string(size) +
                     " bytes");
  std::string file(static_cast<std::size_t>(size), '\0');
  stream.read(file.data(), static_cast<std::streamsize>(file.size()));
  file.resize(static_cast<std::size_t>(stream.gcount()));
  const auto payload = payload_of(file);
  if (!payload.ok()) return payload.status().with_context(context);
  auto state = wire::parse_control_state(*payload);
  if (!state.ok()) return state.status().with_context(context);
  return state;
}

}  // namespace cox::runtime
