#include "tests/support/cuda/stand_in.h"

#include <cuda_runtime_api.h>

#include <set>

#include "tests/support/cuda/machine.h"

using cox::standin::Machine;
using cox::standin::Stream;
using Lock = Machine::Lock;

struct cox_standin_work {
  Stream* stream = nullptr;
  std::uint64_t before = 0;  // the turn comes when the stream has completed this much
  bool finished = false;
};

namespace {

Machine& machine() {
  return Machine::get();
}

Stream& of(void* stream) {
  int device = 0;
  cudaGetDevice(&device);
  return *machine().stream(stream, device);
}

// Keeps names for reports, which name work long after its submission.
const char* kept(const char* what) {
  static auto* names = new std::set<std::string>;
  return names->insert(what).first->c_str();
}

}  // namespace

void* cox_standin_shadow(const void* address) {
  return machine().shadow(address);
}

int cox_standin_device_of(const void* address) {
  return machine().device_of(address);
}

void cox_standin_note(const void* address, size_t bytes, int writes, void* stream,
                      const char* what) {
  Lock lock;
  machine().note(address, bytes, writes != 0, of(stream), kept(what));
}

void cox_standin_launch(void* stream) {
  Lock lock;
  machine().drain(of(stream), lock);
  machine().submit(of(stream));
  ++machine().counters.kernels;
}

cox_standin_work* cox_standin_begin(void* stream) {
  Lock lock;
  auto* work = new cox_standin_work;  // never freed: a worker may hold aborted work
  work->stream = &of(stream);
  work->before = work->stream->submitted;
  machine().submit(*work->stream);
  machine().enqueue(*work->stream, [work] { return work->finished; });
  return work;
}

int cox_standin_wait_turn(cox_standin_work* work) {
  Lock lock;
  const auto ready = [&] { return work->finished || work->stream->done >= work->before; };
  machine().sleep_until(ready, lock);
  return work->finished ? 0 : 1;
}

void cox_standin_finish(cox_standin_work* work) {
  Lock lock;
  work->finished = true;
  machine().advance();
}

void cox_standin_read_counters(cox_standin_counters* counters) {
  Lock lock;
  *counters = machine().counters;
}

uint64_t cox_standin_synchronisations(void) {
  Lock lock;
  return machine().synchronisations();
}

uint64_t cox_standin_take_races(void) {
  Lock lock;
  return machine().take_races();
}

void cox_standin_wait(void* stream, int operator_wait) {
  Lock lock;
  ++(operator_wait != 0 ? machine().counters.operator_waits : machine().counters.blocking_copies);
  machine().drain(of(stream), lock);
  machine().host_joins(of(stream).clock);
}
