#include <filesystem>

#include "coxswain/error.h"
#include "sdk/src/memory/offload.h"
#include "tests/sdk/memory/file_size_limit.h"
#include "tests/sdk/memory/offload_support.h"
#include "tests/sdk/memory/tier_file.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/no_threads.h"

#include <doctest/doctest.h>

using namespace offload_test;
using cox::Status;
using cox::StatusCode;

namespace {

OffloadOptions options(const std::filesystem::path& folder, std::vector<Status>& reports) {
  return {.folder = folder,
          .tier_bytes = 64 << 20,
          .in_flight_bytes = 0,
          .smallest_bytes = 1024,
          .report = [&reports](const Status& status) { reports.push_back(status); }};
}

}  // namespace

TEST_CASE("without a usable folder training goes on, with one report and the same gradients") {
  const TempFolder folder;
  Mlp net;
  const auto kept = step(net, nullptr);
  for (const std::filesystem::path& unusable :
       {folder / "missing", std::filesystem::path("/proc/self")}) {
    CAPTURE(unusable);
    std::vector<Status> reports;
    Offloader offloader(options(unusable, reports));
    CHECK_FALSE(offloader.tier_status().ok());
    for (int i = 0; i < 3; ++i) CHECK(same_bits(step(net, &offloader), kept));
    REQUIRE(reports.size() == 1);
    CHECK(reports[0] == offloader.tier_status());
    CHECK(reports[0].message().find(unusable.string()) != std::string::npos);
    CHECK(offloader.counts().written_bytes == 0);
  }
}

TEST_CASE("so it does where the thread that writes cannot be started") {
  const TempFolder folder;
  Mlp net;
  const auto kept = step(net, nullptr);
  std::vector<Status> reports;
  const auto offloader = [&] {
    const cox::test::NoThreads none;
    return std::make_unique<Offloader>(options(folder.path(), reports));
  }();
  CHECK(same_bits(step(net, offloader.get()), kept));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0] == offloader->tier_status());
  CHECK(reports[0].message().find("its thread could not be started") != std::string::npos);
}

TEST_CASE("a disk that is full keeps tensors in memory, with one report and the same gradients") {
  const TempFolder folder;
  Mlp net;
  const auto kept = step(net, nullptr);
  std::vector<Status> reports;
  Offloader offloader(options(folder.path(), reports));
  const FileSizeLimit limit(40000);  // room for the first few storages only
  for (int i = 0; i < 3; ++i) CHECK(same_bits(step(net, &offloader), kept));
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].code() == StatusCode::resource_exhausted);
  CHECK(reports[0].message().find("block mlp") != std::string::npos);
  CHECK(offloader.tier_status().code() == StatusCode::resource_exhausted);
  CHECK(offloader.counts().written_bytes == 0);  // in the last step
  CHECK(offloader.counts().stayed_bytes > 0);
  CHECK(offloader.counts().tier_bytes == 0);
}

TEST_CASE("the cap on tier bytes is kept to the page, with one report and the same gradients") {
  const TempFolder folder;
  Mlp net;
  const auto kept = step(net, nullptr);
  std::vector<Status> reports;
  OffloadOptions with = options(folder.path(), reports);
  with.tier_bytes = 100000;
  Offloader offloader(with);
  for (int i = 0; i < 3; ++i) {
    CHECK(same_bits(step(net, &offloader), kept));
    CHECK(offloader.counts().written_bytes > 0);
    CHECK(offloader.counts().stayed_bytes > 0);
    CHECK(offloader.counts().tier_peak_bytes <= 100000);
  }
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].code() == StatusCode::resource_exhausted);
  CHECK(offloader.tier_status().ok());
}

TEST_CASE("a cap of 0 is none") {
  const TempFolder folder;
  Mlp net;
  std::vector<Status> reports;
  OffloadOptions with = options(folder.path(), reports);
  with.tier_bytes = 0;
  Offloader offloader(with);
  step(net, &offloader);
  CHECK(offloader.counts().written_bytes > 0);
  CHECK(offloader.counts().stayed_bytes == 0);
  CHECK(reports.empty());
}

TEST_CASE("bytes that cannot be read again are an error out of backward that names the block") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  Mlp net;
  std::vector<Status> reports;
  Offloader offloader(options(folder.path(), reports));
  const Counted counted;
  {
    const Tensor loss = net.forward(net.input(), &offloader).square().mean();
    REQUIRE(cox::test::empty_tier_file(folder.path()));
    try {
      loss.backward();
      FAIL("backward went on without its tensors");
    } catch (const cox::Error& error) {
      CHECK(error.status().code() == StatusCode::data_loss);
      CHECK(std::string(error.what()).find("block mlp3") != std::string::npos);
    }
  }
  CHECK(counted.live() == 0);
  CHECK(offloader.counts().tier_bytes == 0);
}

TEST_CASE("bytes that changed are an error that names the block, and nothing leaves after it") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  Mlp net;
  const auto kept = step(net, nullptr);
  std::vector<Status> reports;
  Offloader offloader(options(folder.path(), reports));
  {
    const Tensor loss = net.forward(net.input(), &offloader).square().mean();
    REQUIRE(cox::test::change_tier_file(folder.path()));
    try {
      loss.backward();
      FAIL("backward used bytes that nobody wrote");
    } catch (const cox::Error& error) {
      CHECK(error.status().code() == StatusCode::data_loss);
      CHECK(std::string(error.what()).find("block mlp3") != std::string::npos);
      CHECK(std::string(error.what()).find("found different") != std::string::npos);
    }
    CHECK(offloader.counts().lost_reads == 1);
  }
  CHECK(offloader.tier_status().code() == StatusCode::data_loss);
  CHECK(same_bits(step(net, &offloader), kept));
  CHECK(offloader.counts().written_bytes == 0);
  CHECK(offloader.counts().lost_reads == 0);
}

TEST_CASE("without verification changed bytes are not noticed") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  Mlp net;
  std::vector<Status> reports;
  OffloadOptions with = options(folder.path(), reports);
  with.verify = cox::detail::TierThread::Verify::off;
  Offloader offloader(with);
  const Tensor loss = net.forward(net.input(), &offloader).square().mean();
  REQUIRE(cox::test::change_tier_file(folder.path()));
  loss.backward();
  CHECK(offloader.tier_status().ok());
}
