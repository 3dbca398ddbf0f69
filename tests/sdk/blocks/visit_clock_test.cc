// Reported times, saved bytes and shapes of visits.
#include "sdk/src/blocks/visit_clock.h"

#include <torch/torch.h>

#include <cstdint>
#include <optional>

#include "coxswain/error.h"
#include "tests/sdk/blocks/watched_net.h"

#include <doctest/doctest.h>

using namespace visits_test;

TEST_SUITE("sdk.blocks.visit_clock") {
  TEST_CASE("a step's visits are reported when it ends, with both times, and only then") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    net->b(net->a(net->middle())).sum().backward();
    CHECK_FALSE(watched.sink.reports[0]);
    watched.visits.end_step();
    for (const auto& report : watched.sink.reports) {
      REQUIRE(report);
      CHECK(report->forward > cox::Seconds(0));
      CHECK(report->backward > cox::Seconds(0));
      CHECK(report->parameters == 4);
      CHECK(report->saved_bytes == 0);
    }
    watched.sink.reports.assign(2, std::nullopt);
    net->b(net->middle()).sum().backward();
    watched.visits.end_step();
    CHECK_FALSE(watched.sink.reports[0]);  // not visited
    CHECK(watched.sink.reports[1]);
  }

  TEST_CASE(
      "forward without backward has no backward time, and a step that is forgotten no report") {
    Net net;
    Watched watched(*net, MeasureMode::times);
    static_cast<void>(net->a(net->middle()));
    watched.visits.end_step();
    CHECK(watched.sink.reports[0]->backward == cox::Seconds(0));
    watched.sink.reports.assign(2, std::nullopt);
    net->a(net->middle()).sum().backward();
    watched.visits.forget_step();
    watched.visits.end_step();
    CHECK_FALSE(watched.sink.reports[0]);
  }

  TEST_CASE("saved bytes count each storage once, in the block that saves it first") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    Tensor x = net->middle();
    Tensor y = net->a(x).exp();  // saves x, and the result of exp
    net->b(y).sum().backward();  // saves the result of exp again
    watched.visits.end_step();
    CHECK(watched.sink.reports[0]->saved_bytes == 2 * 3 * 4 * 4);
    CHECK(watched.sink.reports[1]->saved_bytes == 0);
  }

  TEST_CASE("shapes have a key, which is the same for the same shapes") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    const auto key = [&](std::int64_t rows) {
      net->a(net->middle(rows)).sum().backward();
      watched.visits.end_step();
      return watched.sink.reports[0]->shape_key;
    };
    const std::uint64_t three = key(3);
    CHECK(key(3) == three);
    CHECK(key(5) != three);
  }

  TEST_CASE("an in-place change of a saved tensor is an error while its hook is ours") {
    Net net;
    Watched watched(*net, MeasureMode::full);
    const Tensor x = net->middle();
    const Tensor y = net->a(x);
    x.detach().add_(1);
    CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("changed in place"), cox::Error);
  }
}
