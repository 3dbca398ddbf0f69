// The interface of the stand-in CUDA runtime (libcudart.so.13 of tests/support/cuda) to the other
// stand-ins and to tests. All functions are exported by that library: link it, or look a name up
// with dlsym(RTLD_DEFAULT, name), which finds nothing where a program runs on the real runtime.
//
// What the runtime does: device memory is a file in memory that is mapped twice. At its *device
// address*, which cudaMalloc returns, it can never be accessed, so that any access by the host
// faults; at its *shadow address* "kernels" reach it. Pinned memory is mapped twice too: at its
// host address it is closed to the host (to writes only, while a stream reads it) from the moment
// at which a stream is given work on it until the host has synchronised with that work. Kernels run
// at once, in the thread that launches them; what they access is compared with vector clocks of
// streams, events and the host, so that an access without order is a *race*, whichever way the two
// happened to run.
//
// Thread rule: all functions may be called from any thread. Streams and events are cudaStream_t and
// cudaEvent_t, passed as void*; a null stream is the default stream of the current device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The address at which the bytes of a device or pinned address can be read and written; any other
// address as it is.
void* cox_standin_shadow(const void* address);

// The number of the device whose memory holds this address, -1 where none does.
int cox_standin_device_of(const void* address);

// Notes that the work last submitted to `stream` reads, or (writes != 0) writes, `bytes` bytes at
// `address`, and counts a race where an earlier access to any of them is not ordered before it.
// `what` names the work in the report.
void cox_standin_note(const void* address, size_t bytes, int writes, void* stream,
                      const char* what);

// Submits a kernel that runs now in this thread: waits until all work before it on the stream is
// done (which is no synchronisation: a real launch would return at once), and orders it after
// everything that the host knows of. Call cox_standin_note for each of its arguments afterwards.
void cox_standin_launch(void* stream);

// Asynchronous work, such as a collective that a worker completes. Everything submitted to the
// stream after cox_standin_begin stays pending until cox_standin_finish: events recorded behind it
// answer cudaErrorNotReady, copies and memsets are queued, and who synchronises with it sleeps. The
// caller notes its accesses right after begin.
typedef struct cox_standin_work cox_standin_work;
cox_standin_work* cox_standin_begin(void* stream);

// Sleeps until all earlier work on the stream is done, so that this work may touch its memory (by
// shadow addresses); for workers, never for the thread that submits. Returns 1 then, 0 where the
// work was finished meanwhile.
int cox_standin_wait_turn(cox_standin_work* work);

// Ends the work, before its turn came where it must, as an aborted collective does. To finish it
// again, or to wait for its turn afterwards, is allowed and does nothing.
void cox_standin_finish(cox_standin_work* work);

// Where the host waited for a device, counted where it happens. A blocking copy waits for its
// stream too, and counts once, as a copy.
typedef struct cox_standin_counters {
  uint64_t stream_synchronisations;
  uint64_t event_synchronisations;
  uint64_t device_synchronisations;
  uint64_t blocking_copies;  // also asynchronous ones from or to memory that is not pinned: the
                             // driver stages them
  uint64_t operator_waits;   // .item(), and operators whose result's size depends on data, such as
                             // nonzero
  uint64_t frees;            // cudaFree and cudaFreeHost wait for the device; not part of the sum
  uint64_t kernels;
  uint64_t copies_to_host;
  uint64_t copies_to_device;
  uint64_t races;
  uint64_t host_accesses;  // by the host to device memory; the process ends at the first
} cox_standin_counters;
void cox_standin_read_counters(cox_standin_counters* counters);

// The sum of the waits above. The difference of two readings is what a piece of a program waited.
uint64_t cox_standin_synchronisations(void);

// The number of races since the last call, which are hereby forgotten: for tests that plant one. A
// process that has any left at its end leaves with exit code 86.
uint64_t cox_standin_take_races(void);

// As cudaStreamSynchronize, counted as an operator's wait (`operator_wait` != 0) or as a blocking
// copy.
void cox_standin_wait(void* stream, int operator_wait);

#ifdef __cplusplus
}
#endif
