#include "coordinator/io/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;
using cox::Status;
using cox::StatusCode;
using namespace cox::io;

TEST_SUITE("io.file") {
  TEST_CASE("a replaced file holds the new text, and nothing stays beside it") {
    const TempFolder folder;
    REQUIRE(replace_file(folder / "a", "one").ok());
    REQUIRE(replace_file(folder / "a", "two").ok());
    CHECK(read_bytes(folder / "a") == "two");
    CHECK(folder.files() == 1);
  }

  TEST_CASE("a file that is given up leaves the old one untouched") {
    const TempFolder folder;
    folder.write("a", "old");
    {
      auto file = AtomicFile::create(folder / "a");
      REQUIRE(file.ok());
      REQUIRE(file->write("new", 3).ok());
      CHECK(read_bytes(folder / "a") == "old");
    }
    CHECK(read_bytes(folder / "a") == "old");
    CHECK(folder.files() == 1);
  }

  TEST_CASE("a temporary file of somebody else is neither used nor removed") {
    const TempFolder folder;
    const std::string other = ".a.tmp-" + std::to_string(::getpid()) + "-0";
    folder.write(other, "theirs");
    REQUIRE(replace_file(folder / "a", "ours").ok());
    CHECK(read_bytes(folder / other) == "theirs");
    CHECK(read_bytes(folder / "a") == "ours");
  }

  TEST_CASE("what killed writers left is removed by who knows to be alone, and nothing else") {
    const TempFolder folder;
    for (const char* name : {".run.json.tmp-21947-0", ".a.tmp-1-999", ".b.tmp-2-0.tmp-3-1"})
      folder.write(name, "half");
    const std::vector<std::string> others = {"a.tmp-1-0", ".a.tmp-1", ".a.tmp-x-1", ".tmp", "a"};
    for (const std::string& name : others) folder.write(name, "kept");
    fs::create_symlink(folder / "a", folder / ".link.tmp-1-0");
    fs::create_directory(folder / ".folder.tmp-1-0");
    remove_temporaries(folder.path());
    for (const std::string& name : others) CHECK(read_bytes(folder / name) == "kept");
    CHECK(fs::is_symlink(folder / ".link.tmp-1-0"));
    CHECK(fs::is_directory(folder / ".folder.tmp-1-0"));
    CHECK(folder.files() == others.size() + 2);
    remove_temporaries(folder / "none");
  }

  TEST_CASE("what cannot be written is said with the file and the reason") {
    const TempFolder folder;
    const cox::Status status = replace_file(folder / "none" / "a", "x");
    CHECK(status.code() == StatusCode::not_found);
    CHECK(status.message().find((folder / "none" / "a").string()) != std::string::npos);
    CHECK(status.message().find("No such file") != std::string::npos);
    fs::create_directory(folder / "folder");
    folder.write("folder/x", "");
    CHECK_FALSE(replace_file(folder / "folder", "x").ok());
    CHECK(folder.files() == 1);
  }

  TEST_CASE("only regular files up to the limit are read") {
    const TempFolder folder;
    folder.write("a", "12345");
    CHECK(read_file(folder / "a", 5).value() == "12345");
    CHECK(read_file(folder / "a", 4).status().code() == StatusCode::resource_exhausted);
    CHECK(read_file(folder / "none", 5).status().code() == StatusCode::not_found);
    CHECK(read_file(folder.path(), 5).status().code() == StatusCode::failed_precondition);
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK(read_file(folder / "pipe", 5).status().code() == StatusCode::failed_precondition);
    CHECK(read_file("/dev/zero", 5).status().code() == StatusCode::failed_precondition);
    fs::create_symlink(folder / "a", folder / "link");
    CHECK(read_file(folder / "link", 5).value() == "12345");
  }

  TEST_CASE("what is no regular file is named in one line, also where links are refused") {
    const TempFolder folder;
    folder.write("a", "12345");
    fs::create_symlink(folder / "a", folder / "link");
    fs::create_symlink(folder / "none", folder / "dangling");
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    const auto message = [](const fs::path& path, Links links) {
      const Status status = InputFile::open(path, links).status();
      CHECK(status.code() == StatusCode::failed_precondition);
      return status.message();
    };
    CHECK(message(folder / "pipe", Links::followed).ends_with("regular file, found a pipe"));
    CHECK(message(folder.path(), Links::followed).ends_with("regular file, found a folder"));
    CHECK(message("/dev/zero", Links::followed).ends_with("regular file, found a device"));
    CHECK(message(folder / "link", Links::refused).ends_with("regular file, found a link"));
    CHECK(message(folder / "dangling", Links::refused).ends_with("regular file, found a link"));
    CHECK(read_file(folder / "a", 5, Links::refused).value() == "12345");
  }

  TEST_CASE("a file that is cut while it is open is an error") {
    const TempFolder folder;
    const auto file = InputFile::open(folder.write("a", "12345"));
    REQUIRE(file.ok());
    CHECK(file->size_bytes() == 5);
    fs::resize_file(folder / "a", 2);
    char bytes[5];
    CHECK(file->read_at(0, bytes, 5).code() == StatusCode::data_loss);
    CHECK(file->read_at(0, bytes, 2).ok());
  }

  TEST_CASE("an errno becomes the code that a caller can act on") {
    CHECK(code_of_errno(ENOSPC) == StatusCode::resource_exhausted);
    CHECK(code_of_errno(EACCES) == StatusCode::failed_precondition);
    CHECK(code_of_errno(EIO) == StatusCode::unavailable);
    CHECK(code_of_errno(EIO, StatusCode::internal) == StatusCode::internal);
    CHECK(errno_status(ENOENT, "a: cannot open") ==
          cox::not_found("a: cannot open: No such file or directory"));
  }
}

}  // namespace
