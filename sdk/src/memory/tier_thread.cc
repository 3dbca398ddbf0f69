#include "sdk/src/memory/tier_thread.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace cox::detail {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

Status copy_piece(const TierFile& file, const Transfer& transfer, std::int64_t done) {
  char* data = static_cast<char*>(transfer.data) + done;
  const std::int64_t bytes = std::min(kPieceBytes, transfer.bytes - done);
  return transfer.kind == Transfer::Kind::write ? file.write(data, bytes, transfer.offset + done)
                                                : file.read(data, bytes, transfer.offset + done);
}

}  // namespace

TierThread::TierThread(TierFile file) : file_(std::move(file)) {
  // Signals are for the threads of the program: this one starts with all of them blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TierThread::~TierThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
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

// In pieces, so that a transfer nobody needs any more ends soon. The lock is free meanwhile.
void TierThread::copy(Transfer& transfer, std::unique_lock<std::mutex>& lock) {
  transfer.state = Transfer::State::running;
  Status status;
  for (std::int64_t done = 0; done < transfer.bytes && status.ok() && !transfer.abandoned;
       done += kPieceBytes) {
    lock.unlock();
    status = copy_piece(file_, transfer, done);
    lock.lock();
  }
  transfer.state = status.ok() ? Transfer::State::done : Transfer::State::failed;
  transfer.error = std::move(status);
  changed_.notify_all();
}

}  // namespace cox::detail
