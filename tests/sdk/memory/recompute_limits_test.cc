// What cannot be recomputed is found, named and kept; nothing is silently wrong.
#include "coxswain/error.h"
#include "recompute_support.h"
#include "sdk/src/stream/saved_tensors.h"

#include <doctest/doctest.h>

namespace {

using namespace memory_test;

struct CellImpl : torch::nn::Module {
  CellImpl()
      : weight(register_parameter("weight", torch::linspace(0.5, 1.5, 4))),
        drift(register_buffer("drift", torch::zeros({4}))) {}
  Tensor smooth(const Tensor& x) { return (x * weight).exp().sin(); }
  Tensor weight;
  Tensor drift;
  int calls = 0;
};
TORCH_MODULE(Cell);

struct Steered {
  explicit Steered(MemoryAction action = kRecompute) {
    block = cox::Block<Cell>(model.register_module("cell", Cell()));
    registry = std::make_unique<BlockRegistry>(*BlockRegistry::discover(model));
    steer(*registry, {action});
  }
  void check() {
    cox::run(block, &CellImpl::smooth, input()).sum().backward();
    model.zero_grad();
  }
  std::string pin() const {
    const auto pinned = registry->pinned();
    return pinned.empty() ? "" : pinned.at(0).reason;
  }
  static Tensor input() { return torch::linspace(-1, 1, 8).view({2, 4}).requires_grad_() * 1; }
  torch::nn::Module model;
  cox::Block<Cell> block = nullptr;
  std::unique_ptr<BlockRegistry> registry;
};

template <class Act>
std::string error_of(const Act& act) {
  try {
    act();
  } catch (const cox::Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("in: " << text);
  return found;
}

template <class F>
std::vector<Tensor> gradients(MemoryAction action, const F& f, std::string* pin = nullptr) {
  Steered steered(action);
  std::vector<Tensor> seen;
  for (int pass = 0; pass < 3; ++pass) {
    const Tensor leaf = torch::linspace(-1, 1, 8).view({2, 4}).requires_grad_();
    const Tensor out = cox::run(steered.block, f, leaf * 1);
    out.sum().backward();
    seen.push_back(out.detach().clone());
    seen.push_back(leaf.grad());
    seen.push_back(steered.block->weight.grad().clone());
    seen.push_back(steered.block->drift.clone());
  }
  if (pin != nullptr) *pin = steered.pin();
  return seen;
}

}  // namespace

TEST_SUITE("sdk.memory.recompute_limits") {
  TEST_CASE("an input or a parameter that was changed in place is an error that names the block") {
    const auto edit_and_differentiate = [](bool parameter) {
      Steered steered;
      steered.check();
      const Tensor x = Steered::input();
      const Tensor out = cox::run(steered.block, &CellImpl::smooth, x);
      (parameter ? steered.block->weight : x).detach().add_(1);
      const std::string error = error_of([&] { out.sum().backward(); });
      CHECK(has(steered.pin(), "changed in place"));
      return error;
    };
    for (const bool parameter : {false, true}) {
      const std::string error = edit_and_differentiate(parameter);
      CHECK(has(error, "block cell"));
      CHECK(has(error, "changed in place"));
      CHECK(has(error, "expected version 0, found 1"));
      CHECK((error.find("parameter weight, a tensor of sizes [4]") != std::string::npos) ==
            parameter);
    }
  }

  TEST_CASE("a function that edits its input is pinned to keep, and its gradients are right") {
    const auto in_place = [](CellImpl& cell, const Tensor& x) {
      Tensor edited = x;
      return (edited.relu_() * cell.weight).exp();
    };
    std::string pin;
    CHECK(same_bits(gradients(kKeep, in_place), gradients(kRecompute, in_place, &pin)));
    CHECK(has(pin, "changes a tensor in place"));
  }

  TEST_CASE("a function that edits its parameter is pinned to keep") {
    const auto in_place = [](CellImpl& cell, const Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        cell.weight.mul_(0.5);
      }
      return (x * cell.weight).exp();
    };
    std::string pin;
    CHECK(same_bits(gradients(kKeep, in_place), gradients(kRecompute, in_place, &pin)));
    CHECK(has(pin, "changes a tensor in place"));
  }

