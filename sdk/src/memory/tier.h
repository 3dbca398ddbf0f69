// The tier of offloading is a file in a user's folder that stores bytes for a while. TierFile reads
// and writes the file; TierSpace allocates its pages; TierThread copies in the background;
// measure_tier() measures a folder's speed for the planner. OffloadStore owns one of each. Standard
// library and POSIX only.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "coordinator/core/status.h"

namespace cox::detail {

// TierFile is a file without a name. The system removes it when the process ends, also after a
// crash. Reads and writes go through the page cache; threads may use different places at once.
class TierFile {
 public:
  // Returns not_found for a missing folder. Returns failed_precondition, resource_exhausted or
  // internal if no file can be made in the folder.
  static Result<TierFile> create(const std::filesystem::path& folder);
  TierFile(TierFile&& other) noexcept;
  TierFile& operator=(TierFile&&) = delete;
  ~TierFile();

  const std::filesystem::path& folder() const { return folder_; }
  // Blocks until all bytes are written. Returns resource_exhausted for a full disk, and for a limit
  // on file sizes while an io::FileSizeSignal lives.
  Status write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  // Blocks until all bytes are read. Returns data_loss if the file ends early.
  Status read(void* data, std::int64_t bytes, std::int64_t offset) const;

 private:
  TierFile(std::filesystem::path folder, int descriptor);

  std::filesystem::path folder_;
  int descriptor_;
};

// TierSpace allocates the first gap that is wide enough, in whole pages. Equal requests in equal
// order get equal places. A plain value without a lock.
class TierSpace {
 public:
  static constexpr std::int64_t kPage = 4096;

  // `capacity` is in bytes and is rounded down to pages.
  explicit TierSpace(std::int64_t capacity);

  // Allocates `bytes` and returns their offset, or nothing if no gap is wide enough. REQUIRES:
  // bytes > 0.
  std::optional<std::int64_t> take(std::int64_t bytes);
  // REQUIRES: take(bytes) returned `offset`, not given back since.
  void give_back(std::int64_t offset, std::int64_t bytes);

  std::int64_t used() const { return used_; }

 private:
  std::map<std::int64_t, std::int64_t> gaps_;  // from offset to width; no two are adjacent
  std::int64_t used_ = 0;                      // in whole pages
};

// Transfer is one copy between memory and a tier. The owner sets the first four fields, and reads
// `error` after finish() returned failed. The tier owns the other fields.
struct Transfer {
  enum class Kind { write, read };
  enum class State { idle, queued, running, done, failed };

  Kind kind = Kind::write;
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // in the file

  State state = State::idle;
  bool abandoned = false;
  Status error;
  std::uint64_t hash = 0;      // hash of a write's bytes, which a read must match
  std::shared_ptr<void> kept;  // the buffer from a write to its reads, for a tier without a file
};

// Tier moves bytes out of memory and back. The owner of a transfer also owns its memory; the tier
// borrows both from start() to the end of finish() or cancel().
class Tier {
 public:
  virtual ~Tier() = default;
  // Begins the transfer without blocking. REQUIRES: kind, data, bytes and offset are set, and the
  // transfer is neither queued nor running.
  virtual void start(Transfer& transfer) = 0;
  // Returns done or failed when the memory may be used again. A TierThread blocks until the host
  // may use the memory; after a PinnedTier's return the current stream may. Returns at once for an
  // idle transfer.
  virtual Transfer::State finish(Transfer& transfer) = 0;
  // Makes the transfer idle; the memory may then be used as after finish().
  virtual void cancel(Transfer& transfer) = 0;
};

// TierThread is one thread that copies memory to a TierFile and back. Reads overtake writes,
// because a caller waits for a read. A caller waiting for a queued transfer copies it itself. Every
// copy hashes: a read with other bytes than its write fails with data_loss. Any thread may call any
// function; one thread at a time for each transfer.
class TierThread final : public Tier {
 public:
  enum class Verify : bool { off, on };
  explicit TierThread(TierFile file, Verify verify = Verify::on);
  // REQUIRES: every started transfer has been finished or cancelled.
  ~TierThread() override;

  // Returns resource_exhausted if the thread could not start: finish() copies then.
  const Status& thread_status() const { return thread_status_; }

  void start(Transfer& transfer) override;
  Transfer::State finish(Transfer& transfer) override;
  // Blocks for at most one piece of the copy.
  void cancel(Transfer& transfer) override;

 private:
  void work();
  Transfer* next_queued();
  void take_from_queue(Transfer& transfer);
  void copy(Transfer& transfer, std::unique_lock<std::mutex>& lock);
  Status check(Transfer& transfer, std::uint64_t hash) const;

  const TierFile file_;
  const Verify verify_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Transfer*> reads_;
  std::deque<Transfer*> writes_;
  bool ending_ = false;
  Status thread_status_;
  std::thread thread_;  // declared last, because it uses the others
};

// Measures a folder's speed as offloading uses it: through the page cache, hashed, without waiting
// for the disk. Returns the bytes of a millisecond in the slower direction, the median of three
// trials. The result holds while the system has memory for the cache, and is too high if the disk
// itself must keep up. Blocks while writing and reading `bytes` three times in a temporary file,
// and uses as much memory. Does not communicate; ranks call it at the same time to measure
// concurrent copies. Returns the errors of TierFile.
Result<std::int64_t> measure_tier(const std::filesystem::path& folder,
                                  std::int64_t bytes = std::int64_t{32} << 20);

}  // namespace cox::detail
