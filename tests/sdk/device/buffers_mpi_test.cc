// Buffers of several ranks on their devices.
#include <torch/torch.h>

#include <vector>

#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "stand_in_counts.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

TEST_CASE("buffers on devices become those of one rank without a wait for the device") {
  auto session = solo_session({"--cox.run.device=cuda"});
  const auto there = [&](const at::Tensor& tensor) { return tensor.to(session.device()); };
  const auto values_of = [](int rank) {
    return std::vector<at::Tensor>{torch::full({5}, rank, at::kBool),
                                   torch::full({8}, 0.5 + rank),
                                   torch::full({}, 7 + rank, at::kLong),
                                   torch::empty({0}),
                                   torch::full({2, 3}, 0.25 + rank, at::kDouble).t(),
                                   torch::full({3}, 0.75 + rank)};
  };
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& value : values_of(session.rank())) buffers.push_back(there(value));
  buffers.back() = buffers.back().cpu();  // one buffer that stayed on the CPU
  cox::detail::BufferSync sync(buffers);
  buffers[1].add_(1);
  const std::uint64_t before = synchronisations();
  CHECK(sync.follow(1, session.state().job().data()).ok());
  CHECK(synchronisations() == before);
  std::vector<at::Tensor> expected = values_of(1);
  expected[1].add_(1);
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    CAPTURE(b);
    CHECK(buffers[b].cpu().equal(expected[b]));
  }
  CHECK(sync.vote(RankId(0)) == ~std::uint64_t{0});
}
