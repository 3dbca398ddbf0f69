#include "sdk/src/stream/operator_stream.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <string>
#include <thread>
#include <vector>

#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"
#include "tests/sdk/same_bits.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using Names = std::vector<std::string>;

// Records the operators that it is shown.
class Notes final : public OperatorListener {
 public:
  explicit Notes(bool wants = true) : wants_(wants) {}

  void touch(const c10::OperatorHandle&, const at::Tensor& argument) override {
    touched.push_back(argument.unsafeGetTensorImpl());
    if (refused == argument.unsafeGetTensorImpl()) throw std::runtime_error("refused");
  }
  bool wants_calls() const override { return wants_; }
  void begin(const OperatorCall& call) override {
    names.push_back(call.handle.operator_name().name.substr(6));
    ++open;
  }
  void end(std::span<const c10::IValue> results) override {
    --open;
    last_results = results.size();
  }
  void failed() noexcept override {
    --open;
    ++failures;
  }

  Names names;
  std::vector<const void*> touched;
  const void* refused = nullptr;
  std::size_t last_results = 0;
  int open = 0;
  int failures = 0;

 private:
  bool wants_;
};

TEST_SUITE_BEGIN("operator stream");

TEST_CASE("operators are shown inside of a scope only, and what they call inside is not") {
  Notes notes;
  const at::Tensor x = torch::randn({4, 4});
  torch::layer_norm(x, {4});
  {
    const StreamScope scope({&notes});
    torch::gelu(x).add_(1);
    torch::native_layer_norm(x, {4}, {}, {}, 1e-5);
    CHECK(notes.last_results == 3);
  }
  torch::gelu(x);
  CHECK(notes.names == Names{"gelu", "add_", "native_layer_norm"});
  CHECK(notes.open == 0);
}

TEST_CASE("of an operator that is only composed, its parts are shown") {
  Notes notes;
  const at::Tensor x = torch::randn({2, 3, 4}), w = torch::randn({5, 4}), b = torch::randn({5});
  const StreamScope scope({&notes});
  torch::linear(x, w, b);
  CHECK(std::ranges::find(notes.names, "linear") == notes.names.end());
  CHECK(std::ranges::find(notes.names, "addmm") != notes.names.end());
}

TEST_CASE("arguments are touched before a call begins, in lists and options too") {
  const at::Tensor x = torch::randn({4}), y = torch::randn({4});
  const std::vector<const void*> both = {x.unsafeGetTensorImpl(), y.unsafeGetTensorImpl()};
  for (const bool wants : {false, true}) {
    Notes notes(wants);
    const StreamScope scope({&notes});
    torch::cat({x, y});
    CHECK(notes.touched == both);
    notes.touched.clear();
    x.add(y);
    CHECK(notes.touched == both);
    notes.touched.clear();
    torch::native_layer_norm(x, {4}, y, {}, 1e-5);
    CHECK(notes.touched == both);
    notes.touched.clear();
    torch::full({3}, 2.0);
    CHECK(notes.touched.empty());
    CHECK(notes.names.empty() == !wants);
  }
}

// Wants calls from the first touched tensor on.
class Late final : public OperatorListener {
 public:
  void touch(const c10::OperatorHandle&, const at::Tensor&) override { wants_ = true; }
  bool wants_calls() const override { return wants_; }
  void begin(const OperatorCall& call) override {
    names.push_back(call.handle.operator_name().name.substr(6));
  }
  Names names;

 private:
  bool wants_ = false;
};

TEST_CASE("a listener that wants calls from touch() on is told of that very operator") {
  const at::Tensor x = torch::ones({2});
  for (const bool is_hot : {true, false}) {
    Late late;
    const StreamScope scope({&late});
    is_hot ? x.add(x) : x.erf();
    CHECK(late.names == Names{is_hot ? "add" : "erf"});
  }
}

