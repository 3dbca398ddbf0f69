#include "sdk/src/stream/operator_meter.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sdk/examples/gpt2/model.h"
#include "sdk/src/stream/operator_times.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

// Counts all operators for block 0, or for the given block.
class Metered final : public OperatorListener {
 public:
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override { meter_.begin(call, block); }
  void end(std::span<const c10::IValue> results) override { meter_.end(results); }
  void failed() noexcept override { meter_.failed(); }

  std::vector<OperatorRow> take() {
    OperatorTable table;
    table.blocks = {{"first"}, {"second"}};
    std::array<double, 2> flops{};
    const bool is_any = meter_.add_to(table, flops);
    CHECK(is_any != table.rows.empty());
    double sum = 0;
    for (const OperatorRow& row : table.rows) sum += row.flops ? row.flops->sum() : 0;
    CHECK(flops[0] + flops[1] == doctest::Approx(sum));
    return table.rows;
  }

  BlockId block{0};

 private:
  OperatorMeter meter_{&steady_ns};
};

template <class Work>
std::vector<OperatorRow> rows_of(const Work& work) {
  Metered metered;
  const StreamScope scope({&metered});
  work();
  return metered.take();
}

OperatorRow row(const std::vector<OperatorRow>& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &OperatorRow::name);
  REQUIRE_MESSAGE(found != rows.end(), name);
  return *found;
}

OperatorFlops flops_in(const std::vector<OperatorRow>& rows) {
  return sum_of(rows).flops.value_or(OperatorFlops{});
}

// Keeps the shapes of the calls.
class Shapes final : public OperatorListener {
 public:
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override { all.push_back(shapes_of(call)); }
  std::vector<OperatorShapes> all;
};

TEST_SUITE_BEGIN("operator meter");

TEST_CASE("arguments are read by their places, left out ones and lists too") {
  const at::Tensor image = torch::randn({2, 3, 8, 8});
  const at::Tensor kernel = torch::randn({3, 4, 2, 2}, at::requires_grad());
  Shapes shapes;
  {
    const StreamScope scope({&shapes});
    at::convolution(image, kernel, {}, {1, 1}, {0, 0}, {1, 1}, true, {0, 0}, 1);
    at::cat({image, image});
    const at::NoGradGuard no_grad;
    at::mm(torch::ones({2, 3}).set_requires_grad(true), torch::ones({3, 4}));
  }
  const auto find = [&](std::string_view name) {
    return *std::ranges::find(shapes.all, name, &OperatorShapes::name);
  };
  const OperatorShapes convolution = find("aten::convolution");
  REQUIRE(convolution.operands.size() == 3);
  CHECK(convolution.operands[1].sizes == std::vector<std::int64_t>{3, 4, 2, 2});
  CHECK(convolution.operands[1].needs_gradient);
  CHECK_FALSE(convolution.operands[0].needs_gradient);
  CHECK(convolution.operands[2].sizes.empty());
  CHECK(convolution.convolution == ConvolutionKind::transposed);
  CHECK(find("aten::cat").operands.size() == 2);
  CHECK_FALSE(find("aten::mm").operands[0].needs_gradient);  // gradients are off
}

TEST_CASE("operators are counted by name and block, with their FLOPs and bytes") {
  const at::Tensor x = torch::randn({4, 8});
  const at::Tensor w = torch::randn({8, 16}, at::requires_grad());
  Metered metered;
  {
    const StreamScope scope({&metered});
    const at::Tensor y = at::mm(x, w);
    at::mm(x, w);
    metered.block = BlockId(1);
    at::mm(y, w.t());
  }
  const auto rows = metered.take();
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].name == "aten::mm");
  CHECK(rows[0].block == "first");
  CHECK(rows[0].calls == 2);
  CHECK(rows[0].result_bytes == 2 * 4 * 16 * 4);
  CHECK(rows[0].flops == OperatorFlops{2.0 * 2 * 4 * 8 * 16, 2.0 * 2 * 4 * 8 * 16});
  CHECK(rows[1].block == "second");
  CHECK(rows[1].flops == OperatorFlops{2.0 * 4 * 16 * 8, 2 * 2.0 * 4 * 16 * 8});
  CHECK(rows[2].name == "aten::t");
  CHECK_FALSE(rows[2].flops);
  CHECK(metered.take().empty());
}

TEST_CASE("time passes in operators, and overloads of one are one row") {
  const at::Tensor x = torch::randn({256, 256});
  const auto rows = rows_of([&] { return x + x + 1; });
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].name == "aten::add");
  CHECK(rows[0].calls == 2);
  CHECK(rows[0].forward_ns > 0);
}

