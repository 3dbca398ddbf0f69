#include "sdk/src/checkpoint/partial_load.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

at::Tensor text(const std::string& bytes) {
  return torch::tensor(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

Checkpoint made(double value, std::int64_t outputs, const std::string& kind) {
  Checkpoint state;
  state.position.step = static_cast<std::uint64_t>(value);
  state.model = {{"body.weight", torch::full({3}, value)},
                 {"head.weight", torch::full({outputs}, value)}};
  state.optimizer = {{"kind", text(kind)},
                     {"options.0.lr", torch::full({}, value, at::kDouble)},
                     {"group.0", text("body.weight\nhead.weight")},
                     {"exp_avg.body.weight", torch::full({3}, value)},
                     {"exp_avg.head.weight", torch::full({outputs}, value)}};
  state.reducer = {{"order", torch::arange(2)}};
  return state;
}

double value_of(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  REQUIRE(found != tensors.end());
  return found->tensor.flatten()[0].item<double>();
}

bool has(const std::vector<NamedTensor>& tensors, const std::string& name) {
  return std::ranges::find(tensors, name, &NamedTensor::name) != tensors.end();
}

}  // namespace

TEST_SUITE("a save that fits in part") {
  TEST_CASE("is taken whole where all of the model matches") {
    const PartialLoad fitted = fit_to(made(7, 2, "Adam"), made(1, 2, "SGD"));
    CHECK(fitted.left.empty());
    CHECK(value_of(fitted.state.optimizer, "options.0.lr") == 7);
    CHECK(fitted.state.reducer.size() == 1);
  }

  TEST_CASE("gives what matches, and the rest stays as the program has it") {
    Checkpoint present = made(1, 5, "Adam");
    present.model.push_back({"new.bias", torch::ones({2})});
    std::erase_if(present.optimizer,
                  [](const NamedTensor& t) { return t.name.starts_with("exp"); });
    const PartialLoad fitted = fit_to(made(7, 2, "Adam"), present);
    CHECK(fitted.left.find("missing: new.bias") != std::string::npos);
    CHECK(fitted.left.find("different: head.weight") != std::string::npos);
    CHECK(value_of(fitted.state.model, "body.weight") == 7);
    CHECK(value_of(fitted.state.model, "head.weight") == 1);
    CHECK(value_of(fitted.state.model, "new.bias") == 1);
    CHECK(value_of(fitted.state.optimizer, "exp_avg.body.weight") == 7);
    CHECK_FALSE(has(fitted.state.optimizer, "exp_avg.head.weight"));
    CHECK(value_of(fitted.state.optimizer, "options.0.lr") == 1);
    CHECK(fitted.state.reducer.empty());
    CHECK(fitted.state.position.step == 7);
  }

  TEST_CASE("leaves the state of another kind of optimizer") {
    const PartialLoad fitted = fit_to(made(7, 2, "Adam"), made(1, 5, "SGD"));
    CHECK(value_of(fitted.state.optimizer, "exp_avg.body.weight") == 1);
    CHECK(value_of(fitted.state.optimizer, "exp_avg.head.weight") == 1);
  }

  TEST_CASE("knows the second of several optimizers by its number") {
    Checkpoint saved = made(7, 2, "Adam"), present = made(1, 5, "Adam");
    for (Checkpoint* each : {&saved, &present}) {
      for (NamedTensor& tensor : each->optimizer) tensor.name = "1/" + tensor.name;
    }
    const PartialLoad fitted = fit_to(saved, present);
    CHECK(value_of(fitted.state.optimizer, "1/exp_avg.body.weight") == 7);
    CHECK(value_of(fitted.state.optimizer, "1/exp_avg.head.weight") == 1);
    CHECK(value_of(fitted.state.optimizer, "1/options.0.lr") == 1);
  }
}
