#include "sdk/src/optim/torch_state.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

namespace optim = torch::optim;
using Groups = std::vector<optim::OptimizerParamGroup>;

// Four parameters of a model, and the gradient of step n.
struct Model {
  std::vector<NamedTensor> named;
  explicit Model(std::uint64_t seed) {
    torch::manual_seed(seed);
    for (const char* name : {"in.weight", "in.bias", "out.weight", "out.bias"})
      named.push_back({name, torch::randn({3, 2}).set_requires_grad(true)});
  }
  const at::Tensor& operator[](std::size_t i) const { return named[i].tensor; }
  at::Tensor loss(std::int64_t step) const {
    at::Tensor sum = torch::zeros({});
    for (std::size_t i = 0; i + 1 < named.size(); ++i) {  // the last parameter never has a gradient
      const at::Tensor at = torch::full_like(named[i].tensor, 0.1 * static_cast<double>(i));
      sum = sum + ((named[i].tensor - at) * (1.0 + 0.1 * static_cast<double>(step))).square().sum();
    }
    return sum;
  }
  bool equals(const Model& other) const {
    for (std::size_t i = 0; i < named.size(); ++i) {
      if (!torch::equal(named[i].tensor, other.named[i].tensor)) return false;
    }
    return true;
  }
};

void train(const Model& model, optim::Optimizer& optimizer, std::int64_t from, std::int64_t to) {
  for (std::int64_t step = from; step < to; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor loss = model.loss(step);
      loss.backward();
      return loss;
    });
  }
}

// Groups: one, or two that a resume may have in another order.
Groups one_group(const Model& m) {
  return {optim::OptimizerParamGroup({m[0], m[1], m[2], m[3]})};
}
Groups two_groups(const Model& m) {
  return {optim::OptimizerParamGroup({m[0], m[1]}), optim::OptimizerParamGroup({m[2], m[3]})};
}
Groups other_order(const Model& m) {
  return {optim::OptimizerParamGroup({m[3], m[2]}), optim::OptimizerParamGroup({m[1], m[0]})};
}

using Make = std::function<std::unique_ptr<optim::Optimizer>(Groups)>;
template <class Optimizer, class Options>
Make maker(Options options) {
  return
      [options](Groups groups) { return std::make_unique<Optimizer>(std::move(groups), options); };
}

struct Row {
  const char* kind;
  Make make;
  const char* field;  // a field of the optimizer's state
};
std::vector<Row> kinds_with_groups() {
  return {
      {"Adagrad", maker<optim::Adagrad>(optim::AdagradOptions(0.1)), "sum"},
      {"Adam", maker<optim::Adam>(optim::AdamOptions(0.1)), "exp_avg"},
      {"AdamW", maker<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true)), "max_exp_avg_sq"},
      {"RMSprop", maker<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.5).centered(true)),
       "grad_avg"},
      {"SGD", maker<optim::SGD>(optim::SGDOptions(0.01).momentum(0.9)), "momentum_buffer"}};
}
Row lbfgs() {
  return {"LBFGS", maker<optim::LBFGS>(optim::LBFGSOptions(0.1).max_iter(2).history_size(3)), "d"};
}

std::vector<NamedTensor> state_of(optim::Optimizer& optimizer, const Model& model) {
  std::vector<NamedTensor> state = named_state(optimizer, names_by_group(optimizer, model.named));
  for (NamedTensor& each : state) each.tensor = each.tensor.detach().clone();
  return state;
}

Status load(optim::Optimizer& optimizer, const Model& model, std::span<const NamedTensor> state) {
  return load_named_state(optimizer, names_by_group(optimizer, model.named), state,
                          Handover::copied);
}

const at::Tensor* find(const std::vector<NamedTensor>& state, std::string_view name) {
  for (const NamedTensor& each : state) {
    if (each.name == name) return &each.tensor;
  }
  return nullptr;
}

