#include "coordinator/io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "coordinator/io/kept_folder.h"
#include "coordinator/io/open_to_write.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;
using cox::Status;
using cox::StatusCode;
using namespace cox::io;

TEST_SUITE("io.output_file") {
  TEST_CASE("a file is written at its end, from run to run") {
    const TempFolder folder;
    for (const bool is_new : {true, false}) {
      auto file = OutputFile::open(folder / "a");
      REQUIRE(file.ok());
      CHECK(file->is_new() == is_new);
      CHECK(file->append("line\n") == 0);
      CHECK(file->is_in_place());
      CHECK(file->close() == 0);
    }
    CHECK(read_bytes(folder / "a") == "line\nline\n");
    auto file = OutputFile::open(folder / "a");
    REQUIRE(file.ok());
    CHECK(file->cut(5) == 0);
    CHECK(file->append("more\n") == 0);
    CHECK(read_bytes(folder / "a") == "line\nmore\n");
    CHECK(file->size_bytes() == 10);
  }

  TEST_CASE("a link is refused, wherever it leads, and so is what is no regular file") {
    const TempFolder folder;
    folder.write("other", "theirs");
    fs::create_directory(folder / "folder");
    fs::create_symlink(folder / "other", folder / "to_file");
    fs::create_symlink(folder / "none", folder / "to_nothing");
    fs::create_symlink(folder / "folder", folder / "to_folder");
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    for (const char* name : {"to_file", "to_nothing", "to_folder", "pipe", "folder"}) {
      CAPTURE(name);
      const Status refused = OutputFile::open(folder / name).status();
      CHECK(refused.code() == StatusCode::failed_precondition);
      if (std::string(name).starts_with("to_"))
        CHECK(refused.message().find("found a link") != std::string::npos);
    }
    CHECK(read_bytes(folder / "other") == "theirs");
    CHECK_FALSE(fs::exists(folder / "none"));
    CHECK(OutputFile::open(folder / "missing/a").status().code() == StatusCode::not_found);
  }

  TEST_CASE("a folder on the way may be a link") {
    const TempFolder folder;
    fs::create_directory(folder / "folder");
    fs::create_directory_symlink(folder / "folder", folder / "link");
    auto file = OutputFile::open(folder / "link/a");
    REQUIRE(file.ok());
    CHECK(file->append("x") == 0);
    CHECK(read_bytes(folder / "folder/a") == "x");
    CHECK(KeptFolder::open(folder / "link")->check().ok());
  }

  TEST_CASE("a file that has another name is copied once, with its mode, before it changes") {
    for (const bool is_cut : {false, true}) {
      CAPTURE(is_cut);
      const TempFolder folder;
      folder.write("a", "0123456789");
      fs::permissions(folder / "a", fs::perms::owner_read | fs::perms::owner_write);
      fs::create_hard_link(folder / "a", folder / "backup");
      auto file = OutputFile::open(folder / "a");
      REQUIRE(file.ok());
      CHECK((is_cut ? file->cut(4) : file->append("x")) == 0);
      CHECK(file->append("y") == 0);
      CHECK(read_bytes(folder / "backup") == "0123456789");
      CHECK(read_bytes(folder / "a") == (is_cut ? "0123y" : "0123456789xy"));
      CHECK(fs::status(folder / "a").permissions() ==
            (fs::perms::owner_read | fs::perms::owner_write));
      CHECK(file->is_in_place());
      CHECK(folder.files() == 2);
    }
  }

  TEST_CASE("a copy is locked as the file was") {
    const TempFolder folder;
    folder.write("a", "0");
    fs::create_hard_link(folder / "a", folder / "backup");
    auto file = OutputFile::open(folder / "a");
    REQUIRE(file.ok());
    CHECK(*file->lock() == FileLocking::locked);
    CHECK(file->append("1") == 0);
    CHECK(*OutputFile::open(folder / "a")->lock() == FileLocking::held_elsewhere);
    CHECK(*OutputFile::open(folder / "backup")->lock() == FileLocking::locked);
  }

  TEST_CASE("a copy takes no other file's place, and a file without a name is known") {
    const TempFolder folder;
    auto file = OutputFile::open(folder / "a");
    REQUIRE(file.ok());
    fs::create_hard_link(folder / "a", folder / "b");
    fs::rename(folder / "b", folder / "moved");
    fs::create_hard_link(folder / "moved", folder / "c");
    fs::remove(folder / "a");
    folder.write("a", "theirs");
    CHECK_FALSE(file->is_in_place());
    CHECK(file->append("x") == ESTALE);
    CHECK(read_bytes(folder / "a") == "theirs");
    CHECK(file->has_name());
    fs::remove(folder / "moved");
    fs::remove(folder / "c");
    CHECK_FALSE(file->has_name());
  }

  TEST_CASE("files are created where nothing has their name, a link neither") {
    const TempFolder folder;
    folder.write("a", "theirs");
    fs::create_symlink(folder / "none", folder / "link");
    CHECK_FALSE(create_new(folder / "a").is_open());
    CHECK_FALSE(create_new(folder / "link").is_open());
    CHECK_FALSE(open_existing(folder / "link").is_open());
    CHECK(create_new(folder / "b").is_open());
    CHECK(create_unnamed(folder.path()).is_open());
    CHECK(folder.files() == 3);
  }

  TEST_CASE(
      "a file that is created anew leaves another name's bytes, and where a link led, alone") {
    const TempFolder folder;
    folder.write("notes", "precious");
    fs::create_hard_link(folder / "notes", folder / "a");
    fs::create_symlink(folder / "notes", folder / "b");
    const Descriptor opened(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const char* name : {"a", "b", "c"}) {
      const Descriptor file(create_anew_at(opened.number(), name));
      CHECK(::write(file.number(), "x", 1) == 1);
      CHECK(read_bytes(folder / name) == "x");
    }
    CHECK(read_bytes(folder / "notes") == "precious");
  }

  TEST_CASE("a folder that is removed or replaced is told from the one that is kept") {
    const TempFolder folder;
    fs::create_directory(folder / "run");
    const auto kept = KeptFolder::open(folder / "run");
    REQUIRE(kept.ok());
    CHECK(kept->check().ok());
    fs::remove(folder / "run");
    CHECK(kept->check().message().find("the folder was removed or renamed") != std::string::npos);
    fs::create_directory(folder / "run");
    CHECK(kept->check().message().find("another folder") != std::string::npos);
    CHECK(KeptFolder::open(folder / "none").status().code() == StatusCode::not_found);
  }
}

}  // namespace
