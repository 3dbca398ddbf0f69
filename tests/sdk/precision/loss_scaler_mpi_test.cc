// An infinity on one rank counts on every rank.
#include <torch/torch.h>

#include <limits>

#include "coxswain/adamw.h"
#include "coxswain/loss_scaler.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_CASE("ranks skip together and keep the same scale, whoever overflows and whoever is idle") {
  auto session = solo_session();
  const at::Tensor p = at::linspace(1, 2, 6).requires_grad_();
  cox::AdamW optimizer(std::vector<at::Tensor>{p}, {.lr = 0.1});
  cox::LossScaler scaler(session, {.initial_scale = 1024, .growth_interval = 3});
  float expected = 1024;
  int clean = 0;
  for (int step = 0; step < 40; ++step) {
    const int bad = step % 5 == 4 ? (step / 5) % session.world_size() : -1;
    const bool idle =
        step % 7 == 2 && session.rank() == session.world_size() - 1 && session.world_size() > 1;
    optimizer.zero_grad();
    const at::Tensor before = p.detach().clone();
    if (!idle) scaler.scale(p.sum() * (bad == session.rank() ? kInf : 1)).backward();
    const bool idle_and_bad = step % 7 == 2 && bad == session.world_size() - 1;
    const bool overflow = bad >= 0 && !(idle_and_bad && session.world_size() > 1);
    CHECK(scaler.step(optimizer) == !overflow);
    CHECK(p.equal(before) == (overflow || idle));
    scaler.update();
    clean = overflow ? 0 : clean + 1;
    if (overflow) expected /= 2;
    if (clean == 3) {
      expected *= 2;
      clean = 0;
    }
    CHECK(scaler.value().scale == expected);
  }
  session.finish();
}

TEST_CASE("parameters of an unknown optimizer are judged for all ranks") {
  auto session = solo_session();
  const at::Tensor p = at::linspace(1, 2, 6).requires_grad_();
  cox::LossScaler scaler(session);
  const bool is_last = session.rank() == session.world_size() - 1;
  scaler.scale(p.sum() * (is_last ? kInf : 1)).backward();
  scaler.unscale(std::vector<at::Tensor>{p});
  CHECK_FALSE(scaler.is_finite());
  CHECK_FALSE(scaler.is_finite());  // does not communicate again
  scaler.update();
  CHECK(scaler.value().scale == 32768);
  session.finish();
}

}  // namespace