// Trains three steps, then continues for three more with an optimizer with `groups`.
void check_goes_on(const Row& row, Groups (*first)(const Model&), Groups (*second)(const Model&)) {
  CAPTURE(row.kind);
  const Model model(1);
  const auto optimizer = row.make(first(model));
  optimizer->param_groups()[0].options().set_lr(0.03);
  train(model, *optimizer, 0, 3);
  const auto state = state_of(*optimizer, model);
  CHECK(find(state, std::string(row.field) + ".in.weight") != nullptr);
  const Model other(1);
  for (std::size_t i = 0; i < 4; ++i) other[i].data().copy_(model[i]);
  const auto resumed = row.make(second(other));
  train(Model(9), *row.make(one_group(Model(9))), 0, 1);  // this state is discarded
  const Status loaded = load(*resumed, other, state);
  CAPTURE(loaded.text());
  REQUIRE(loaded.ok());
  train(model, *optimizer, 3, 6);
  train(other, *resumed, 3, 6);
  CHECK(model.equals(other));
}

}  // namespace

TEST_SUITE("state of torch's optimizers") {
  TEST_CASE("every kind goes on from its state by name, bit for bit") {
    for (const Row& row : kinds_with_groups()) check_goes_on(row, one_group, one_group);
    check_goes_on(lbfgs(), one_group, one_group);
  }

  TEST_CASE("tensors that are handed over become the optimizer's own, and others are copied") {
    for (const Handover handover : {Handover::copied, Handover::taken}) {
      const Model model(1);
      optim::AdamW optimizer(one_group(model), optim::AdamWOptions(0.01));
      train(model, optimizer, 0, 2);
      const auto state = state_of(optimizer, model);
      const GroupNames names = names_by_group(optimizer, model.named);
      REQUIRE(load_named_state(optimizer, names, state, handover).ok());
      const auto loaded = named_state(optimizer, names);
      const at::Tensor& saved = *find(state, "exp_avg.in.weight");
      const at::Tensor& own = *find(loaded, "exp_avg.in.weight");
      CHECK(own.equal(saved));
      CHECK((own.data_ptr() == saved.data_ptr()) == (handover == Handover::taken));
    }
  }

  TEST_CASE("groups and parameters in another order are matched by name, options with them") {
    for (const Row& row : kinds_with_groups()) check_goes_on(row, two_groups, other_order);
  }

  TEST_CASE("state that was there before a load is gone after it") {
    for (const Row& row : kinds_with_groups()) {
      CAPTURE(row.kind);
      const Model model(1);
      const auto optimizer = row.make(one_group(model));
      const auto fresh = state_of(*optimizer, model);
      const std::size_t states = optimizer->state().size();
      train(model, *optimizer, 0, 2);
      REQUIRE(load(*optimizer, model, fresh).ok());
      CHECK(optimizer->state().size() == states);
    }
  }

  TEST_CASE("a parameter that never had a gradient has no state in the list, and none after it") {
    const Model model(1);
    const auto adam = maker<optim::Adam>(optim::AdamOptions(0.1))(one_group(model));
    train(model, *adam, 0, 2);
    const auto state = state_of(*adam, model);
    CHECK(find(state, "exp_avg.out.bias") == nullptr);
    const auto other = maker<optim::Adam>(optim::AdamOptions(0.1))(one_group(model));
    REQUIRE(load(*other, model, state).ok());
    CHECK(other->state().size() == 3);
  }

  TEST_CASE("a leaf without a name is called by its place") {
    const Model model(1);
    Groups groups = two_groups(model);
    groups[1].params().push_back(torch::zeros({2}).set_requires_grad(true));
    const auto adam = maker<optim::Adam>(optim::AdamOptions(0.1))(groups);
    CHECK(names_by_group(*adam, model.named) ==
          GroupNames{{"in.weight", "in.bias"}, {"out.weight", "out.bias", "group.1.2"}});
  }

  TEST_CASE("tied parameters have the first of their names") {
    const Model model(1);
    std::vector<NamedTensor> named = model.named;
    named.push_back({"tied", model[0]});
    const auto adam = maker<optim::Adam>(optim::AdamOptions(0.1))(one_group(model));
    CHECK(names_by_group(*adam, named)[0][0] == "in.weight");
  }

  TEST_CASE("options come back as they were, absent ones as well") {
    const Model model(1);
    optim::LBFGS saved(one_group(model),
                       optim::LBFGSOptions(0.3).max_iter(7).line_search_fn("strong_wolfe"));
    optim::LBFGS resumed(one_group(model), optim::LBFGSOptions(1).max_eval(3));
    REQUIRE(load(resumed, model, state_of(saved, model)).ok());
    const auto& options = static_cast<optim::LBFGSOptions&>(resumed.param_groups()[0].options());
    CHECK(options == static_cast<optim::LBFGSOptions&>(saved.param_groups()[0].options()));
    CHECK(options.line_search_fn() == "strong_wolfe");
  }

  TEST_CASE("state that does not fit is refused by name, and nothing is changed") {
    struct Case {
      const char* title;
      std::function<void(std::vector<NamedTensor>&)> damage;
      const char* message;
    };
    const auto change = [](const char* name, const std::function<at::Tensor(at::Tensor)>& to) {
      return [=](std::vector<NamedTensor>& state) {
        for (NamedTensor& each : state) {
          if (each.name == name) each.tensor = to(each.tensor);
        }
      };
    };
    const auto drop = [](const char* name) {
      return [=](std::vector<NamedTensor>& state) {
        std::erase_if(state, [&](const NamedTensor& each) { return each.name == name; });
      };
    };
    const Case cases[] = {
        {"another shape", change("exp_avg.in.bias", [](auto t) { return t.flatten(); }),
         "expected the parameter's type and shape for exp_avg.in.bias, found Float[6]"},
        {"another type", change("exp_avg.in.bias", [](auto t) { return t.to(at::kDouble); }),
         "found Double[3, 2]"},
        {"a missing count", drop("step.in.bias"), "for step.in.bias, found none"},
        {"a missing option", drop("options.0.eps"), "for options.0.eps, found none"},
        {"other groups", change("group.0", [](auto t) { return t.slice(0, 3); }),
         "expected the groups of the save, found group 0 (in.weight, ...)"},
        {"fewer groups", drop("group.0"), "expected 0 groups of parameters"},
        {"too much",
         [](auto& state) {
           state.push_back({"exp_avg.x", torch::zeros({1})});
         },
         "found exp_avg.x"},
        {"another kind", change("kind", [](auto t) { return t.slice(0, 0, 3); }),
         "expected the state of torch::optim::Adam, found the state of Ada"},
        {"no kind", drop("kind"), "found the state of another"},
    };
    for (const Case& each : cases) {
      CAPTURE(each.title);
      const Model model(1);
      const auto adam = maker<optim::Adam>(optim::AdamOptions(0.1))(one_group(model));
      train(model, *adam, 0, 2);
      auto state = state_of(*adam, model);
      each.damage(state);
      const auto other = maker<optim::Adam>(optim::AdamOptions(0.2))(one_group(model));
      const Status loaded = load(*other, model, state);
      CAPTURE(loaded.message());
      CHECK(loaded.code() == StatusCode::invalid_argument);
      CHECK(loaded.message().find(each.message) != std::string::npos);
      CHECK(other->state().empty());
      CHECK(other->param_groups()[0].options().get_lr() == 0.2);
    }
  }

  TEST_CASE("LBFGS, whose state runs over all parameters, refuses them in another order") {
    const Model model(1);
    const auto saved = lbfgs().make(one_group(model));
    train(model, *saved, 0, 2);
    const auto other =
        lbfgs().make({optim::OptimizerParamGroup({model[1], model[0], model[2], model[3]})});
    const Status loaded = load(*other, model, state_of(*saved, model));
    CHECK(loaded.message().find("or in another order") != std::string::npos);
  }

  TEST_CASE("a program's optimizer, and one that derives from torch's, have no named state") {
    struct Own final : optim::Adam {
      using Adam::Adam;
    };
    const Model model(1);
    CHECK_FALSE(has_named_state(Own(one_group(model))));
    CHECK(has_named_state(*lbfgs().make(one_group(model))));
  }
}
