#include "sdk/src/shard/fault_names.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

namespace cox::detail {

// The lines that the handler reads. Each text is a complete line, because a signal handler must not
// format or allocate.
struct FaultNames::Table {
  struct Line {
    const std::byte* begin;
    const std::byte* end;
    std::string text;
  };
  std::vector<Line> lines;
  std::atomic<bool> is_used{true};
};

class FaultHandler {
 public:
  // Returns a table that the handler reads from now on. If kMost tables are in use, the handler
  // ignores the new one.
  static FaultNames::Table* add(std::vector<FaultNames::Table::Line> lines) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    install();
    static const int told_of_forks = pthread_atfork(nullptr, &tell_of_fork, nullptr);
    static_cast<void>(told_of_forks);  // if registration fails, forks are not warned of
    auto* table = new FaultNames::Table{std::move(lines)};  // never freed: the handler may read it
    for (std::atomic<FaultNames::Table*>& place : tables_) {
      FaultNames::Table* held = place.load();
      if (held != nullptr && held->is_used) continue;
      place.store(table);
      break;
    }
    return table;
  }

 private:
  static constexpr std::size_t kMost = 64;

  // Installs our handler if it is not the current one. The current handler becomes `former_`, and
  // ours passes faults on to it.
  static void install() {
    struct sigaction ours {};
    ours.sa_sigaction = &handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    struct sigaction found {};
    sigaction(SIGSEGV, nullptr, &found);
    const bool is_ours = (found.sa_flags & SA_SIGINFO) != 0 && found.sa_sigaction == &handle;
    if (!is_ours) sigaction(SIGSEGV, &ours, &former_);
  }

  // Warns once per process, because a program may fork in each step.
  static void tell_of_fork() {
    static std::atomic<bool> is_told{false};
    const bool has_any = std::ranges::any_of(tables_, [](const auto& place) {
      const FaultNames::Table* table = place.load();
      return table != nullptr && table->is_used;
    });
    if (!has_any || is_told.exchange(true)) return;
    constexpr std::string_view kLine =
        "warning: shard.mode: a child of fork() sees the weights that ranks write later; clone() "
        "what it reads before fork()\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  }

  static void handle(int signal, siginfo_t* info, void* context) {
    const auto* address = static_cast<const std::byte*>(info->si_addr);
    for (const std::atomic<FaultNames::Table*>& place : tables_) {
      const FaultNames::Table* table = place.load();
      if (table == nullptr || !table->is_used) continue;
      for (const auto& line : table->lines) {
        if (address < line.begin || address >= line.end) continue;
        [[maybe_unused]] const auto written =
            ::write(STDERR_FILENO, line.text.data(), line.text.size());
      }
    }
    pass_on(signal, info, context);
  }

  static void pass_on(int signal, siginfo_t* info, void* context) {
    // A handler installed after ours may pass the signal back to ours.
    static thread_local bool is_passed_on = false;
    if (std::exchange(is_passed_on, true)) return end_by_default();
    if ((former_.sa_flags & SA_SIGINFO) != 0) return former_.sa_sigaction(signal, info, context);
    const bool is_plain = former_.sa_handler == SIG_DFL || former_.sa_handler == SIG_IGN;
    if (!is_plain) return former_.sa_handler(signal);
    end_by_default();
  }

  // The faulting instruction runs again when the handler returns, and then ends the process.
  static void end_by_default() {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(SIGSEGV, &plain, nullptr);
  }

  static inline std::array<std::atomic<FaultNames::Table*>, kMost> tables_{};
  static inline struct sigaction former_ {};
};

FaultNames::FaultNames(std::vector<NamedMemory> memory)
    : table_([&] {
        std::vector<Table::Line> lines;
        for (NamedMemory& each : memory) {
          lines.push_back(
              {each.begin, each.begin + each.bytes,
               "error: shard.mode: expected writes to " + each.name +
                   " by LibTorch's operators on the training thread, found a write outside of them "
                   "(data_ptr(), another thread, or a hook of backward); train this loop "
                   "without shard.mode\n"});
        }
        return FaultHandler::add(std::move(lines));
      }()) {}

FaultNames::~FaultNames() {
  table_->is_used = false;
}

}  // namespace cox::detail
