#include "coordinator/io/config_source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;

// A file in a folder of its own. The destructor removes both.
class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : folder_(fs::temp_directory_path() / ("cox_config_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    std::ofstream(path()) << text;
  }
  ~TempFile() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "job.cfg").string(); }

 private:
  fs::path folder_;
};

}  // namespace

TEST_SUITE("io.config_source") {
  TEST_CASE("a pipe or a device as the file is refused without waiting for it") {
    const TempFile file("");
    const std::string pipe = file.path() + ".pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const std::vector<std::string> none;
    for (const std::string& path : {pipe, std::string("/dev/zero"), std::string("/")}) {
      const std::vector<std::string> flags = {"--cox.config=" + path};
      const cox::Status status = cox::io::load_config({}, none, flags).status();
      CHECK(status.code() == cox::StatusCode::failed_precondition);
      CHECK(status.message().starts_with("config: " + path + ": expected a regular file, found "));
    }
  }

  TEST_CASE("flags win over the environment, the environment over the file") {
    const TempFile file("run.seed = 1\nrun.name = file\nhttp.port = 1\n");
    const std::vector<std::string> environment = {"COX_CONFIG=" + file.path(), "COX_RUN_SEED=2",
                                                  "COX_RUN_NAME=environment"};
    const std::vector<std::string> arguments = {"prog", "--cox.run.seed=3"};
    const cox::Result<cox::io::LoadedConfig> loaded =
        cox::io::load_config({}, environment, arguments);
    REQUIRE(loaded.ok());
    CHECK(loaded->config.run.seed == 3);
    CHECK(loaded->config.run.name == "environment");
    CHECK(loaded->config.http.port == 1);
    CHECK(loaded->rest == std::vector<std::string>{"prog"});
  }

  TEST_CASE("a port that anybody set is told from the default, also where it has the same value") {
    const auto sets_port = [](const cox::Config& base, const std::vector<std::string>& environment,
                              const std::vector<std::string>& arguments) {
      const auto loaded = cox::io::load_config(base, environment, arguments);
      REQUIRE(loaded.ok());
      return loaded->sets_port;
    };
    const std::string same = std::to_string(cox::HttpConfig{}.port);
    CHECK_FALSE(sets_port({}, {}, {}));
    CHECK_FALSE(sets_port({}, {"COX_RUN_SEED=2"}, {"--cox.http.host=127.0.0.2"}));
    for (const std::string& port : {same, std::string("0"), std::string("1"), std::string("2")}) {
      CAPTURE(port);
      CHECK(sets_port({}, {"COX_HTTP_PORT=" + port}, {}));
      CHECK(sets_port({}, {}, {"--cox.http.port", port}));
      const TempFile file("http.port = " + port + "\n");
      CHECK(sets_port({}, {}, {"--cox.config=" + file.path()}));
    }
    cox::Config program;
    program.http.port = 1;
    CHECK(sets_port(program, {}, {}));
    CHECK(sets_port(program, {"COX_HTTP_PORT=" + same}, {}));
  }

  TEST_CASE("relative paths of settings are absolute from the moment they are read") {
    const TempFolder folder;
    const fs::path before = fs::current_path();
    fs::current_path(folder.path());
    const fs::path here = fs::current_path();
    cox::Config base;
    base.control.journal = "/elsewhere/j";
    const std::vector<std::string> environment = {"COX_RUN_DIRECTORY=runs/a"};
    const std::vector<std::string> flags = {"--cox.checkpoint.directory=../saves",
                                            "--cox.memory.tier_directory=."};
    const auto loaded = cox::io::load_config(base, environment, flags);
    const auto unset = cox::io::load_config({}, {}, {});
    fs::current_path(before);
    REQUIRE(loaded.ok());
    CHECK(loaded->config.run.directory == (here / "runs/a").string());
    CHECK(loaded->config.checkpoint.directory == (here / "../saves").string());
    CHECK(loaded->config.memory.tier_directory == (here / "").string());
    CHECK(loaded->config.control.journal == "/elsewhere/j");
    REQUIRE(unset.ok());
    CHECK(unset->config.run.directory.empty());
  }

  TEST_CASE("a relative path is an error where the working directory is gone") {
    const TempFolder folder;
    const fs::path before = fs::current_path();
    fs::create_directory(folder / "gone");
    fs::current_path(folder / "gone");
    fs::remove(folder / "gone");
    const std::vector<std::string> runs = {"COX_RUN_DIRECTORY=runs/a"};
    const std::vector<std::string> root = {"COX_RUN_DIRECTORY=/runs"};
    const auto relative = cox::io::load_config({}, runs, {});
    const auto absolute = cox::io::load_config({}, root, {});
    fs::current_path(before);
    CHECK(relative.status().message().find("run.directory") != std::string::npos);
    CHECK(absolute.ok());
  }

  TEST_CASE("the file of the flag wins over the file of the environment") {
    const std::vector<std::string> environment = {"COX_CONFIG=a"};
    CHECK(cox::config_file(environment, std::vector<std::string>{}) == "a");
    CHECK(cox::config_file(environment, std::vector<std::string>{"--cox.config=b"}) == "b");
    CHECK(cox::config_file(environment, std::vector<std::string>{"--cox.config", "c"}) == "c");
  }

  TEST_CASE("a file that is not there, a wrong line in it and contradictions are told apart") {
    const std::vector<std::string> none;
    const std::vector<std::string> gone = {"--cox.config=/nowhere/job.cfg"};
    CHECK(cox::io::load_config({}, none, gone).status().code() == cox::StatusCode::not_found);
    const std::vector<std::string> no_name = {"--cox.config="};
    CHECK(cox::io::load_config({}, none, no_name).status().message() ==
          "flags: --cox.config: expected a file, found nothing");

    const TempFile file("http.port = 70000\n");
    const std::vector<std::string> wrong = {"--cox.config=" + file.path()};
    const cox::Status status = cox::io::load_config({}, none, wrong).status();
    CHECK(status.code() == cox::StatusCode::invalid_argument);
    CHECK(status.message().find("job.cfg:1: http.port") != std::string::npos);

    const std::vector<std::string> against = {"--cox.checkpoint.resume=on"};
    CHECK(cox::io::load_config({}, none, against).status().code() ==
          cox::StatusCode::invalid_argument);
  }
}