TEST_CASE("results are the same whether calls are wanted or not, under autocast too") {
  struct Case {
    const char* name;
    std::function<at::Tensor()> run;
  };
  const at::Tensor x = torch::randn({2, 3, 8, 8}), w = torch::randn({4, 3, 3, 3});
  at::Tensor y = torch::randn({6, 8});
  const Case cases[] = {
      {"convolution", [&] { return torch::conv2d(x, w, {}, 1, 1); }},
      {"addmm", [&] { return torch::addmm(y[0].clone().narrow(0, 0, 6), y, y.t()); }},
      {"in place", [&] { return y.clone().mul_(2).add_(y); }},
      {"a tuple", [&] { return std::get<1>(torch::max_pool2d_with_indices(x, 2)); }},
      {"a list", [&] { return y.split(2, 0)[1]; }},
      {"softmax and mean", [&] { return torch::softmax(y, 1).mean({0}, false); }},
      {"embedding",
       [&] {
         return torch::embedding(y, torch::tensor({0, 3, 1}));
       }},
  };
  for (const bool autocast : {false, true}) {
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    for (const Case& item : cases) {
      const at::Tensor expected = item.run();
      for (const bool wants : {false, true}) {
        Notes notes(wants);
        const StreamScope scope({&notes});
        const at::Tensor found = item.run();
        const StreamPause unseen;
        CHECK_MESSAGE(sdk_test::same_bits(expected, found), item.name);
        CHECK_MESSAGE(notes.open == 0, item.name);
      }
    }
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST_CASE("a call that throws ends as failed, and the scope goes on") {
  Notes first, second;
  const StreamScope scope({&first, &second});
  const at::Tensor x = torch::randn({4}), y = torch::randn({5});
  CHECK_THROWS_AS(x.add(y), c10::Error);
  CHECK_THROWS_AS(x.view({3}), c10::Error);
  CHECK(first.failures == 2);
  CHECK(second.failures == 2);
  CHECK(first.open == 0);
  CHECK(torch::ones({2}).sum().item<float>() == 2);
}

TEST_CASE("a listener that throws in touch keeps the operator from running") {
  Notes notes;
  at::Tensor x = torch::zeros({4});
  {
    const StreamScope scope({&notes});
    notes.refused = x.unsafeGetTensorImpl();
    CHECK_THROWS_WITH(x.add_(1), "refused");
  }
  CHECK(x.sum().item<float>() == 0);
  CHECK(notes.open == 0);
}

TEST_CASE("the innermost scope counts, and the one around it goes on afterwards") {
  Notes outer, inner;
  const at::Tensor x = torch::ones({2});
  const StreamScope around({&outer});
  x.neg();
  {
    const StreamScope within({&inner});
    x.abs();
  }
  x.exp();
  CHECK(outer.names == Names{"neg", "exp"});
  CHECK(inner.names == Names{"abs"});
}

TEST_CASE("operators of other threads, of a pause and of a backward pass are not shown") {
  REQUIRE(install_saved_tensor_engine().ok());
  Notes notes;
  const at::Tensor x = torch::randn({4, 4}, torch::requires_grad());
  const StreamScope scope({&notes});
  const at::Tensor y = x.matmul(x).sigmoid().sum();
  const std::size_t forward = notes.names.size();
  std::thread([&] { torch::ones({2}).neg(); }).join();
  {
    const StreamPause pause;
    x.detach().neg();
  }
  const std::uint64_t before = operators_shown();
  y.backward();
  CHECK(operators_shown() - before <= 2);  // only the loss's gradient is made outside of it
  CHECK(notes.names.size() - forward <= 2);
  x.detach().neg();
  CHECK(notes.names.back() == "neg");
}

TEST_CASE("tensors are found in arguments of every kind") {
  const at::Tensor x = torch::ones({1});
  const auto count = [](const c10::IValue& value) {
    int tensors = 0;
    for_each_tensor_in(value, [&](const at::Tensor&) { ++tensors; });
    return tensors;
  };
  c10::List<std::optional<at::Tensor>> optional;
  optional.push_back(std::nullopt);
  optional.push_back(x);
  CHECK(count(x) == 1);
  CHECK(count(at::Tensor()) == 0);
  CHECK(count(std::vector<at::Tensor>{x, x}) == 2);
  CHECK(count(optional) == 1);
  CHECK(count(std::vector<std::int64_t>{1, 2}) == 0);
  CHECK(count(c10::IValue()) == 0);
  CHECK(count(1.5) == 0);
}

TEST_SUITE_END();

}  // namespace
