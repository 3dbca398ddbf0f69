// The one machine that a process sees through the stand-in runtime: devices, streams, events,
// device and pinned memory. cudart.cc gives it CUDA's functions, stand_in.cc those of stand_in.h.
//
// Flow: submit() enters work into the program order of a stream and joins what the host knows;
// note() compares what the work accesses; enqueue() has it done when its turn comes (at once,
// mostly). Completion makes no order: only what a stream or the host waited for does.
//
// Thread rule: members are used under `Machine::Lock`, apart from what is said to lock by itself.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cuda/memory.h"
#include "tests/support/cuda/order.h"
#include "tests/support/cuda/stand_in.h"

namespace cox::standin {

// What environment variables script (tests/support/cuda/README.md).
struct Script {
  int devices = 1;                          // after CUDA_VISIBLE_DEVICES
  bool driver = true;                       // false: as on a machine without one
  std::size_t capacity_bytes = 2ull << 30;  // of each device
  int capability = 90;                      // 10 * major + minor
  int unready_queries = 1;  // how often an event that is complete answers that it is not
  bool go_on =
      false;  // after an access by the host to device memory, which is a failure all the same
  std::string report_folder;  // gets a file per process; empty: none
};
Script script_from_environment();

struct Stream {
  Actor actor = 0;
  int device = 0;
  bool blocking = false;  // ordered with the default stream by itself
  Clock clock;            // what is ordered before its next work
  std::deque<std::function<bool()>>
      queue;  // each does its work and returns true when its turn can end
  std::uint64_t submitted = 0, done = 0;  // of `queue`
  int unready_queries = 0;                // still to be answered so
};

// What an event stands for since it was last recorded.
struct Recording {
  Stream* stream = nullptr;
  std::uint64_t until = 0;  // done when stream->done reaches it
  Clock clock;
  Actor actor = 0;
  std::uint64_t tick = 0;
  double at_ms = 0;
};

struct Event {
  bool timing = true;
  std::shared_ptr<Recording> last;  // nullptr: never recorded
  int unready_queries = 0;
};

class Machine {
 public:
  static Machine& get();

  class Lock {
   public:
    Lock();
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    std::unique_lock<std::mutex>& held() { return lock_; }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  const Script& script() const { return script_; }

  // Streams.
  Stream* stream(void* handle, int current_device);
  Stream* new_stream(int device, bool blocking);
  void submit(Stream& stream);
  void enqueue(Stream& stream, std::function<bool()> work);
  void advance();                          // does all work whose turn has come
  void drain(Stream& stream, Lock& lock);  // sleeps until nothing is pending; no order
  void sleep_until(const std::function<bool()>& ready, Lock& lock);
  bool host_knows(Actor actor, std::uint64_t tick) const { return host_.of(actor) >= tick; }
  void host_joins(const Clock& clock);
  void host_joins_device(int device, Lock& lock);

  // Events.
  void record(Event& event, Stream& stream);
  bool complete(const Event& event) const;
  void drain(const Event& event, Lock& lock);
  void wait_for(Stream& stream, const Event& event);

  // Memory. device_of: -1 where no device holds the address.
  void* device_allocate(int device, std::size_t bytes);
  bool device_free(void* begin, Lock& lock);
  void* pinned_allocate(std::size_t bytes);
  bool pinned_free(void* begin, Lock& lock);
  int device_of(const void* address) const;   // needs no lock
  bool is_pinned(const void* address) const;  // needs no lock
  void* shadow(const void* address) const;    // needs no lock
  bool is_allocated(const void* address, std::size_t bytes) const;
  std::size_t used_bytes(int device) const { return devices_[device]->used_bytes(); }

  void note(const void* address, std::size_t bytes, bool writes, Stream& stream, const char* what);

  // The host touched memory that is closed to it. Returns true where it may go on: a race with
  // pinned memory, which was counted. Locks by itself.
  bool fault(const void* address, bool writes);

  // The end of the process: writes the report. Returns true where there were races or accesses by
  // the host.
  bool finish();

  std::uint64_t synchronisations() const;

  std::uint64_t take_races();  // those since the last call

  cox_standin_counters counters{};

 private:
  Machine();
  void report(const std::string& line) const;
  void write_line(const std::string& line) const;
  void report_race(const Race& race);
  void close_to_host(const void* address, const Access& access, bool writes);
  void open_to_host();
  std::string place(std::uintptr_t address) const;

  struct Use {
    Access access;
    bool writes = false;
  };

  Script script_;
  std::uint64_t taken_races_ = 0;
  std::mutex mutex_;
  std::condition_variable progress_;
  std::vector<std::unique_ptr<Stream>>
      streams_;  // the first ones are the devices' default streams; index = actor
  Clock host_;
  std::vector<std::unique_ptr<TwofoldMemory>> devices_;
  TwofoldMemory pinned_;
  std::map<char*, std::vector<Use>>
      in_flight_;  // per pinned block, what the host has not synchronised with
  AccessMap accesses_;
};

}  // namespace cox::standin
