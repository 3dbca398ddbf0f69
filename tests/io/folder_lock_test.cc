#include "coordinator/io/folder_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "tests/sdk/temp_folder.h"
#include "tests/support/file_limit.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;
using namespace cox;
using namespace cox::io;

Result<FolderLock> take(const TempFolder& folder, const std::string& who) {
  return FolderLock::take(folder.path(), "saves.lock", "job " + who, "token-" + who);
}

// Imitates a lock held by another process for the first three calls.
int held_for_a_moment(int) {
  static int calls = 0;
  return ++calls <= 3 ? EWOULDBLOCK : 0;
}

int no_lock(int) {
  return ENOLCK;
}

TEST_SUITE("io.folder_lock") {
  TEST_CASE("a lock of a process that is about to end is waited for") {
    const TempFolder folder;
    const auto taken = FolderLock::take(folder.path(), "saves.lock", "job one", "1",
                                        {held_for_a_moment, held_for_a_moment}, kWhileProcessesEnd);
    CHECK(taken.ok());
  }

  TEST_CASE("the second one is refused with who holds the folder, until that one is gone") {
    const TempFolder folder;
    {
      const auto first = take(folder, "one");
      REQUIRE(first.ok());
      CHECK(first->check_held().ok());
      const auto second = take(folder, "two");
      CHECK(second.status().code() == StatusCode::failed_precondition);
      CHECK(second.status().message().find("job one") != std::string::npos);
      CHECK(second.status().message().find("saves.lock") != std::string::npos);
      CHECK(first->check_held().ok());
    }
    CHECK(take(folder, "two").ok());
  }

  TEST_CASE("a process that dies gives the folder up") {
    const TempFolder folder;
    const pid_t child = ::fork();
    if (child == 0) {
      const auto lock = take(folder, "child");
      ::_exit(lock.ok() ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(take(folder, "parent").ok());
  }

  TEST_CASE("a holder whose lock was removed and taken by another knows, and says by whom") {
    const TempFolder folder;
    auto frozen = take(folder, "frozen");
    REQUIRE(frozen.ok());
    fs::remove(folder / "saves.lock");
    CHECK_FALSE(frozen->check_held().ok());
    const auto other = take(folder, "other");
    REQUIRE(other.ok());
    CHECK(frozen->check_held().message().find("job other") != std::string::npos);
    CHECK(other->check_held().ok());
    { const FolderLock gone = std::move(*frozen); }
    CHECK(other->check_held().ok());
  }

  TEST_CASE("a holder that gets no descriptor to look again names the limit on them") {
    const TempFolder folder;
    const auto lock = take(folder, "one");
    REQUIRE(lock.ok());
    const test::FileLimit none(0);
    const Status held = lock->check_held();
    CHECK(held.message() == (folder / "saves.lock").string() +
                                ": cannot open the lock file: Too many open files (ulimit -n)");
  }

  TEST_CASE("a file system without locks of whole files locks the record: the second is refused") {
    const TempFolder folder;
    const LockCalls calls{no_lock, system_lock_calls().record};
    {
      const auto first = FolderLock::take(folder.path(), "saves.lock", "job one", "1", calls);
      REQUIRE(first.ok());
      const auto second = FolderLock::take(folder.path(), "saves.lock", "job two", "2", calls);
      CHECK(second.status().code() == StatusCode::failed_precondition);
      CHECK(second.status().message().find("job one") != std::string::npos);
      CHECK(first->check_held().ok());
    }
    CHECK(FolderLock::take(folder.path(), "saves.lock", "job two", "2", calls).ok());
  }

  TEST_CASE("a file system without any locks: the file itself is one, until it is released") {
    const TempFolder folder;
    const LockCalls calls{no_lock, no_lock};
    {
      auto taken = FolderLock::take(folder.path(), "saves.lock", "job one", "1", calls);
      REQUIRE(taken.ok());
      const FolderLock first = std::move(*taken);
      const auto second = FolderLock::take(folder.path(), "saves.lock", "job two", "2", calls);
      CHECK(second.status().message().find("job one") != std::string::npos);
      CHECK(second.status().message().find("has no locks") != std::string::npos);
      CHECK(second.status().message().find("remove ") != std::string::npos);
      CHECK(first.check_held().ok());
    }
    CHECK_FALSE(fs::exists(folder / "saves.lock"));
    CHECK(FolderLock::take(folder.path(), "saves.lock", "job two", "2", calls).ok());
  }

  TEST_CASE("a lock that was broken by hand is not removed from its new holder") {
    const TempFolder folder;
    const LockCalls calls{no_lock, no_lock};
    std::optional<FolderLock> first;
    first.emplace(std::move(*FolderLock::take(folder.path(), "saves.lock", "one", "1", calls)));
    fs::remove(folder / "saves.lock");
    const auto second = FolderLock::take(folder.path(), "saves.lock", "two", "2", calls);
    REQUIRE(second.ok());
    first.reset();
    CHECK(second->check_held().ok());
  }

  TEST_CASE("an error of the lock's call is one, and no holder is made up") {
    const TempFolder folder;
    const LockCalls calls{[](int) { return EIO; }, no_lock};
    const auto lock = FolderLock::take(folder.path(), "saves.lock", "job one", "1", calls);
    CHECK(lock.status().message().find("cannot lock the file") != std::string::npos);
  }

  TEST_CASE("a lock with another name gets a file of its own, and the other name keeps its bytes") {
    const TempFolder folder;
    folder.write("notes", "precious");
    fs::create_hard_link(folder / "notes", folder / "saves.lock");
    const auto lock = take(folder, "one");
    REQUIRE(lock.ok());
    CHECK(read_bytes(folder / "notes") == "precious");
    CHECK(lock->check_held().ok());
    CHECK(take(folder, "two").status().message().find("job one") != std::string::npos);
    CHECK(folder.files() == 2);
  }

  TEST_CASE("a lock that is held stays so while somebody gives its file another name") {
    const TempFolder folder;
    const auto first = take(folder, "one");
    REQUIRE(first.ok());
    fs::create_hard_link(folder / "saves.lock", folder / "backup");
    CHECK(take(folder, "two").status().message().find("job one") != std::string::npos);
    CHECK(first->check_held().ok());
  }

  TEST_CASE("a folder that was removed is said to be gone, not held by somebody") {
    const TempFolder folder;
    fs::create_directory(folder / "saves");
    const auto lock = FolderLock::take(folder / "saves", "saves.lock", "job one", "1");
    REQUIRE(lock.ok());
    fs::rename(folder / "saves", folder / "elsewhere");
    const Status gone = lock->check_held();
    CHECK(gone.code() == StatusCode::failed_precondition);
    CHECK(gone.message().find("the folder was removed or renamed") != std::string::npos);
  }

  TEST_CASE("two names in one folder are two locks") {
    const TempFolder folder;
    const auto saves = take(folder, "one");
    const auto run = FolderLock::take(folder.path(), "run.lock", "job one", "token");
    CHECK(saves.ok());
    CHECK(run.ok());
  }

  TEST_CASE("what is no regular file is refused, without waiting for it") {
    const TempFolder folder;
    REQUIRE(::mkfifo((folder / "saves.lock").c_str(), 0600) == 0);
    CHECK_FALSE(take(folder, "one").ok());
    fs::remove(folder / "saves.lock");
    fs::create_symlink("/dev/null", folder / "saves.lock");
    CHECK_FALSE(take(folder, "one").ok());
    CHECK_FALSE(FolderLock::take(folder / "none", "saves.lock", "x", "y").ok());
  }
}

}  // namespace
