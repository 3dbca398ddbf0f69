#include "sdk/src/memory/tier.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/io/content_hash.h"
#include "coordinator/io/file.h"
#include "coordinator/io/open_to_write.h"
#include "coordinator/io/thread.h"

namespace cox::detail {
namespace {

Status failed(const std::filesystem::path& folder, const char* doing, int error) {
  return io::errno_status(error, "offload folder " + folder.string() + ": " + doing,
                          StatusCode::internal);
}

std::int64_t in_pages(std::int64_t bytes) {
  return (bytes + TierSpace::kPage - 1) / TierSpace::kPage * TierSpace::kPage;
}

// Small enough to hash the bytes in the cache that the copy filled.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

std::int64_t piece_bytes(const Transfer& transfer, std::int64_t done) {
  return std::min(kPieceBytes, transfer.bytes - done);
}

Status copy_piece(const TierFile& file, const Transfer& transfer, std::int64_t done) {
  char* data = static_cast<char*>(transfer.data) + done;
  const std::int64_t bytes = piece_bytes(transfer, done);
  return transfer.kind == Transfer::Kind::write ? file.write(data, bytes, transfer.offset + done)
                                                : file.read(data, bytes, transfer.offset + done);
}

std::span<const std::byte> piece(const Transfer& transfer, std::int64_t done) {
  return {static_cast<const std::byte*>(transfer.data) + done,
          static_cast<std::size_t>(piece_bytes(transfer, done))};
}

using Clock = std::chrono::steady_clock;

std::int64_t bytes_per_ms(std::int64_t bytes, Clock::duration taken) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  return bytes * 1000 / std::max<std::int64_t>(us, 1);
}

}  // namespace

Result<TierFile> TierFile::create(const std::filesystem::path& folder) {
  io::Descriptor file = io::create_unnamed(folder);
  if (!file.is_open()) return failed(folder, "cannot create a file in it", errno);
  return TierFile(folder, file.release());
}

TierFile::TierFile(std::filesystem::path folder, int descriptor)
    : folder_(std::move(folder)), descriptor_(descriptor) {}

TierFile::TierFile(TierFile&& other) noexcept
    : folder_(std::move(other.folder_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

TierFile::~TierFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status TierFile::write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, next, static_cast<std::size_t>(bytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(folder_, "cannot write", errno);
    next += written;
    offset += written;
    bytes -= written;
  }
  return ok_status();
}

Status TierFile::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, next, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(folder_, "cannot read", errno);
    if (got == 0) {
      return data_loss("offload folder " + folder_.string() + ": expected " +
                       std::to_string(bytes) + " more bytes at offset " + std::to_string(offset) +
                       ", found the end of the file");
    }
    next += got;
    offset += got;
    bytes -= got;
  }
  return ok_status();
}

TierSpace::TierSpace(std::int64_t capacity) {
  const std::int64_t whole = capacity / kPage * kPage;
  if (whole > 0) gaps_.emplace(0, whole);
}

std::optional<std::int64_t> TierSpace::take(std::int64_t bytes) {
  const std::int64_t width = in_pages(bytes);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < width) continue;
    const auto [offset, gap_width] = *gap;
    gaps_.erase(gap);
    if (gap_width > width) gaps_.emplace(offset + width, gap_width - width);
    used_ += width;
    return offset;
  }
  return std::nullopt;
}

void TierSpace::give_back(std::int64_t offset, std::int64_t bytes) {
  std::int64_t width = in_pages(bytes);
  used_ -= width;
  auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && next->first == offset + width) {
    width += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += width;
      return;
    }
  }
  gaps_.emplace(offset, width);
}

TierThread::TierThread(TierFile file, Verify verify) : file_(std::move(file)), verify_(verify) {
  auto started = io::start_thread("offload", [this] { work(); });
  thread_status_ = started.status();
  if (started.ok()) thread_ = *std::move(started);
}

