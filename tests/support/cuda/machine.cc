#include "tests/support/cuda/machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/support/cuda/faults.h"

namespace cox::standin {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kDeviceGrain = 512;  // bytes, as cudaMalloc aligns
constexpr std::size_t kPinnedBytes = 64ull << 30;
constexpr int kReportedRaces = 20;

thread_local bool holds_lock = false;

const char* variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// Counts the listed devices up to the first that does not exist, as CUDA does.
int visible_devices(int present) {
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return present;
  std::istringstream names(list);
  std::string name;
  int count = 0;
  while (std::getline(names, name, ',')) {
    char* end = nullptr;
    const long ordinal = std::strtol(name.c_str(), &end, 10);
    if (end == name.c_str() || ordinal < 0 || ordinal >= present) break;
    ++count;
  }
  return count;
}

double now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

}  // namespace

Script script_from_environment() {
  Script script;
  const int present = std::atoi(variable("CUDA_STANDIN_DEVICES", "1"));
  script.devices = visible_devices(present);
  script.driver = std::strcmp(variable("CUDA_STANDIN_DRIVER", "yes"), "no") != 0;
  script.capacity_bytes = std::strtoull(variable("CUDA_STANDIN_BYTES", "2147483648"), nullptr, 10);
  script.capability = std::atoi(variable("CUDA_STANDIN_CAPABILITY", "90"));
  script.unready_queries = std::atoi(variable("CUDA_STANDIN_UNREADY_QUERIES", "1"));
  script.go_on = std::strcmp(variable("CUDA_STANDIN_GO_ON", "no"), "yes") == 0;
  script.report_folder = variable("CUDA_STANDIN_REPORT", "");
  return script;
}

Machine& Machine::get() {
  static auto* machine = new Machine;  // outlives destructors that free memory
  return *machine;
}

Machine::Machine()
    : script_(script_from_environment()), pinned_(kPinnedBytes, kPage, PROT_READ | PROT_WRITE) {
  for (int device = 0; device < script_.devices; ++device) {
    devices_.push_back(
        std::make_unique<TwofoldMemory>(script_.capacity_bytes, kDeviceGrain, PROT_NONE));
  }
  for (int device = 0; device < std::max(script_.devices, 1); ++device) new_stream(device, true);
  watch_faults();
}

Machine::Lock::Lock() : lock_(Machine::get().mutex_) {
  holds_lock = true;
}
Machine::Lock::~Lock() {
  holds_lock = false;
}

// ---- streams

Stream* Machine::new_stream(int device, bool blocking) {
  auto stream = std::make_unique<Stream>();
  stream->actor = static_cast<Actor>(streams_.size());
  stream->device = device;
  stream->blocking = blocking;
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

Stream* Machine::stream(void* handle, int current_device) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 1) return streams_[static_cast<std::size_t>(current_device)].get();  // legacy
  return static_cast<Stream*>(handle);
}

void Machine::submit(Stream& stream) {
  Stream& standard = *streams_[static_cast<std::size_t>(stream.device)];
  if (&stream == &standard) {
    for (const auto& other : streams_)
      if (other->blocking && other->device == stream.device) stream.clock.join(other->clock);
  } else if (stream.blocking) {
    stream.clock.join(standard.clock);
  }
  watch_faults();
  stream.clock.join(host_);
  stream.clock.advance(stream.actor);
  stream.unready_queries = script_.unready_queries;
}

void Machine::enqueue(Stream& stream, std::function<bool()> work) {
  stream.queue.push_back(std::move(work));
  ++stream.submitted;
  advance();
}

void Machine::advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& stream : streams_) {
      while (!stream->queue.empty() && stream->queue.front()()) {
        stream->queue.pop_front();
        ++stream->done;
        moved = true;
      }
    }
  }
  progress_.notify_all();
}

void Machine::drain(Stream& stream, Lock& lock) {
  const std::uint64_t until = stream.submitted;
  sleep_until([&] { return stream.done >= until; }, lock);
}

void Machine::sleep_until(const std::function<bool()>& ready, Lock& lock) {
  holds_lock = false;
  progress_.wait(lock.held(), ready);
  holds_lock = true;
}

void Machine::host_joins(const Clock& clock) {
  host_.join(clock);
  open_to_host();
}

void Machine::host_joins_device(int device, Lock& lock) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = *streams_[i];
    if (stream.device != device) continue;
    drain(stream, lock);
    host_.join(stream.clock);
  }
  open_to_host();
}

