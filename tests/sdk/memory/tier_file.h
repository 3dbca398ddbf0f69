// Finds the unnamed file of offloading in a folder, and damages it like a disk or another process.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace cox::test {

// Calls `damage` with a descriptor of the file. Returns whether the file exists.
inline bool with_tier_file(const std::filesystem::path& folder,
                           const std::function<void(int)>& damage) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (gone || target.rfind(folder.string() + "/", 0) != 0) continue;
    const int descriptor = ::open(entry.path().c_str(), O_RDWR);
    if (descriptor < 0) return false;
    damage(descriptor);
    ::close(descriptor);
    return true;
  }
  return false;
}

inline bool empty_tier_file(const std::filesystem::path& folder) {
  return with_tier_file(folder, [](int file) { static_cast<void>(::ftruncate(file, 0)); });
}

// Flips one bit in each page.
inline bool change_tier_file(const std::filesystem::path& folder) {
  return with_tier_file(folder, [](int file) {
    struct stat facts {};
    ::fstat(file, &facts);
    std::uint8_t byte = 0;
    for (off_t at = 100; at < facts.st_size; at += 4096) {
      if (::pread(file, &byte, 1, at) != 1) continue;
      byte ^= 1;
      static_cast<void>(::pwrite(file, &byte, 1, at));
    }
  });
}

}  // namespace cox::test
