#include "sdk/src/memory/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <atomic>
#include <utility>

namespace cox::detail {
namespace {

// A process-wide object. torch requires the context of a CPU pointer to be the pointer itself, so a
// tensor's deleter is a plain function that can only reach globals.
class CountingAllocator final : public c10::Allocator {
 public:
  // Never destroyed: tensors may outlive main().
  static CountingAllocator& get() {
    static auto* allocator = new CountingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = wrapped()->allocate(bytes);
    if (bytes == 0 || memory.get() == nullptr) return memory;
    if (memory.get_context() != memory.get()) return memory;  // not recognisable at the free
    const auto added = static_cast<std::int64_t>(bytes);
    // A known address was freed unseen, by the wrapped allocator's own deleter.
    const std::int64_t stale = table_.insert(memory.get(), added);
    if (!memory.compare_exchange_deleter(wrapped()->raw_deleter(), &release)) {
      table_.erase(memory.get());
      live_.fetch_sub(stale, std::memory_order_relaxed);
      return memory;
    }
    const std::int64_t live =
        live_.fetch_add(added - stale, std::memory_order_relaxed) + added - stale;
    raise_peak(live);
    return memory;
  }

  c10::DataPtr allocate_pages(std::size_t bytes) {
    void* pages =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return c10::GetCPUAllocator()->allocate(bytes);
    const auto added = static_cast<std::int64_t>(bytes);
    table_.insert(pages, added);
    raise_peak(live_.fetch_add(added, std::memory_order_relaxed) + added);
    return {pages, pages, &release_pages, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    wrapped()->copy_data(to, from, bytes);
  }

  c10::Allocator* wrapped() const { return wrapped_.load(std::memory_order_relaxed); }
  void wrap(c10::Allocator* allocator) { wrapped_.store(allocator, std::memory_order_relaxed); }

  MemoryCount count() const {
    return {live_.load(std::memory_order_relaxed), peak_.load(std::memory_order_relaxed)};
  }
  void reset_peak() { peak_.store(live_.load(std::memory_order_relaxed)); }

 private:
  // Also frees memory missing in the table. oneDNN's glue frees through the current allocator, even
  // memory allocated before the installation.
  static void release(void* pointer) {
    CountingAllocator& self = get();
    self.live_.fetch_sub(self.table_.erase(pointer), std::memory_order_relaxed);
    self.wrapped()->raw_deleter()(pointer);
  }

  static void release_pages(void* pages) {
    CountingAllocator& self = get();
    const std::int64_t bytes = self.table_.erase(pages);
    self.live_.fetch_sub(bytes, std::memory_order_relaxed);
    ::munmap(pages, static_cast<std::size_t>(bytes));
  }

  void raise_peak(std::int64_t live) {
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < live && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }

  std::atomic<c10::Allocator*> wrapped_{nullptr};
  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
  AddressTable table_;
};

}  // namespace

// Addresses of tensors are multiples of 64.
AddressTable::Part& AddressTable::part_of(const void* address) noexcept {
  return parts_[(reinterpret_cast<std::uintptr_t>(address) / 64) % parts_.size()];
}

std::int64_t AddressTable::insert(const void* address, std::int64_t bytes) {
  Part& part = part_of(address);
  const std::lock_guard lock(part.mutex);
  const auto [known, is_new] = part.bytes.try_emplace(address, bytes);
  return is_new ? 0 : std::exchange(known->second, bytes);
}

std::int64_t AddressTable::erase(const void* address) noexcept {
  Part& part = part_of(address);
  const std::lock_guard lock(part.mutex);
  const auto known = part.bytes.find(address);
  if (known == part.bytes.end()) return 0;
  const std::int64_t bytes = known->second;
  part.bytes.erase(known);
  return bytes;
}

bool counting_allocator_installed() {
  return c10::GetCPUAllocator() == &CountingAllocator::get();
}

Status install_counting_allocator() {
  if (counting_allocator_installed()) return ok_status();
  c10::Allocator* before = c10::GetCPUAllocator();
  if (before == nullptr || before->raw_deleter() == nullptr) {
    return failed_precondition(
        "CPU allocator: expected an allocator with a plain deleter, such as torch's own, found a "
        "different one; bytes of tensors are not counted");
  }
  CountingAllocator& ours = CountingAllocator::get();
  if (ours.wrapped() != nullptr && ours.wrapped() != before) {
    return failed_precondition(
        "CPU allocator: expected the allocator of the first count, found a different one; install "
        "the count after the last change of the allocator");
  }
  ours.wrap(before);
  c10::SetCPUAllocator(&ours);
  if (counting_allocator_installed()) return ok_status();
  return failed_precondition(
      "CPU allocator: expected an allocator that can be replaced, found one of higher priority; "
      "bytes of tensors are not counted");
}

c10::DataPtr allocate_apart(std::size_t bytes) {
  constexpr std::size_t kLeast = 1 << 16;
  return bytes < kLeast ? c10::GetCPUAllocator()->allocate(bytes)
                        : CountingAllocator::get().allocate_pages(bytes);
}

MemoryCount counted_memory() {
  return CountingAllocator::get().count();
}

void reset_counted_peak() {
  CountingAllocator::get().reset_peak();
}

}  // namespace cox::detail