// ---- events

void Machine::record(Event& event, Stream& stream) {
  submit(stream);
  auto recording = std::make_shared<Recording>();
  recording->stream = &stream;
  recording->until = stream.submitted + 1;
  recording->clock = stream.clock;
  recording->actor = stream.actor;
  recording->tick = stream.clock.of(stream.actor);
  event.last = recording;
  event.unready_queries = script_.unready_queries;
  enqueue(stream, [recording] {
    recording->at_ms = now_ms();
    return true;
  });
}

bool Machine::complete(const Event& event) const {
  return event.last == nullptr || event.last->stream->done >= event.last->until;
}

void Machine::drain(const Event& event, Lock& lock) {
  const auto recording = event.last;
  if (recording == nullptr) return;
  sleep_until([&] { return recording->stream->done >= recording->until; }, lock);
}

void Machine::wait_for(Stream& stream, const Event& event) {
  submit(stream);
  if (event.last == nullptr) return;
  stream.clock.join(event.last->clock);
  if (complete(event) && stream.queue.empty()) return;
  enqueue(stream, [recording = event.last] { return recording->stream->done >= recording->until; });
}

// ---- memory

void* Machine::device_allocate(int device, std::size_t bytes) {
  return devices_[static_cast<std::size_t>(device)]->allocate(bytes);
}

bool Machine::device_free(void* begin, Lock& lock) {
  const int device = device_of(begin);
  if (device < 0) return false;
  host_joins_device(device, lock);
  ++counters.frees;
  const auto block = devices_[static_cast<std::size_t>(device)]->find(begin);
  if (!block || block->begin != begin) return false;
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  accesses_.forget(from, from + block->bytes);
  devices_[static_cast<std::size_t>(device)]->release(begin);
  return true;
}

void* Machine::pinned_allocate(std::size_t bytes) {
  return pinned_.allocate(bytes);
}

bool Machine::pinned_free(void* begin, Lock& lock) {
  const auto block = pinned_.find(begin);
  if (!block || block->begin != begin) return false;
  for (int device = 0; device < script_.devices; ++device) host_joins_device(device, lock);
  ++counters.frees;
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  accesses_.forget(from, from + block->bytes);
  pinned_.release(begin);
  return true;
}

int Machine::device_of(const void* address) const {
  for (std::size_t device = 0; device < devices_.size(); ++device)
    if (devices_[device]->contains(address)) return static_cast<int>(device);
  return -1;
}

bool Machine::is_pinned(const void* address) const {
  return pinned_.contains(address);
}

void* Machine::shadow(const void* address) const {
  const int device = device_of(address);
  if (device >= 0) return devices_[static_cast<std::size_t>(device)]->shadow(address);
  if (is_pinned(address)) return pinned_.shadow(address);
  return const_cast<void*>(address);
}

bool Machine::is_allocated(const void* address, std::size_t bytes) const {
  const int device = device_of(address);
  if (device < 0 && !is_pinned(address)) return true;  // ordinary host memory
  const auto block = device >= 0 ? devices_[static_cast<std::size_t>(device)]->find(address)
                                 : pinned_.find(address);
  return block && static_cast<const char*>(address) + bytes <= block->begin + block->bytes;
}

void Machine::note(const void* address, std::size_t bytes, bool writes, Stream& stream,
                   const char* what) {
  if (bytes == 0 || (device_of(address) < 0 && !is_pinned(address))) return;
  const Access access{stream.actor, stream.clock.of(stream.actor), what};
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  accesses_.enter(begin, begin + bytes, writes, access, stream.clock,
                  [this](const Race& race) { report_race(race); });
  if (is_pinned(address)) close_to_host(address, access, writes);
}

void Machine::close_to_host(const void* address, const Access& access, bool writes) {
  const auto block = pinned_.find(address);
  if (!block) return;
  auto& uses = in_flight_[block->begin];
  uses.push_back({access, writes});
  bool written = false;
  for (const Use& use : uses) written |= use.writes;
  TwofoldMemory::protect(*block, written ? PROT_NONE : PROT_READ);
}

