// Files of the coordinator and the SDK. Files are replaced whole or not at all, read with a limit,
// and refused if they are not regular. A failing call returns a Status with the file and the
// reason. All functions block on the disk; one thread per object.
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

// Returns the code for an errno: resource_exhausted (disk, quota, descriptors, memory), not_found
// (no such file or folder), failed_precondition (not allowed), or `otherwise`.
StatusCode code_of_errno(int error, StatusCode otherwise = StatusCode::unavailable);

// Returns "<doing>: <the system's text>" with the code of code_of_errno(). REQUIRES: error != 0.
Status errno_status(int error, const std::string& doing,
                    StatusCode otherwise = StatusCode::unavailable);

// NextBytes delivers a file piece by piece, so that a reader needs memory for one piece only. Each
// call returns the next bytes, valid until the next call, and none at the end. An error ends the
// reading.
using NextBytes = std::function<Result<std::string_view>()>;

// Returns a text as one piece. The text must outlive the reading.
NextBytes one_piece(std::string_view text);

// Writes all of `bytes`. Returns 0, or the errno of the failed call.
[[nodiscard]] int write_all(int descriptor, std::string_view bytes);

// Block size of writes that bypass the page cache: a multiple of every disk's block size.
inline constexpr std::size_t kBlockBytes = 4096;

// AtomicFile writes a file that appears whole or not at all. write() puts bytes into a temporary
// file in the same folder. commit() syncs the file, renames it to the target, then syncs the
// folder. Without a commit, the destructor removes the temporary file and the target stays
// untouched.
class AtomicFile {
 public:
  // Creates the temporary file. Errors: not_found (no such folder), failed_precondition (no
  // permission to write there).
  static Result<AtomicFile> create(const std::filesystem::path& target);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  // Bypasses the page cache from now on, if the file system can. Writes must consist of whole
  // blocks of kBlockBytes, aligned to kBlockBytes in memory. The first other write returns to the
  // cache for good.
  void bypass_cache();
  // Appends bytes. Errors: resource_exhausted when disk, quota or file-size limit is used up.
  Status write(const void* data, std::size_t bytes);
  // Publishes the file under the target's name. REQUIRES: no write() failed; commit() was not
  // called before.
  Status commit();

 private:
  AtomicFile(std::filesystem::path target, TemporaryFile made);
  void use_cache();
  int write_bytes(std::string_view bytes);
  Status fail(const std::string& doing, int error) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty if there is nothing to remove
  Descriptor file_;                  // none after close
  bool is_bypassing_ = false;
  std::uint64_t size_bytes_ = 0;
};

// Replaces the file with this content, through an AtomicFile. After an error the old file is still
// there.
Status replace_file(const std::filesystem::path& target, std::string_view content);

// Removes the temporary files that AtomicFiles of killed processes left in the folder. Recognises
// regular files by name. Ignores errors. REQUIRES: no process writes files there.
void remove_temporaries(const std::filesystem::path& folder);

// Returns the parent folder of a file.
std::filesystem::path folder_of(const std::filesystem::path& file);

// Makes changes of names in a folder durable: files created, renamed or removed.
Status sync_folder(const std::filesystem::path& folder);

// Links says whether a path may end in a symbolic link. A user may name a link. Files in Coxswain's
// own folders are never links, so a link there is a replacement and is refused.
enum class Links { followed, refused };

// Returns whether the name exists, also if it is a dangling link.
bool is_there(const std::filesystem::path& path);

// Returns the size of an open file; `path` is for messages. Returns failed_precondition for a pipe,
// device or folder.
Result<std::uint64_t> regular_size(int descriptor, const std::filesystem::path& path);

// Returns "PATH: expected a regular file, found a link", failed_precondition.
Status found_link(const std::filesystem::path& path);

// InputFile is a regular file opened for reading, with its size at opening. A short read is an
// error, so a file that is cut while it is read gives a message instead of undefined memory.
class InputFile {
 public:
  // Opens a file. Never blocks on a pipe without a writer. Errors: not_found, failed_precondition
  // (no permission; a pipe, device or folder; a link if refused), resource_exhausted (descriptors).
  static Result<InputFile> open(const std::filesystem::path& path, Links links = Links::followed);

  std::uint64_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return file_.number(); }

  // Reads `bytes` bytes at `offset` into `out`. Returns data_loss if the file is shorter.
  Status read_at(std::uint64_t offset, void* out, std::uint64_t bytes) const;
  // Passes the file to `take` in pieces of at most `most_bytes`. A piece is valid during the call.
  // An error of `take` ends the reading.
  Status each_piece(std::size_t most_bytes,
                    const std::function<Status(std::string_view piece)>& take) const;

 private:
  explicit InputFile(int descriptor) : file_(descriptor) {}

  Descriptor file_;
  std::uint64_t size_bytes_ = 0;
};

// Returns the content of a whole file. Errors: those of InputFile; resource_exhausted for a file
// longer than `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes,
                              Links links = Links::followed);

}  // namespace cox::io
