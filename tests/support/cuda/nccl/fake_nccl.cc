// A libnccl.so.2 for tests: the 11 functions of NCCL that Coxswain calls, between threads or
// processes of one machine, without a GPU. Calls return at once, as in the real library. Each
// communicator has a worker that waits until the stream reaches the collective, meets the other
// ranks in shared memory, and moves the bytes. COX_FAKE_NCCL scripts faults (script.h).
//
// The fake reports misuse with which the real library would hang or corrupt data. Ranks with
// different calls get ncclInvalidUsage and both texts. So does a call before the rank's last call
// has settled, on any communicator. A null or dead communicator ends the program.
//
// Sums add ascending ranks in the precision of the elements; the real library promises no order. An
// aborted collective leaves its buffers undefined.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/transport/nccl/abi.h"
#include "tests/support/cuda/nccl/communicator.h"
#include "tests/support/cuda/nccl/stream_seam.h"

namespace cox::transport::nccl {
namespace {

constexpr int kVersion = 22809;

std::atomic<const StreamSeam*> g_seam{nullptr};

// Returns the streams of the stand-in runtime; null if it is not loaded.
const StreamSeam* stand_in_streams() {
  static const StreamSeam found = [] {
    StreamSeam it{};
    const auto look = [](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    };
    look(it.begin, "cox_standin_begin");
    look(it.note, "cox_standin_note");
    look(it.wait_turn, "cox_standin_wait_turn");
    look(it.finish, "cox_standin_finish");
    look(it.shadow, "cox_standin_shadow");
    return it;
  }();
  return found.begin != nullptr ? &found : nullptr;
}

thread_local std::string t_last_error;

}  // namespace

const StreamSeam* streams() {
  const StreamSeam* chosen = g_seam.load();
  return chosen != nullptr ? chosen : stand_in_streams();
}

namespace {

// The living communicators. Never destroyed, because workers may outlive main().
struct Living {
  std::mutex mutex;
  std::set<Communicator*> all;
};
Living& living() {
  static auto* const kept = new Living;
  return *kept;
}

void must_live(Communicator* communicator, const char* function) {
  const std::lock_guard lock(living().mutex);
  if (living().all.contains(communicator)) return;
  std::fprintf(stderr, "fake NCCL: %s: %s communicator\n", function,
               communicator == nullptr ? "a null" : "an unknown or dead");
  std::abort();
}

void bury(Communicator* communicator) {
  {
    const std::lock_guard lock(living().mutex);
    living().all.erase(communicator);
  }
  delete communicator;
}

// Returns whether the rank's collective on another communicator has not reached its stream yet. The
// two collectives could then reach the device in a different order on different ranks. Compares
// ranks, because in some tests ranks are threads of one process.
bool is_another_launching(const Communicator* communicator) {
  const std::lock_guard lock(living().mutex);
  return std::ranges::any_of(living().all, [&](Communicator* other) {
    return other != communicator && other->rank() == communicator->rank() && other->is_launching();
  });
}

Outcome submit(Communicator* communicator, const Collective& call) {
  must_live(communicator, kNames[call.call.kind]);
  if (is_another_launching(communicator)) {
    return communicator->refuse("a call before that of another communicator has settled");
  }
  return communicator->launch(call);
}

Collective collective(Kind kind, const void* send, void* receive, std::size_t count, Type type,
                      Operator operation, int root, void* stream) {
  Collective made;
  made.call = {kind, static_cast<std::int32_t>(type), static_cast<std::int32_t>(operation), root,
               count};
  made.send = send;
  made.receive = receive;
  made.stream = stream;
  return made;
}

Outcome refuse(Outcome outcome, const char* text) {
  t_last_error = std::string("fake NCCL: ") + text;
  return outcome;
}

}  // namespace
}  // namespace cox::transport::nccl

using namespace cox::transport::nccl;  // NOLINT: C functions follow