void Machine::open_to_host() {
  for (auto i = in_flight_.begin(); i != in_flight_.end();) {
    auto& uses = i->second;
    const std::size_t before = uses.size();
    std::erase_if(uses,
                  [&](const Use& use) { return host_knows(use.access.actor, use.access.tick); });
    if (uses.size() == before) {
      ++i;
      continue;
    }
    bool written = false;
    for (const Use& use : uses) written |= use.writes;
    const int open = uses.empty() ? PROT_READ | PROT_WRITE : written ? PROT_NONE : PROT_READ;
    TwofoldMemory::protect(*pinned_.find(i->first), open);
    i = uses.empty() ? in_flight_.erase(i) : std::next(i);
  }
}

// ---- reports

std::string Machine::place(std::uintptr_t address) const {
  const auto* at = reinterpret_cast<const void*>(address);
  const int device = device_of(at);
  const auto block =
      device >= 0 ? devices_[static_cast<std::size_t>(device)]->find(at) : pinned_.find(at);
  std::ostringstream text;
  text << (device >= 0 ? "device memory" : "pinned memory") << " at " << at;
  if (block)
    text << " (" << static_cast<const char*>(at) - block->begin << " bytes into a block of "
         << block->bytes << ")";
  return text.str();
}

void Machine::write_line(const std::string& line) const {
  if (script_.report_folder.empty()) return;
  const std::string path = script_.report_folder + "/" + std::to_string(getpid());
  if (std::FILE* file = std::fopen(path.c_str(), "a")) {
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
}

void Machine::report(const std::string& line) const {
  if (counters.races + counters.host_accesses <= kReportedRaces)
    std::fprintf(stderr, "stand-in CUDA runtime: %s\n", line.c_str());
  write_line(line);
}

std::uint64_t Machine::take_races() {
  const std::uint64_t since = counters.races - taken_races_;
  taken_races_ = counters.races;
  if (since > 0) write_line("taken: " + std::to_string(since));
  return since;
}

void Machine::report_race(const Race& race) {
  ++counters.races;
  std::ostringstream text;
  text << "race: " << race.later.what << " on stream " << race.later.actor
       << (race.later_writes ? " writes " : " reads ") << place(race.address) << ", which "
       << race.earlier.what << " on stream " << race.earlier.actor
       << (race.earlier_writes ? " writes" : " reads") << " without order before it";
  report(text.str());
}

bool Machine::fault(const void* address, bool writes) {
  if (holds_lock || (device_of(address) < 0 && !is_pinned(address))) return false;
  Lock lock;
  if (device_of(address) >= 0) {
    ++counters.host_accesses;
    report(std::string("host access: the host ") + (writes ? "writes " : "reads ") +
           place(reinterpret_cast<std::uintptr_t>(address)));
    if (script_.go_on) TwofoldMemory::open_page(address);
    return script_.go_on;
  }
  const auto block = pinned_.find(address);
  if (!block) return false;
  const auto uses = in_flight_.find(block->begin);
  if (uses == in_flight_.end()) return true;  // another thread has opened the memory meanwhile
  ++counters.races;
  const Use& use = uses->second.back();
  report(std::string("race: the host ") + (writes ? "writes " : "reads ") +
         place(reinterpret_cast<std::uintptr_t>(address)) + ", which " + use.access.what +
         " on stream " + std::to_string(use.access.actor) + (use.writes ? " writes" : " reads") +
         ", before it synchronised with that");
  in_flight_.erase(uses);
  TwofoldMemory::protect(*block, PROT_READ | PROT_WRITE);
  return true;
}

std::uint64_t Machine::synchronisations() const {
  return counters.stream_synchronisations + counters.event_synchronisations +
         counters.device_synchronisations + counters.blocking_copies + counters.operator_waits;
}

bool Machine::finish() {
  Lock lock;
  const auto& c = counters;
  std::ostringstream text;
  text << "end: " << c.kernels << " kernels, " << c.copies_to_device << " copies to a device, "
       << c.copies_to_host << " to the host, " << synchronisations() << " synchronisations ("
       << c.stream_synchronisations << " of streams, " << c.event_synchronisations << " of events, "
       << c.device_synchronisations << " of devices, " << c.blocking_copies << " blocking copies, "
       << c.operator_waits << " by operators), " << c.races << " races, " << taken_races_
       << " of them planted, " << c.host_accesses << " host accesses";
  const bool failed = c.races > taken_races_ || c.host_accesses > 0;
  if (failed) std::fprintf(stderr, "stand-in CUDA runtime: %s\n", text.str().c_str());
  write_line(text.str());
  return failed;
}

}  // namespace cox::standin
