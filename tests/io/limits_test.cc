#include "coordinator/io/limits.h"

#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>

#include "coordinator/io/file.h"
#include "coordinator/io/file_size_signal.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/decimal_comma.h"
#include "tests/support/ended_by.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

void allow_files_of(rlim_t bytes) {
  const rlimit small{bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &small);
}

StatusCode written(const std::filesystem::path& file) {
  return io::replace_file(file, std::string(5000, 'x')).code();
}

}  // namespace

TEST_SUITE("io.limits") {
  TEST_CASE("an error has the system's English words and its limit in every locale") {
    const test::DecimalComma german;
    CHECK(io::errno_text(ENOSPC) == "No space left on device");
    CHECK(io::errno_text(EFBIG) == "File too large (ulimit -f)");
    CHECK(io::errno_text(EMFILE) == "Too many open files (ulimit -n)");
    CHECK(io::errno_text(ENOMEM).starts_with("Cannot allocate memory"));
    CHECK(io::errno_text(98765) == "error 98765");
  }

  TEST_CASE("why no thread starts: a full group, one around it, or the user's limit") {
    const TempFolder root;
    write_file(root / "proc/self/cgroup", "3:cpu:/x\n0::/job/step\n");
    write_file(root / "sys/fs/cgroup/job/step/pids.max", "max\n");
    write_file(root / "sys/fs/cgroup/job/step/pids.current", "40\n");
    write_file(root / "sys/fs/cgroup/job/pids.max", "50\n");
    write_file(root / "sys/fs/cgroup/job/pids.current", "49\n");
    CHECK(io::thread_limit_text(root.path()).find("pids.max") == std::string::npos);
    write_file(root / "sys/fs/cgroup/job/pids.current", "50\n");
    CHECK(io::thread_limit_text(root.path()) ==
          "the control group has all of its 50 processes and threads (pids.max)");
    write_file(root / "proc/self/cgroup", "8:pids:/old\n");
    write_file(root / "sys/fs/cgroup/pids/old/pids.max", "7\n");
    write_file(root / "sys/fs/cgroup/pids/old/pids.current", "7\n");
    CHECK(io::thread_limit_text(root.path()) ==
          "the control group has all of its 7 processes and threads (pids.max)");
    rlimit before{};
    getrlimit(RLIMIT_NPROC, &before);
    const rlimit limited{4321, before.rlim_max};
    setrlimit(RLIMIT_NPROC, &limited);
    const TempFolder nothing;
    const std::string text = io::thread_limit_text(nothing.path());
    setrlimit(RLIMIT_NPROC, &before);
    CHECK(text == "the user may have 4321 processes and threads (ulimit -u)");
  }

  TEST_CASE("behind an exception stands the limit that may have caused it") {
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit limited{rlim_t{1} << 47, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_AS, &limited) == 0);
    const std::string language = io::limit_behind(std::bad_alloc());
    const std::string torch = io::limit_behind(std::runtime_error("can't allocate memory: 64"));
    setrlimit(RLIMIT_AS, &before);
    CHECK(language == ": Cannot allocate memory; its address space may have 128 TiB (ulimit -v)");
    CHECK(torch == "; its address space may have 128 TiB (ulimit -v)");
    const auto system = [](int error) {
      return io::limit_behind(std::system_error(error, std::generic_category()));
    };
    CHECK(system(EAGAIN) == ": " + io::thread_limit_text());
    CHECK(system(EMFILE) == " (ulimit -n)");
    CHECK(system(ENOENT).empty());
    CHECK(io::limit_behind(std::runtime_error("no such row")).empty());
  }

  TEST_CASE("a limit on file sizes is a full disk while its signal is taken, and only then") {
    const TempFolder folder;
    CHECK(ended_by([&] {
            const io::FileSizeSignal taken;
            allow_files_of(1000);
            if (written(folder / "a") != StatusCode::resource_exhausted) ::raise(SIGKILL);
          }) == 0);
    CHECK(ended_by([&] {
            { const io::FileSizeSignal given_back; }
            allow_files_of(1000);
            static_cast<void>(written(folder / "b"));
          }) == SIGXFSZ);
    CHECK(folder.files() <= 1);  // the killed process's temporary file
  }

  TEST_CASE("the program's own disposition of SIGXFSZ stays, be it older or newer") {
    CHECK(ended_by([] {
            ::signal(SIGXFSZ, SIG_IGN);
            { const io::FileSizeSignal other; }
            if (::signal(SIGXFSZ, SIG_DFL) != SIG_IGN) ::raise(SIGKILL);
            {
              const io::FileSizeSignal first;
              { const io::FileSizeSignal nested; }
              ::raise(SIGXFSZ);  // is still caught
              ::signal(SIGXFSZ, SIG_IGN);
            }
            if (::signal(SIGXFSZ, SIG_DFL) != SIG_IGN) ::raise(SIGKILL);
          }) == 0);
  }
}
