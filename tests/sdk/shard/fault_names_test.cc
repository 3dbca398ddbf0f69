#include "sdk/src/shard/fault_names.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

constexpr std::size_t kBytes = 4096;
constexpr int kCaught = 7;  // exit code of a child whose own handler was called

struct End {
  int status = 0;
  std::string text;  // what the child wrote to its standard error

  bool is_by_fault() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV; }
  bool is_caught() const { return WIFEXITED(status) && WEXITSTATUS(status) == kCaught; }
  bool says(const char* words) const { return text.find(words) != std::string::npos; }
};

End end_of(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);  // the test program has a handler of its own
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  End end;
  std::array<char, 512> part{};
  for (ssize_t got = 0; (got = ::read(ends[0], part.data(), part.size())) > 0;)
    end.text.append(part.data(), static_cast<std::size_t>(got));
  ::close(ends[0]);
  ::waitpid(child, &end.status, 0);
  return end;
}

std::byte* read_only_page() {
  void* page = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : static_cast<std::byte*>(page);
}

FaultNames name(const std::byte* page) {
  return FaultNames({{page, kBytes, "parameter 0.weight"}});
}

void write_to(std::byte* page) {
  *static_cast<volatile std::byte*>(page) = std::byte{1};
}

std::array<char, 1 << 16> other_stack;

void install_handler(int flags, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  ::sigaction(SIGSEGV, &action, nullptr);
}

void exit_caught(int, siginfo_t*, void*) {
  ::_exit(kCaught);
}

void exit_caught_on_other_stack(int, siginfo_t*, void*) {
  char here = 0;
  volatile const char* place = &here;
  const bool is_there =
      place >= other_stack.data() && place < other_stack.data() + other_stack.size();
  ::_exit(is_there ? kCaught : 0);
}

}  // namespace

TEST_SUITE("fault names") {
  TEST_CASE("a write to named memory ends the process with a line that has the name") {
    const End end = end_of([] {
      std::byte* page = read_only_page();
      const FaultNames names = name(page);
      write_to(page);
    });
    CHECK(end.is_by_fault());
    CHECK(end.says("expected writes to parameter 0.weight by LibTorch's operators"));
  }

  TEST_CASE("a fault in other memory is passed on without a line") {
    const End end = end_of([] {
      install_handler(0, exit_caught);
      std::byte* page = read_only_page();
      const FaultNames names = name(page);
      write_to(read_only_page());
    });
    CHECK(end.is_caught());
    CHECK(end.text.empty());
  }

  TEST_CASE("a program's handler is called behind the line, whenever it was installed") {
    const End before = end_of([] {
      install_handler(0, exit_caught);
      std::byte* page = read_only_page();
      const FaultNames names = name(page);
      write_to(page);
    });
    CHECK(before.is_caught());
    CHECK(before.says("0.weight"));
    const End after = end_of([] {
      std::byte* page = read_only_page();
      const FaultNames names = name(page);
      install_handler(0, exit_caught);
      const FaultNames later = name(read_only_page());  // another model
      write_to(page);
    });
    CHECK(after.is_caught());
    CHECK(after.says("0.weight"));
  }

  TEST_CASE("a handler with a stack of its own is called on that stack") {
    const End end = end_of([] {
      stack_t stack{};
      stack.ss_sp = other_stack.data();
      stack.ss_size = other_stack.size();
      ::sigaltstack(&stack, nullptr);
      install_handler(SA_ONSTACK, exit_caught_on_other_stack);
      std::byte* page = read_only_page();
      const FaultNames names = name(page);
      write_to(page);
    });
    CHECK(end.is_caught());
    CHECK(end.says("0.weight"));
  }

  TEST_CASE("memory whose names are gone has no line") {
    const End end = end_of([] {
      std::byte* page = read_only_page();
      { const FaultNames names = name(page); }
      write_to(page);
    });
    CHECK(end.is_by_fault());
    CHECK_FALSE(end.says("0.weight"));
  }

  TEST_CASE("fork() is warned of once, while there is named memory") {
    const auto fork_once = [] {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      ::waitpid(child, nullptr, 0);
    };
    const End end = end_of([&] {
      const FaultNames names = name(read_only_page());
      fork_once();
      fork_once();
    });
    const std::string line = "warning: shard.mode: a child of fork() sees the weights";
    CHECK(end.text.starts_with(line));
    CHECK(end.text.find(line, 1) == std::string::npos);
    const End gone = end_of([&] {
      { const FaultNames names = name(read_only_page()); }
      fork_once();
    });
    CHECK(gone.text.empty());
  }
}
