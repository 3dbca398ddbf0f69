// Files as the coordinator and the SDK read and write them: replaced whole or not at all, read with
// a limit, and refused where they are no regular files. Each failing call becomes a Status that
// names the file and the reason. All functions block on the disk; one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "coordinator/io/descriptor.h"
#include "coordinator/io/open_to_write.h"

namespace cox::io {

// Returns the code that stands for an errno: resource_exhausted (disk, quota, descriptors, memory),
// not_found (no such file or folder), failed_precondition (not allowed); `otherwise` for the rest.
StatusCode code_of_errno(int error, StatusCode otherwise = StatusCode::unavailable);

// Returns "<doing>: <the system's text>" with that code.
// REQUIRES: error != 0.
Status errno_status(int error, const std::string& doing,
                    StatusCode otherwise = StatusCode::unavailable);

// Bytes that come piece by piece, so that a file is read in the memory of one piece: each call
// returns the next bytes, valid until the one after it, and none at the end; an error ends the
// reading.
using NextBytes = std::function<Result<std::string_view>()>;

// Returns a text as one piece. The text outlives the reading.
NextBytes one_piece(std::string_view text);

// Writes all of `bytes`. Returns 0, or the errno of the call that failed.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes);

// Blocks by which files are written past the system's memory: a multiple of those of all disks.
inline constexpr std::size_t kBlockBytes = 4096;

// A file that appears whole or not at all. Bytes go to a temporary file in the same folder;
// commit() syncs it, renames it over the target, then syncs the folder. Without a commit the
// destructor removes the temporary file, and whatever the target held before is untouched.
class AtomicFile {
 public:
  // Errors: not_found (no such folder), failed_precondition (may not write there).
  static Result<AtomicFile> create(const std::filesystem::path& target);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // Lets bytes pass by the system's memory for files while each write is of whole blocks of
  // kBlockBytes at a multiple of them in memory, and the file system can.
  void bypass_cache();
  // Errors: resource_exhausted when disk, quota or file-size limit is used up.
  Status write(const void* data, std::size_t bytes);
  // REQUIRES: no call of write() failed, and commit() was not called before.
  Status commit();

 private:
  AtomicFile(std::filesystem::path target, TemporaryFile made);
  void use_cache();
  int write_bytes(std::string_view bytes);
  Status fail(const std::string& doing, int error) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once there is nothing to remove
  Descriptor file_;                  // none once closed
  bool is_bypassing_ = false;
  std::uint64_t size_bytes_ = 0;
};

// Replaces the file by one with this content, through an AtomicFile. After an error the old file is
// still there.
Status replace_file(const std::filesystem::path& target, std::string_view content);

// Removes what AtomicFiles of a process that was killed have left in the folder: regular files with
// the names of their temporary ones. Errors are ignored. REQUIRES: nobody writes files there.
void remove_temporaries(const std::filesystem::path& folder);

// Returns the folder that a file's path is in.
std::filesystem::path folder_of(const std::filesystem::path& file);

// Makes the names in a folder durable: what was created, renamed or removed in it.
Status sync_folder(const std::filesystem::path& folder);

// Says whether a path may end in a symbolic link. Files that a user names may be links; the files
// of a folder that we wrote ourselves are none, so a link there was put in their place.
enum class Links { followed, refused };

// Whether something has that name, be it a link that leads nowhere.
bool is_there(const std::filesystem::path& path);

// Returns the size of an open file, which `path` names in messages. failed_precondition when it is
// no regular file: a pipe, device or folder.
Result<std::uint64_t> regular_size(int descriptor, const std::filesystem::path& path);

// Returns "PATH: expected a regular file, found a link", failed_precondition.
Status found_link(const std::filesystem::path& path);

// A regular file opened for reading, with the size it had then. A read that falls short is an
// error, so a file that is cut while it is read gives a message and no undefined memory.
class InputFile {
 public:
  // Never waits for the other end of a pipe. Errors: not_found, failed_precondition (no permission;
  // a pipe, device or folder; a link where those are refused), resource_exhausted (descriptors).
  static Result<InputFile> open(const std::filesystem::path& path, Links links = Links::followed);

  std::uint64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return file_.number(); }

  // Fills `bytes` bytes at `out` from `offset`, or fails with data_loss.
  Status read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const;
  // Passes the file piece by piece, each of at most `most_bytes` and valid during the call. A
  // complaint of `take` ends the reading.
  Status each_piece(std::size_t most_bytes,
                    const std::function<Status(std::string_view piece)>& take) const;

 private:
  explicit InputFile(int descriptor) : file_(descriptor) {}

  Descriptor file_;
  std::uint64_t size_bytes_ = 0;
};

// Reads a whole file. Errors: those of InputFile; resource_exhausted if it has more than
// `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                              Links links = Links::followed);

}  // namespace cox::io
