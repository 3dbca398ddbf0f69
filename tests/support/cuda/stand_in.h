// The interface of the stand-in CUDA runtime (libcudart.so.13 of tests/support/cuda) to the other
// stand-ins and to tests. Link the library, or look a name up with dlsym(RTLD_DEFAULT, name), which
// finds nothing on the real runtime.
//
// Device memory is a file in memory, mapped twice. Any host access to its *device address*
// (returned by cudaMalloc) faults; "kernels" use its *shadow address*. Pinned memory is mapped
// twice, too. A host address of pinned memory closes when work on the memory is submitted (for
// writes only, if a stream reads), and opens when the host synchronises with the work.
//
// Kernels run at once, in the launching thread. Vector clocks of streams, events and the host order
// their accesses: an unordered access is a *race*, whatever the actual timing.
//
// Thread rule: any thread may call any function. Streams and events are cudaStream_t and
// cudaEvent_t, passed as void*; a null stream is the default stream of the current device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns the address for reading and writing the bytes of a device or pinned address; returns any
// other address unchanged.
void* cox_standin_shadow(const void* address);

// Returns the number of the device whose memory holds this address; -1 if there is none.
int cox_standin_device_of(const void* address);

// Declares that the work last submitted to `stream` reads, or (writes != 0) writes, `bytes` bytes
// at `address`. Counts a race if an earlier access to any of these bytes is not ordered before it.
// `what` names the work in the report.
void cox_standin_note(const void* address, size_t bytes, int writes, void* stream,
                      const char* what);

// Submits a kernel that runs now in this thread. First waits for all earlier work on the stream.
// The wait is no synchronisation: a real launch would return at once. Orders the kernel after
// everything that the host knows. Call cox_standin_note for each of its arguments afterwards.
void cox_standin_launch(void* stream);

// Asynchronous work, such as a collective that a worker completes. All later work on the stream
// stays pending from cox_standin_begin to cox_standin_finish: events answer cudaErrorNotReady,
// copies and memsets are queued, and synchronising threads sleep. The caller declares the work's
// accesses right after begin.
typedef struct cox_standin_work cox_standin_work;
cox_standin_work* cox_standin_begin(void* stream);

// Sleeps until all earlier work on the stream is done, so that this work may access its memory by
// shadow addresses. Call it on workers, never on the submitting thread. Returns 1, or 0 if the work
// was finished meanwhile.
int cox_standin_wait_turn(cox_standin_work* work);

// Ends the work, even before its turn, as an aborted collective does. Later calls with the same
// work do nothing.
void cox_standin_finish(cox_standin_work* work);

// Waits of the host for a device, counted by cause. A blocking copy also waits for its stream, and
// counts once, as a copy.
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
  uint64_t host_accesses;  // to device memory; the process ends at the first
} cox_standin_counters;
void cox_standin_read_counters(cox_standin_counters* counters);

// Returns the sum of the waits above. The difference of two readings counts the waits between them.
uint64_t cox_standin_synchronisations(void);

// Returns the number of races since the last call and forgets them, for tests that plant one. A
// process with remaining races at its end exits with code 86.
uint64_t cox_standin_take_races(void);

// Acts as cudaStreamSynchronize, counted as an operator's wait (`operator_wait` != 0) or as a
// blocking copy.
void cox_standin_wait(void* stream, int operator_wait);

#ifdef __cplusplus
}
#endif