TEST_CASE(
    "views and operators in place make no bytes, a storage of several results makes them once") {
  const at::Tensor x = torch::randn({6, 32});
  const auto rows = rows_of([&] {
    x.view({32, 6});
    x.relu_();
    at::unsafe_chunk(x, 3);
    at::native_layer_norm(x, {32}, {}, {}, 1e-5);
    at::cat({x, x});
  });
  CHECK(row(rows, "aten::view").result_bytes == 0);
  CHECK(row(rows, "aten::relu_").result_bytes == 0);
  CHECK(row(rows, "aten::cat").result_bytes == 2 * 6 * 32 * 4);
  CHECK(row(rows, "aten::native_layer_norm").result_bytes == (6 * 32 + 6 + 6) * 4);
}

TEST_CASE("an operator that throws is not counted, and the next one is") {
  const at::Tensor x = torch::randn({2, 3});
  const auto rows = rows_of([&] {
    CHECK_THROWS(at::mm(x, x));
    at::mm(x, x.t());
  });
  CHECK(row(rows, "aten::mm").calls == 1);
}

TEST_CASE("an LSTM has the FLOPs of its gates, in whatever parts it runs") {
  constexpr std::int64_t kLength = 7, kRows = 3, kIn = 5, kHidden = 4;
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(kIn, kHidden));
  const at::Tensor x = torch::randn({kLength, kRows, kIn});
  const auto rows = rows_of([&] { lstm->forward(x); });
  const double operand = 2.0 * kLength * kRows * 4 * kHidden * kIn;
  const double state = 2.0 * kLength * kRows * 4 * kHidden * kHidden;
  CHECK(flops_in(rows).forward == operand + state);
}

TEST_CASE("convolutions of modules are counted, with groups and transposed") {
  const at::Tensor x = torch::randn({2, 8, 10, 10});
  torch::nn::Conv2d plain(torch::nn::Conv2dOptions(8, 6, 3).stride(2));
  CHECK(flops_in(rows_of([&] { plain->forward(x); })).forward == 2.0 * 2 * 6 * 4 * 4 * 8 * 9);
  torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(8, 8, 3).groups(8));
  CHECK(flops_in(rows_of([&] { grouped->forward(x); })).forward == 2.0 * 2 * 8 * 8 * 8 * 9);
  torch::nn::ConvTranspose2d up(torch::nn::ConvTranspose2dOptions(8, 3, 2).stride(2));
  CHECK(flops_in(rows_of([&] { up->forward(x); })).forward == 2.0 * 2 * 100 * 8 * 3 * 4);
}

// Without dropout, a CPU's fused attention is one operator.
gpt2::Config without_dropout() {
  gpt2::Config config;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  return config;
}

struct Gpt2Case {
  gpt2::Config config = without_dropout();
  std::int64_t rows = 4;
  std::int64_t length = 96;

  OperatorFlops measured(gpt2::Attention attention) const {
    gpt2::Gpt2 model(config, attention);
    const at::Tensor tokens = torch::randint(config.vocab_size, {rows, length}, at::kLong);
    return flops_in(rows_of([&] { model->loss(tokens, tokens); }));
  }
  double tokens() const { return static_cast<double>(rows * length); }
  // Returns the number of parameters that tokens are multiplied by, N: 12 width^2 in each layer,
  // and the head.
  double parameters() const {
    const auto width = static_cast<double>(config.n_embd);
    return static_cast<double>(config.n_layer) * 12 * width * width +
           static_cast<double>(config.vocab_size) * width;
  }
  // Returns the FLOPs of one product of attention: queries by keys, or weights by values.
  double product() const {
    return 2.0 * static_cast<double>(config.n_layer * config.n_embd * length) * tokens();
  }
};

TEST_CASE("the demo's GPT-2 has 6 N T and 12 L d S T, as the known formula says") {
  const Gpt2Case it;
  const OperatorFlops plain = it.measured(gpt2::Attention::plain);
  CHECK(plain.forward == 2 * it.parameters() * it.tokens() + 2 * it.product());
  CHECK(plain.backward == 2 * plain.forward);
  CHECK(plain.sum() == 6 * it.parameters() * it.tokens() + 6 * it.product());
}

TEST_CASE("fused attention is the same forward, and makes its scores again backward") {
  const Gpt2Case it;
  const OperatorFlops fused = it.measured(gpt2::Attention::fused);
  CHECK(fused.forward == 2 * it.parameters() * it.tokens() + 2 * it.product());
  CHECK(fused.sum() == 6 * it.parameters() * it.tokens() + 7 * it.product());
}

TEST_CASE("dropout of attention's weights changes no FLOPs forward") {
  Gpt2Case it;
  it.config.attn_pdrop = 0.1;
  const OperatorFlops fused = it.measured(gpt2::Attention::fused);
  CHECK(fused.forward == 2 * it.parameters() * it.tokens() + 2 * it.product());
}

TEST_SUITE_END();

}  // namespace
