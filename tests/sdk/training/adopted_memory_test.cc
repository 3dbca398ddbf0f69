// Seven unmodified models in loops that only adopt them, with memory plans: the bits are those of
// the plain loop, and what was predicted is what is measured.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/session.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/storage.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/stream/models.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using stream_models::ModelCase;
using Tensors = std::vector<at::Tensor>;

constexpr int kSteps = 4;

struct Trained {
  Tensors state;               // losses, parameters, buffers, random state
  std::int64_t last_peak = 0;  // above what was live before the step
};

Trained train(const ModelCase& it) {
  torch::optim::AdamW optimizer(it.model->parameters(), 0.01);
  torch::manual_seed(5);
  Trained trained;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    optimizer.zero_grad();
    cox::detail::reset_counted_peak();
    const std::int64_t before = cox::detail::counted_memory().live_bytes;
    const at::Tensor loss = it.loss(3 + i % 2);
    loss.backward();
    trained.last_peak = cox::detail::counted_memory().peak_bytes - before;
    optimizer.step();
    trained.state.push_back(loss.detach().clone());
  }
  for (const at::Tensor& p : it.model->parameters()) trained.state.push_back(p.detach().clone());
  for (const at::Tensor& b : it.model->buffers()) trained.state.push_back(b.detach().clone());
  trained.state.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return trained;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), cox::detail::same_bits);
}

Trained train_adopted(const ModelCase& it, std::vector<std::string> settings) {
  settings.push_back("--cox.run.log=info");
  auto session = solo_session(settings);
  session.adopt(*it.model);
  Trained trained = train(it);
  std::string actions;
  const Plan& plan = session.plan();
  const auto blocks = session.state().actuators().get<cox::detail::BlockWatch>().names();
  for (std::size_t b = 0; b < blocks.size(); ++b)
    actions +=
        " " +
        std::string(to_string(action_of(plan, RankId(0), BlockId(static_cast<BlockId::rep>(b)))));
  MESSAGE(it.name << actions << " peak " << trained.last_peak);
  session.finish();
  return trained;
}

TEST_SUITE("adopted memory") {
  TEST_CASE("forced to recompute, every model trains with the bits of the plain loop") {
    for (const ModelCase& plain : stream_models::all_models(1)) {
      CAPTURE(plain.name);
      const Trained expected = train(plain);
      for (const ModelCase& adopted : stream_models::all_models(1)) {
        if (std::string(adopted.name) != plain.name) continue;
        const Trained found = train_adopted(adopted, {"--cox.memory.force=*=recompute"});
        CHECK(same(expected.state, found.state));
        MESSAGE("plain peak " << expected.last_peak);
      }
    }
  }
}

}  // namespace
