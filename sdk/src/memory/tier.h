// The tier of offloading: a file in a folder of the user's that takes bytes out of memory for a
// while. TierFile reads and writes it, TierSpace knows which of its bytes are in use, TierThread
// copies in the background, and measure_tier() tells the planner how fast a folder is. OffloadStore
// owns one of each. Standard library and POSIX only.
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

// TierFile is a file without a name. The system removes it when the process ends, however that
// happens. Reads and writes go through the system's page cache; those of different places may run
// on different threads at once.
class TierFile {
 public:
  // Returns not_found for a missing folder; failed_precondition, resource_exhausted or internal for
  // a folder in which no file can be made.
  static Result<TierFile> create(const std::filesystem::path& folder);
  TierFile(TierFile&& other) noexcept;
  TierFile& operator=(TierFile&&) = delete;
  ~TierFile();

  const std::filesystem::path& folder() const { return folder_; }
  // Blocks until all bytes are written. Returns resource_exhausted for a full disk, and for a limit
  // on file sizes while an io::FileSizeSignal lives.
  Status write(const void* data, std::int64_t bytes, std::int64_t offset) const;
  // Blocks until all bytes are read. Returns data_loss when the file ends before that.
  Status read(void* data, std::int64_t bytes, std::int64_t offset) const;

 private:
  TierFile(std::filesystem::path folder, int descriptor);

  std::filesystem::path folder_;
  int descriptor_;
};

// TierSpace hands out the first gap of a file that is wide enough, in whole pages, so that equal
// requests in equal order get equal places. A plain value without a lock.
class TierSpace {
 public:
  static constexpr std::int64_t kPage = 4096;

  // `capacity` is in bytes and is rounded down to pages.
  explicit TierSpace(std::int64_t capacity);

  // Returns the offset of `bytes` that are in use from now on, or nothing when no gap is wide
  // enough. REQUIRES: bytes > 0.
  std::optional<std::int64_t> take(std::int64_t bytes);
  // REQUIRES: take(bytes) returned `offset`, and it has not been given back since.
  void give_back(std::int64_t offset, std::int64_t bytes);

  std::int64_t used() const { return used_; }

 private:
  std::map<std::int64_t, std::int64_t> gaps_;  // from offset to width; no two are adjacent
  std::int64_t used_ = 0;                      // in whole pages
};

// Transfer is one copy between memory and a tier. The owner sets the first four fields and reads
// `error` once finish() has returned failed; the rest belongs to the tier.
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
  std::uint64_t hash = 0;      // of what a write copied, and of what a read must find
  std::shared_ptr<void> kept;  // from a write to the reads of it, where the tier has no file
};

// Tier takes bytes out of memory and brings them back. The owner of a transfer also owns the memory
// that it names; the tier borrows both between start() and the end of finish() or cancel().
class Tier {
 public:
  virtual ~Tier() = default;
  // Begins the transfer and does not block. REQUIRES: kind, data, bytes and offset are set, and the
  // transfer is neither queued nor running.
  virtual void start(Transfer& transfer) = 0;
  // Returns done or failed, when the memory may be used again: by the host for a TierThread, which
  // blocks until then, by the current stream for a PinnedTier. Returns at once for an idle one.
  virtual Transfer::State finish(Transfer& transfer) = 0;
  // Makes the transfer idle; the memory may then be used as after finish().
  virtual void cancel(Transfer& transfer) = 0;
};

// TierThread is one thread that copies memory to a TierFile and back. Reads overtake writes,
// because somebody waits for them. A caller that waits for a transfer that has not begun copies it
// itself. Whoever copies hashes: a read whose bytes are not those of its write fails with
// data_loss. Any thread may call any function, but only one thread at a time for one transfer.
class TierThread final : public Tier {
 public:
  enum class Verify : bool { off, on };
  explicit TierThread(TierFile file, Verify verify = Verify::on);
  // REQUIRES: every transfer that was started has been finished or cancelled.
  ~TierThread() override;

  // Returns resource_exhausted where the thread could not be started: finish() copies then.
  const Status& thread_status() const { return thread_status_; }

  void start(Transfer& transfer) override;
  Transfer::State finish(Transfer& transfer) override;
  // Blocks for one piece of the copy at most.
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

// Measures how fast a folder takes and gives back bytes, in the way offloading works: through the
// page cache, hashed, without waiting for the disk. Returns the bytes of a millisecond in the
// slower of the two directions. The result holds while the system has memory for the cache, and is
// too good once the disk itself has to keep up. Blocks while it writes and reads `bytes` three
// times in a file that is gone afterwards, uses as much memory meanwhile, and returns the median.
// Does not communicate; to learn what remains when all ranks copy at once, all ranks call it at the
// same time. Returns the errors of TierFile.
Result<std::int64_t> measure_tier(const std::filesystem::path& folder,
                                  std::int64_t bytes = std::int64_t{32} << 20);

}  // namespace cox::detail
