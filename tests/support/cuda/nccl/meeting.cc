#include "tests/support/cuda/nccl/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

namespace cox::test {
namespace {

// Names of memory that some ranks have not opened. Removes them at exit, whatever the other ranks
// do.
class Leftovers {
 public:
  ~Leftovers() {
    for (const std::string& name : names_) shm_unlink(name.c_str());
  }
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
  }
  void remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    names_.erase(name);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

Leftovers& leftovers() {
  static Leftovers kept;
  return kept;
}

constexpr int kYields = 30;
constexpr std::chrono::microseconds kSleep{50};

}  // namespace

struct Meeting::Shared {
  std::atomic<std::int32_t> ranks;  // 0 = no rank has opened the memory
  std::atomic<std::int32_t> opened;
  struct Seat {
    alignas(64) std::atomic<std::uint64_t> barriers;
    CollectiveCall calls[2];  // the last two collectives
  } seats[kMostRanks];
  std::byte slots[kMostRanks][kSlotBytes];
};

std::string describe(const CollectiveCall& call) {
  static const char* const kKinds[] = {"broadcast", "all-reduce", "reduce-scatter", "all-gather"};
  char text[160];
  std::snprintf(text, sizeof text, "%s of %llu elements of type %d, operator %d, root %d",
                kKinds[call.kind], static_cast<unsigned long long>(call.count), call.type,
                call.operation, call.root);
  return text;
}

std::unique_ptr<Meeting> Meeting::open(const std::string& name, int ranks, int rank) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return nullptr;
  leftovers().add(name);
  void* memory = MAP_FAILED;
  if (ftruncate(file, sizeof(Shared)) == 0) {
    memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  auto* shared = static_cast<Shared*>(memory);  // zeros are a valid state
  std::int32_t nobody = 0;
  const bool is_first = shared->ranks.compare_exchange_strong(nobody, ranks);
  if (!is_first && nobody != ranks) {
    munmap(memory, sizeof(Shared));
    return nullptr;
  }
  if (shared->opened.fetch_add(1) + 1 == ranks) shm_unlink(name.c_str());
  return std::unique_ptr<Meeting>(new Meeting(shared, name, ranks, rank));
}

Meeting::Meeting(Shared* shared, std::string name, int ranks, int rank)
    : shared_(shared), name_(std::move(name)), ranks_(ranks), rank_(rank) {}

Meeting::~Meeting() {
  if (shared_->opened.load() >= ranks_) leftovers().remove(name_);
  munmap(shared_, sizeof(Shared));
}

bool Meeting::barrier(const std::function<bool()>& gives_up) {
  ++passed_;
  shared_->seats[rank_].barriers.store(passed_, std::memory_order_release);
  int vain = 0;
  for (int r = 0; r < ranks_;) {
    if (shared_->seats[r].barriers.load(std::memory_order_acquire) >= passed_) {
      ++r;
      continue;
    }
    if (gives_up()) return false;
    if (++vain < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  return true;
}

void Meeting::declare(std::uint64_t op, const CollectiveCall& call) {
  shared_->seats[rank_].calls[op % 2] = call;
}

CollectiveCall Meeting::declared(std::uint64_t op, int rank) const {
  return shared_->seats[rank].calls[op % 2];
}

std::byte* Meeting::slot(int rank) {
  return shared_->slots[rank];
}

}  // namespace cox::test
