#include "coordinator/io/large_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/work_thread.h"

namespace cox::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
constexpr std::align_val_t kAlignment{kBlockBytes};

}  // namespace

struct LargeFile::Parts {
  struct FreeAligned {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  using Buffer = std::unique_ptr<std::byte, FreeAligned>;
  static Buffer make_buffer() {
    return Buffer(static_cast<std::byte*>(::operator new(kBufferBytes, kAlignment, std::nothrow)));
  }

  explicit Parts(AtomicFile created) : file(std::move(created)) {}

  Status written() { return thread.finish().value_or(ok_status()); }

  AtomicFile file;
  std::array<Buffer, 2> buffers{make_buffer(), make_buffer()};
  std::size_t filling = 0;  // index of the buffer
  std::size_t filled = 0;   // bytes in the buffer
  WorkThread thread;        // last member: destroyed before the parts that the thread uses
};

LargeFile::LargeFile(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LargeFile::LargeFile(LargeFile&&) noexcept = default;
LargeFile::~LargeFile() = default;

Result<LargeFile> LargeFile::create(const std::filesystem::path& target) {
  Result<AtomicFile> file = AtomicFile::create(target);
  if (!file.ok()) return file.status();
  file->bypass_cache();
  auto parts = std::make_unique<Parts>(std::move(*file));
  if (!parts->buffers[0] || !parts->buffers[1])
    return resource_exhausted(target.string(), ": no memory for two buffers of ", kBufferBytes,
                              " bytes");
  return LargeFile(std::move(parts));
}

Status LargeFile::write(std::span<const std::byte> bytes) {
  Parts& to = *parts_;
  while (!bytes.empty()) {
    std::byte* buffer = to.buffers[to.filling].get();
    const std::size_t taken = std::min(bytes.size(), kBufferBytes - to.filled);
    std::memcpy(buffer + to.filled, bytes.data(), taken);
    bytes = bytes.subspan(taken);
    to.filled += taken;
    if (to.filled < kBufferBytes) return ok_status();
    if (Status before = to.written(); !before.ok()) return before;
    to.thread.begin([&to, buffer] { return to.file.write(buffer, kBufferBytes); });
    to.filling = 1 - to.filling;
    to.filled = 0;
  }
  return ok_status();
}

Status LargeFile::commit() {
  Parts& to = *parts_;
  Status done = to.written();
  if (done.ok()) done = to.file.write(to.buffers[to.filling].get(), to.filled);
  return done.ok() ? to.file.commit() : done;
}

}  // namespace cox::io
