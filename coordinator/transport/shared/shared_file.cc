#include "coordinator/transport/shared/shared_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>

#include "coordinator/core/text.h"
#include "coordinator/io/descriptor.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/open_to_write.h"
#include "coordinator/transport/exchange/departure_watch.h"

namespace cox::transport {
namespace {

using io::Descriptor;

constexpr const char* kPrefix = "coxswain-";

std::string unique_path(const std::string& folder) {
  std::random_device random;
  return concat(folder, "/", kPrefix, getpid(), "-", random());
}

// A new file, whose name is removed by the destructor. The file is locked while it has a name, so
// that other processes can tell it from a file of a killed process.
class NamedFile {
 public:
  explicit NamedFile(const std::string& folder)
      : path_(unique_path(folder)),
        file_(io::create_new(path_, S_IRUSR | S_IWUSR)),
        error_(!file_.is_open() || flock(file_.number(), LOCK_EX) != 0 ? errno : 0) {}
  ~NamedFile() {
    if (file_.is_open()) unlink(path_.c_str());
  }
  NamedFile(const NamedFile&) = delete;
  NamedFile& operator=(const NamedFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return file_.number(); }
  int error() const { return error_; }  // 0 if the file exists
  // Returns whether the file was locked before another process removed it as forgotten.
  bool has_name() const {
    struct stat info {};
    return fstat(descriptor(), &info) == 0 && info.st_nlink > 0;
  }

 private:
  std::string path_;
  Descriptor file_;
  int error_;
};

// Removes files of killed processes.
void remove_forgotten(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const Descriptor file = io::open_existing(entry.path());
    if (file.is_open() && flock(file.number(), LOCK_EX | LOCK_NB) == 0)
      unlink(entry.path().c_str());
  }
}

Status no_room(const std::string& folder, std::size_t bytes, int error) {
  std::string free = "unknown";
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) == 0) free = std::to_string(info.f_bavail * info.f_frsize);
  return resource_exhausted("shared memory in ", folder, ": expected room for ", bytes,
                            " bytes, found ", free, " free (", io::errno_text(error),
                            "); enlarge it, or choose another folder with COX_SHM_DIR");
}

Result<SharedSegment> map(int descriptor, std::size_t bytes, const std::string& folder) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return no_room(folder, bytes, errno);
  std::shared_ptr<void> owner(memory, [bytes](void* p) { munmap(p, bytes); });
  return SharedSegment({static_cast<std::byte*>(memory), bytes}, std::move(owner));
}

// Allocates all memory of the file. A folder without room is then an error here, instead of a
// SIGBUS at the first access.
Result<SharedSegment> fill(const NamedFile& file, const std::string& folder, std::size_t bytes) {
  if (file.error() != 0) return no_room(folder, bytes, file.error());
  const int error = posix_fallocate(file.descriptor(), 0, static_cast<off_t>(bytes));
  if (error != 0) return no_room(folder, bytes, error);
  return map(file.descriptor(), bytes, folder);
}

Result<SharedSegment> attach(const std::string& path, const std::string& folder,
                             std::size_t bytes) {
  const Descriptor file = io::open_existing(path);
  if (!file.is_open()) return no_room(folder, bytes, errno);
  struct stat info {};
  if (fstat(file.number(), &info) != 0 || static_cast<std::size_t>(info.st_size) != bytes) {
    return no_room(folder, bytes, EINVAL);
  }
  return map(file.number(), bytes, folder);
}

// Returns ok if all ranks have the segment, else the failure of the lowest rank.
Status agree(Communicator& communicator, const Status& mine, const WaitPolicy& policy) {
  const auto refusal = first_to_depart(communicator, mine.message(), policy);
  if (!refusal.ok()) return refusal.status();
  if (!refusal->somebody()) return ok_status();
  return resource_exhausted("rank ", refusal->rank, " of this node: ", refusal->text());
}

}  // namespace

Result<SharedSegment> share_file(Communicator& communicator, std::size_t bytes,
                                 const std::string& folder, const WaitPolicy& policy) {
  const bool leader = communicator.rank() == RankId(0);
  const std::size_t mapped = std::max<std::size_t>(bytes, 1);
  std::array<char, 512> name{};  // the file's name; empty if there is none
  Result<SharedSegment> segment = resource_exhausted("there is no file to map");
  std::unique_ptr<NamedFile> file;  // on the leader, until all ranks have mapped it
  if (leader) {
    remove_forgotten(folder);
    do {
      file = std::make_unique<NamedFile>(folder);
    } while (file->error() == 0 && !file->has_name());
    segment = fill(*file, folder, mapped);
    if (segment.ok()) file->path().copy(name.data(), name.size() - 1);
  }
  Status agreed = broadcast(communicator, name, policy);
  const std::string path(name.data(), strnlen(name.data(), name.size()));
  if (agreed.ok() && !leader && !path.empty()) segment = attach(path, folder, mapped);
  if (agreed.ok()) agreed = agree(communicator, segment.status(), policy);
  file.reset();
  if (!agreed.ok()) return agreed;
  return SharedSegment(segment->bytes().first(bytes), std::make_shared<SharedSegment>(*segment));
}

}  // namespace cox::transport
