#include "coordinator/runtime/saved_state.h"

#include <sys/stat.h>

#include <string>

#include "tests/runtime/driven_job.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using test::read_file;
using test::TempFolder;
using test::write_file;

TEST_SUITE("runtime.saved_state") {
  TEST_CASE("a saved state comes back bit for bit, and a newer one takes its place") {
    TempFolder folder;
    test::RandomValues random(1);
    for (int i = 0; i < 50; ++i) {
      const ControlState state = random.state(test::capable_job(6, 9));
      write_file(folder / "s", *control_state_file(state));
      const auto loaded = load_control_state(folder / "s");
      REQUIRE_MESSAGE(loaded.ok(), loaded.status().text());
      CHECK(test::same_bits(*loaded, state));
    }
  }

  TEST_CASE("at another world size the global knobs stay and the ranks start anew") {
    TempFolder folder;
    const JobFacts before = test::capable_job(6, 4);
    ControlState state = initial_state(before);
    state.plan.precision[2] = Precision::bf16;
    state.plan.shares = {1, 2, 3, 4, 5, 6};
    write_file(folder / "s", *control_state_file(state));
    JobFacts after = test::capable_job(5, 4);
    after.incarnation = before.incarnation + 1;
    const Refitted refitted = refit(*load_control_state(folder / "s"), after);
    CHECK(refitted.state.plan.precision == state.plan.precision);
    CHECK(refitted.state.plan.shares.empty());
    CHECK(refitted.state.plan.id == PlanId{after.incarnation, 0});
    CHECK_FALSE(refitted.reasons.empty());
    CHECK(validate(refitted.state.plan, after).ok());
  }

  TEST_CASE("torn, flipped and foreign files are refused, at every byte") {
    TempFolder folder;
    write_file(folder / "s", *control_state_file(initial_state(test::driven_job(2))));
    const std::string whole = read_file(folder / "s");
    for (std::size_t at = 0; at < whole.size(); ++at) {
      write_file(folder / "bad", whole.substr(0, at));
      CHECK(load_control_state(folder / "bad").status().code() == StatusCode::data_loss);
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
      write_file(folder / "bad", flipped);
      CHECK_FALSE(load_control_state(folder / "bad").ok());
    }
    write_file(folder / "bad", whole + "x");
    CHECK_FALSE(load_control_state(folder / "bad").ok());
  }

  TEST_CASE("a file of the last version is refused by version, and says what to do") {
    TempFolder folder;
    write_file(folder / "s", *control_state_file(initial_state(test::driven_job(2))));
    std::string old = read_file(folder / "s");
    old[8] = 4;
    write_file(folder / "s", old);
    const Status status = load_control_state(folder / "s").status();
    CHECK(status.code() == StatusCode::failed_precondition);
    CHECK(
        status.message().ends_with("expected version 5, found 4; restore the state with the "
                                   "Coxswain that wrote it, or start without the state"));
  }

  TEST_CASE("no file, no folder and no permission are clear errors") {
    TempFolder folder;
    CHECK(load_control_state(folder / "none").status().code() == StatusCode::not_found);
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK(load_control_state(folder / "pipe").status().code() == StatusCode::failed_precondition);
    write_file(folder / "s", *control_state_file(initial_state(test::driven_job(2))));
    std::filesystem::create_symlink(folder / "s", folder / "link");
    CHECK(load_control_state(folder / "link").status().code() == StatusCode::failed_precondition);
  }
}

}  // namespace
}  // namespace cox::runtime
