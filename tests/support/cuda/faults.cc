#include "tests/support/cuda/faults.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>

#include "tests/support/cuda/machine.h"

namespace cox::standin {
namespace {

constexpr int kExitCode = 86;           // for a process with races
constexpr greg_t kWriteFault = 1 << 1;  // in the processor's error code

struct sigaction previous {};  // global, because a handler can reach no other place

volatile sig_atomic_t handed_on = 0;  // a handler may restore ours and raise the signal again

void hand_on(int number, siginfo_t* info, void* context) {
  const bool again = handed_on != 0;
  handed_on = 1;
  if (again) {
    signal(number, SIG_DFL);
  } else if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else {
    signal(number, SIG_DFL);  // the instruction faults again and ends the process
  }
}

void on_fault(int number, siginfo_t* info, void* context) {
  const auto* registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  const bool writes = (registers[REG_ERR] & kWriteFault) != 0;
  if (!Machine::get().fault(info->si_addr, writes)) hand_on(number, info, context);
}

void at_end(int code, void*) {
  if (!Machine::get().finish() || code != 0) return;
  std::fflush(nullptr);
  _exit(kExitCode);
}

[[gnu::constructor]] void start() {
  on_exit(at_end, nullptr);
}

}  // namespace

void watch_faults() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  previous = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace cox::standin