  TEST_CASE("a buffer that decides the result and is edited is put back for the second run") {
    const auto drifting = [](CellImpl& cell, const Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        cell.drift.add_(x.detach().abs().mean());
      }
      return (x * cell.weight + cell.drift * 2).exp();
    };
    std::string pin;
    CHECK(same_bits(gradients(kKeep, drifting), gradients(kRecompute, drifting, &pin)));
    CHECK(pin.empty());
  }

  TEST_CASE("a buffer that is saved and edited afterwards gives the gradient of what was saved") {
    const auto saving = [](CellImpl& cell, const Tensor& x) {
      const Tensor y = x.exp() * cell.drift.clone() + x * cell.drift;
      const torch::NoGradGuard no_grad;
      cell.drift.add_(1);
      return y;
    };
    Steered steered;
    for (int pass = 0; pass < 3; ++pass) {
      const Tensor leaf = torch::linspace(-1, 1, 4).requires_grad_();
      const Tensor drift = steered.block->drift.clone();
      const Tensor out = cox::run(steered.block, saving, leaf * 1);
      try {
        out.sum().backward();
        CHECK(torch::allclose(leaf.grad(), leaf.detach().exp() * drift + drift));
      } catch (const std::exception& error) {
        CHECK(has(error.what(), "block cell"));  // what keep says too, but for the name
      }
    }
  }

  TEST_CASE("an intermediate tensor that is edited in place is never silently wrong") {
    const auto edited_at_the_end = [](CellImpl&, const Tensor& x) {
      Tensor y = x.exp();
      const Tensor z = y.sin();
      y.add_(1);
      return y * 2 + z;
    };
    const auto edited_before_more_is_saved = [](CellImpl&, const Tensor& x) {
      Tensor y = x.exp();
      const Tensor z = y.sin();
      y.add_(1);
      return y * 2 + z + x.cos().detach() * x.tanh() * 0;
    };
    const auto try_it = [](const auto& f, bool checked) {
      Steered steered;
      if (checked) steered.check();
      const Tensor leaf = torch::linspace(-1, 1, 4).requires_grad_();
      const Tensor out = cox::run(steered.block, f, leaf * 1);
      const Tensor e = leaf.detach().exp();
      std::string error = error_of([&] { out.sum().backward(); });
      if (error.empty()) CHECK(torch::allclose(leaf.grad(), 2 * e + e.cos() * e));
      return error;
    };
    for (const bool checked : {false, true}) {
      const std::string at_the_end = try_it(edited_at_the_end, checked);
      if (!at_the_end.empty()) CHECK(has(at_the_end, "block cell"));
      CHECK(has(try_it(edited_before_more_is_saved, checked), "block cell"));
    }
  }

  TEST_CASE("outputs that are the input or views of it keep their gradients") {
    const auto viewing = [](CellImpl& cell, const Tensor& x) {
      return std::vector<Tensor>{x, x.view({-1}), (x * cell.weight).exp()};
    };
    const auto run = [&](MemoryAction action) {
      Steered steered(action);
      steered.check();
      const Tensor leaf = torch::linspace(-1, 1, 8).view({2, 4}).requires_grad_();
      const auto out = cox::run(steered.block, viewing, leaf * 1);
      (out[0].sin().sum() + out[1].pow(3).sum() + out[2].sum()).backward();
      CHECK(steered.pin().empty());
      return std::vector<Tensor>{leaf.grad(), steered.block->weight.grad()};
    };
    CHECK(same_bits(run(kKeep), run(kRecompute)));
  }

  TEST_CASE("editing an output that is a view of the input is an error that names the block") {
    Steered steered;
    steered.check();
    const auto viewing = [](CellImpl& cell, const Tensor& x) {
      return std::vector<Tensor>{x.view({-1}), (x * cell.weight).exp()};
    };
    auto out = cox::run(steered.block, viewing, Steered::input());
    out[0].add_(1);
    CHECK(has(error_of([&] { (out[0].sum() + out[1].sum()).backward(); }), "block cell"));
  }

  TEST_CASE("a function that computes differently each time is pinned with the reason") {
    const auto random = [](CellImpl& cell, const Tensor& x) {
      const double factor = ++cell.calls;
      return (x * (cell.weight * factor).exp()).sin();
    };
    Steered steered;
    steered.block->calls = 0;
    cox::run(steered.block, random, Steered::input()).sum().backward();
    CHECK(has(steered.pin(), "recompute saved different tensors"));
    CHECK(has(steered.pin(), "with the same bits, found other bits"));
    const int calls = steered.block->calls;
    cox::run(steered.block, random, Steered::input()).sum().backward();
    CHECK(steered.block->calls == calls + 1);
    steered.registry->unpin(BlockId(0));
    cox::run(steered.block, random, Steered::input()).sum().backward();
    CHECK(steered.block->calls == calls + 3);  // checked anew
    CHECK_FALSE(steered.pin().empty());
  }

  TEST_CASE("a function that saves other tensors at recompute is an error that names the block") {
    const auto changing = [](CellImpl& cell, const Tensor& x) {
      const Tensor y = (x * cell.weight).exp();
      return cell.calls == 0 ? y.sin() : y;
    };
    const auto reshaping = [](CellImpl& cell, const Tensor& x) {
      return cell.calls == 0 ? x.exp() : x.view({-1}).exp();
    };
    const auto differentiate = [](const auto& f) {
      Steered steered;
      steered.check();
      const Tensor out = cox::run(steered.block, f, Steered::input());
      steered.block->calls = 1;
      const std::string error = error_of([&] { out.sum().backward(); });
      CHECK_FALSE(steered.pin().empty());
      return error;
    };
    for (const std::string& error : {differentiate(changing), differentiate(reshaping)}) {
      CHECK(has(error, "block cell: recompute saved different tensors: expected"));
      CHECK(has(error, "found"));
      CHECK(has(error, "or keep this block"));
    }
  }

  TEST_CASE("what a function throws forward passes through and leaves nothing behind") {
    Steered steered;
    const auto fail = [](CellImpl& cell, const Tensor& x) -> Tensor {
      throw std::out_of_range("of " + std::to_string(cell.smooth(x).numel()));
    };
    for (int pass = 0; pass < 2; ++pass) {
      CHECK_THROWS_WITH_AS((void)cox::run(steered.block, fail, Steered::input()), "of 8",
                           std::out_of_range);
      CHECK(cox::detail::innermost_frame() == nullptr);
      CHECK(cox::detail::current_context() == nullptr);
      steered.check();
    }
    CHECK(steered.pin().empty());
  }

  TEST_CASE(
      "what a function throws at recompute names the block, and the block is kept from then") {
    Steered steered;
    steered.check();
    const auto fragile = [](CellImpl& cell, const Tensor& x) {
      if (cell.calls > 0) throw std::runtime_error("no more");
      return cell.smooth(x);
    };
    const Tensor out = cox::run(steered.block, fragile, Steered::input());
    steered.block->calls = 1;
    const Tensor before = at::detail::getDefaultCPUGenerator().get_state();
    const std::string error = error_of([&] { out.sum().backward(); });
    CHECK(has(error, "block cell: running it again for the backward pass failed: no more"));
    CHECK(torch::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
    CHECK(cox::detail::innermost_frame() == nullptr);
    CHECK(cox::detail::current_context() == nullptr);
    steered.block->calls = 0;
    const Tensor again = cox::run(steered.block, fragile, Steered::input());
    steered.block->calls = 1;
    CHECK_NOTHROW(again.sum().backward());
  }

  TEST_CASE("a check can be asked for under keep, happens once and leaves no trace") {
    const auto counting = [](CellImpl& cell, const Tensor& x) {
      ++cell.calls;
      return torch::dropout(cell.smooth(x), 0.5, true);
    };
    Steered steered(kKeep);
    steered.registry->request_checks();
    torch::manual_seed(1);
    (void)torch::dropout(torch::ones({2, 4}), 0.5, true);
    const Tensor expected = at::detail::getDefaultCPUGenerator().get_state();
    torch::manual_seed(1);
    (void)cox::run(steered.block, counting, Steered::input());
    CHECK(steered.block->calls == 2);
    CHECK(torch::equal(expected, at::detail::getDefaultCPUGenerator().get_state()));
    (void)cox::run(steered.block, counting, Steered::input());
    CHECK(steered.block->calls == 3);
    CHECK(steered.pin().empty());
  }

  TEST_CASE("offload keeps where no frames are given, and uses those that are") {
    struct Frame final : cox::detail::SavedTensorFrame {
      std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
        ++asked;
        return nullptr;
      }
      int asked = 0;
    };
    Steered steered(MemoryAction::offload);
    steered.check();
    const auto frame = std::make_shared<Frame>();
    steered.registry->set_offload([&](const cox::detail::BlockState& state) {
      CHECK(state.name == "cell");
      return frame;
    });
    steered.check();
    CHECK(frame->asked > 0);
  }
}