#define COX_EXPORT extern "C" __attribute__((visibility("default")))

COX_EXPORT void cox_fake_nccl_use_streams(const cox::test::StreamSeam* seam) {
  g_seam.store(seam);
}

COX_EXPORT Outcome ncclGetVersion(int* version) {
  *version = static_cast<int>(script_now().version(kVersion));
  return Outcome::success;
}

COX_EXPORT Outcome ncclGetUniqueId(UniqueId* id) {
  static std::atomic<std::uint32_t> serials{0};
  NamedId named{kMagic, serials++, {}};
  std::random_device random;
  std::snprintf(named.name, sizeof named.name, "/cox-fake-nccl-%d-%u-%x", getpid(), named.serial,
                random());
  *id = {};
  std::memcpy(id, &named, sizeof named);
  return Outcome::success;
}

COX_EXPORT Outcome ncclCommInitRankConfig(Communicator** made, int ranks, UniqueId id, int rank,
                                          Config* config) {
  *made = nullptr;
  NamedId named;
  std::memcpy(&named, &id, sizeof named);
  if (named.magic != kMagic) return refuse(Outcome::invalid_argument, "no unique id");
  if (config->magic != Config{}.magic || config->size < sizeof(Config)) {
    return refuse(Outcome::invalid_argument, "a configuration that was not initialized");
  }
  if (ranks < 1 || ranks > cox::test::kMostRanks || rank < 0 || rank >= ranks) {
    return refuse(Outcome::invalid_argument, "too many ranks, or a rank out of range");
  }
  if (script_now().of_init(named.serial, rank) == InitFault::fail) {
    return refuse(Outcome::system_error, "its start was scripted to fail at once");
  }
  auto* communicator = new Communicator(named, ranks, rank);
  {
    const std::lock_guard lock(living().mutex);
    living().all.insert(communicator);
  }
  *made = communicator;
  if (config->blocking == 0) return Outcome::in_progress;
  communicator->wait_for_start();
  return communicator->state();
}

COX_EXPORT Outcome ncclCommGetAsyncError(Communicator* communicator, Outcome* state) {
  must_live(communicator, "ncclCommGetAsyncError");
  *state = communicator->state();
  return Outcome::success;
}

COX_EXPORT Outcome ncclCommFinalize(Communicator* communicator) {
  must_live(communicator, "ncclCommFinalize");
  return communicator->finalize();
}

COX_EXPORT Outcome ncclCommDestroy(Communicator* communicator) {
  must_live(communicator, "ncclCommDestroy");
  bury(communicator);
  return Outcome::success;
}

COX_EXPORT Outcome ncclCommAbort(Communicator* communicator) {
  must_live(communicator, "ncclCommAbort");
  while (communicator->hangs_in_abort()) pause();
  bury(communicator);
  return Outcome::success;
}

COX_EXPORT const char* ncclGetErrorString(Outcome outcome) {
  static const char* const kNames[] = {"no error",       "unhandled cuda error", "system error",
                                       "internal error", "invalid argument",     "invalid usage",
                                       "remote error",   "in progress"};
  return kNames[static_cast<int>(outcome)];
}

COX_EXPORT const char* ncclGetLastError(Communicator* communicator) {
  if (communicator != nullptr) {
    must_live(communicator, "ncclGetLastError");
    t_last_error = communicator->last_error();
  }
  return t_last_error.c_str();
}

COX_EXPORT Outcome ncclBroadcast(const void* send, void* receive, std::size_t count, Type type,
                                 int root, Communicator* communicator, void* stream) {
  return submit(communicator,
                collective(kBroadcast, send, receive, count, type, Operator::sum, root, stream));
}

COX_EXPORT Outcome ncclAllReduce(const void* send, void* receive, std::size_t count, Type type,
                                 Operator operation, Communicator* communicator, void* stream) {
  return submit(communicator,
                collective(kAllReduce, send, receive, count, type, operation, 0, stream));
}