TierThread::~TierThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TierThread::start(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    transfer.state = Transfer::State::queued;
    transfer.abandoned = false;
    transfer.error = ok_status();
    (transfer.kind == Transfer::Kind::read ? reads_ : writes_).push_back(&transfer);
  }
  changed_.notify_all();
}

Transfer::State TierThread::finish(Transfer& transfer) {
  std::unique_lock lock(mutex_);
  if (transfer.state == Transfer::State::queued) {
    take_from_queue(transfer);
    copy(transfer, lock);
  }
  changed_.wait(lock, [&] { return transfer.state != Transfer::State::running; });
  return transfer.state;
}

void TierThread::cancel(Transfer& transfer) {
  std::unique_lock lock(mutex_);
  if (transfer.state == Transfer::State::queued) take_from_queue(transfer);
  transfer.abandoned = true;
  changed_.wait(lock, [&] { return transfer.state != Transfer::State::running; });
  transfer.state = Transfer::State::idle;
}

void TierThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !reads_.empty() || !writes_.empty(); });
    if (ending_) return;
    copy(*next_queued(), lock);
  }
}

Transfer* TierThread::next_queued() {
  std::deque<Transfer*>& queue = reads_.empty() ? writes_ : reads_;
  Transfer* next = queue.front();
  queue.pop_front();
  return next;
}

void TierThread::take_from_queue(Transfer& transfer) {
  std::erase(transfer.kind == Transfer::Kind::read ? reads_ : writes_, &transfer);
}

// Copies in pieces with the lock free, so that an abandoned transfer ends soon.
void TierThread::copy(Transfer& transfer, std::unique_lock<std::mutex>& lock) {
  transfer.state = Transfer::State::running;
  Status status;
  io::ContentHash hash;
  for (std::int64_t done = 0; done < transfer.bytes && status.ok() && !transfer.abandoned;
       done += kPieceBytes) {
    lock.unlock();
    status = copy_piece(file_, transfer, done);
    if (verify_ == Verify::on) hash.add(piece(transfer, done));
    lock.lock();
  }
  if (status.ok() && !transfer.abandoned) status = check(transfer, hash.value());
  transfer.state = status.ok() ? Transfer::State::done : Transfer::State::failed;
  transfer.error = std::move(status);
  changed_.notify_all();
}

Status TierThread::check(Transfer& transfer, std::uint64_t hash) const {
  if (transfer.kind == Transfer::Kind::write) transfer.hash = hash;
  if (hash == transfer.hash) return ok_status();
  return data_loss("offload folder ", file_.folder().string(), ": expected the ",
                   std::to_string(transfer.bytes), " bytes that were written at offset ",
                   std::to_string(transfer.offset), " (hash ", io::to_hex(transfer.hash),
                   "), found different bytes (hash ", io::to_hex(hash),
                   "); the disk or another process changed the file");
}

Result<std::int64_t> measure_tier(const std::filesystem::path& folder, std::int64_t bytes) {
  Result<TierFile> file = TierFile::create(folder);
  if (!file.ok()) return file.status();
  std::vector<char> data(static_cast<std::size_t>(bytes), 1);
  std::array<std::int64_t, 3> writes{};
  std::array<std::int64_t, 3> reads{};
  for (std::size_t round = 0; round < writes.size(); ++round) {
    const Clock::time_point begin = Clock::now();
    if (Status status = file->write(data.data(), bytes, 0); !status.ok()) return status;
    const std::uint64_t hash_written = io::content_hash(std::as_bytes(std::span(data)));
    const Clock::time_point written = Clock::now();
    if (Status status = file->read(data.data(), bytes, 0); !status.ok()) return status;
    if (io::content_hash(std::as_bytes(std::span(data))) != hash_written) {
      return data_loss("offload folder ", folder.string(),
                       ": expected the bytes that were written, found different ones");
    }
    writes[round] = bytes_per_ms(bytes, written - begin);
    reads[round] = bytes_per_ms(bytes, Clock::now() - written);
  }
  std::ranges::sort(writes);
  std::ranges::sort(reads);
  return std::min(writes[1], reads[1]);
}

}  // namespace cox::detail
