// Named programs that a naive tape gets wrong. Each gives the bits of plain autograd under every
// choice, and other bits without the rule in its name.
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/sdk/stream/tape_trial.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;

// y = (x * w).tanh() with its own backward pass.
struct ScaledTanh : torch::autograd::Function<ScaledTanh> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& w) {
    const Tensor y = (x * w).tanh();
    context->save_for_backward({x, w, y});
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor inner = gradients[0] * (1 - saved[2] * saved[2]);
    return {inner * saved[1], inner * saved[0]};
  }
};

class Autocast {
 public:
  explicit Autocast(const Tensor& example) : device_(example.device().type()) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const at::DeviceType device_;
};

Tensor view_then_base(Workbench& b) {
  Tensor y = b.x.matmul(b.weights[0]);
  const Tensor flat = y.view({-1});
  y.mul_(2);
  return (flat.view({4, 8}) * b.rows(1)).sum();
}

Tensor through_a_view(Workbench& b) {
  Tensor y = b.x.matmul(b.weights[0]);
  y.narrow(1, 0, 4).mul_(3);
  y[0] = y[1] * 2;
  return (y * b.rows(1)).sigmoid().sum();
}

Tensor view_through_data(Workbench& b) {
  const Tensor y = b.x.matmul(b.weights[0]).sigmoid();
  const Tensor alias = y.variable_data();  // a tensor object made by no operator
  return (alias * y * b.rows(1)).tanh().sum();
}

Tensor addresses_used_again(Workbench& b) {
  const Tensor h = b.x.matmul(b.weights[0]);
  Tensor sum = h;
  for (int i = 0; i < 6; ++i) {
    { const Tensor gone = h * static_cast<float>(i + 2); }
    const Tensor other = torch::from_blob(b.raw.data(), {4, 8}).to(b.x.device());
    sum = (sum + other).sigmoid();
  }
  return sum.matmul(b.weights[1]).sum();
}

Tensor foreign_memory(Workbench& b) {
  b.raw.fill(0.3F);
  const Tensor mask = torch::from_blob(b.raw.data(), {4, 8}).clone().to(b.x.device());
  const Tensor y = (mask.mul(2) + 0).matmul(b.weights[0]);
  return (y.sigmoid() * b.rows(1)).sum();
}

Tensor mask_written_by_hand(Workbench& b) {
  Tensor mask = torch::zeros({4, 8});
  mask.accessor<float, 2>()[1][2] = 5;
  const Tensor y = (b.x.matmul(b.weights[0]) + mask).sigmoid();
  return ((y * mask).tanh() * b.rows(1)).sum();
}

Tensor writes_to_its_input(Workbench& b) {
  Tensor in = b.x * 1.0;
  b.cut();
  const Tensor h = in * 2;
  const Tensor g = torch::gelu(h.matmul(b.weights[0]));
  in += g;
  return (in * b.rows(1)).sigmoid().sum();
}

Tensor next_region_writes(Workbench& b) {
  Tensor in = b.x * 1.0;
  b.cut();
  const Tensor g = torch::gelu((in * 2).matmul(b.weights[0]));
  b.cut();
  in.add_(1);
  const Tensor again = (in * 3).sigmoid();
  return (again * g * b.rows(1)).sum();
}

Tensor without_gradients_inside(Workbench& b) {
  Tensor scale;
  {
    const at::NoGradGuard no_grad;
    scale = b.x.matmul(b.weights[0]).abs() * b.rows(1) + 1;
    scale = scale * scale;
  }
  const Tensor y = (b.x.matmul(b.weights[0]) / scale).tanh();
  return (y * scale * b.rows(2)).sum();
}

Tensor detached_inside(Workbench& b) {
  const Tensor h = b.x.matmul(b.weights[0]).sigmoid();
  const Tensor gate = h.detach() * 2;
  const Tensor y = torch::layer_norm(gate * h, {8}, b.weights[1][0], b.weights[1][1]);
  return (y * gate * b.rows(2)).tanh().sum();
}

Tensor custom_function(Workbench& b) {
  const Tensor y = b.x.matmul(b.weights[0]).relu();
  const Tensor z = ScaledTanh::apply(y, b.rows(1));
  const Tensor q = (z * 2).sigmoid();
  return (q.matmul(b.weights[2]) * z).sum();
}

Tensor batch_normalisation(Workbench& b) {
  const Tensor y = torch::batch_norm(b.x.matmul(b.weights[0]), b.weights[1][0], b.weights[1][1],
                                     b.mean, b.variance, true, 0.1, 1e-5, false);
  return (y.sigmoid() * b.rows(2)).sum();
}

Tensor instance_normalisation(Workbench& b) {
  const Tensor in = b.x.matmul(b.weights[0]).view({2, 8, 2});
  const Tensor y = torch::instance_norm(in, b.weights[1][0], b.weights[1][1], b.mean, b.variance,
                                        true, 0.1, 1e-5, false);
  return (y.reshape({4, 8}).sigmoid() * b.rows(2)).sum();
}

Tensor spectral_normalisation(Workbench& b) {
  {
    const at::NoGradGuard no_grad;
    Tensor v = b.weights[0].t().mv(b.mean + 0.1);
    v = v / v.norm();
    b.mean.copy_(b.weights[0].mv(v));
    b.mean.div_(b.mean.norm());
  }
  const Tensor sigma = b.mean.dot(b.weights[0].mv(b.mean));
  const Tensor y = b.x.matmul(b.weights[0] / sigma);
  return (y.sigmoid() * b.rows(2)).sum();
}

Tensor dropouts(Workbench& b) {
  Tensor y = torch::dropout(b.x.matmul(b.weights[0]), 0.3, true);
  const Tensor q = y.view({1, 2, 2, 8});
  y = at::scaled_dot_product_attention(q, q, q, {}, 0.2, false).reshape({4, 8});
  y = y * torch::bernoulli(torch::full_like(y, 0.5));
  return (y.sigmoid() * b.rows(1)).sum();
}

Tensor random_leaky_relu(Workbench& b) {
  const Tensor y = torch::rrelu(b.x.matmul(b.weights[0]), 0.1, 0.4, true);
  return (y.sigmoid() * b.rows(1)).sum();
}

Tensor a_generator_of_its_own(Workbench& b) {
  at::Generator own = at::globalContext().defaultGenerator(b.x.device()).clone();
  own.set_current_seed(5);
  const Tensor noise = at::bernoulli(torch::full({4, 8}, 0.5, b.x.device()), own);
  const Tensor y = b.x.matmul(b.weights[0]);
  return ((y * at::bernoulli(y.sigmoid().detach(), own) + noise).sigmoid() * b.rows(1)).sum();
}

Tensor lists(Workbench& b) {
  const Tensor y = b.x.matmul(b.weights[0]);
  const auto parts = y.split(2, 1);
  const auto two = torch::stack({parts[0].sigmoid(), parts[1].tanh()}, 0).unbind(0);
  Tensor z = torch::cat({two[0], two[1], parts[2], parts[3]}, 1).contiguous().to(at::kFloat);
  z = torch::dropout(z, 0.5, false);
  z = torch::where(z > 0, z, z * z);
  z = z.index({torch::tensor({0, 2, 1, 3})});
  return (z.expand({2, 4, 8}) * b.rows(1)).sum();
}

Tensor under_autocast(Workbench& b) {
  Tensor y;
  {
    const Autocast autocast(b.x);
    y = torch::gelu(torch::linear(b.x, b.weights[0]));
    y = at::mm(torch::linear(y, b.weights[0]).tanh(), b.weights[1]).sigmoid();
  }
  return (y.to(at::kFloat) * b.rows(1)).sum();
}

Tensor recurrent_and_convolution(Workbench& b) {
  const Tensor zero = torch::zeros({1, 4, 2});
  const Tensor out = std::get<0>(torch::lstm(
      b.x.view({4, 1, 8}).matmul(b.weights[0]), {zero, zero},
      {b.weights[1], b.weights[2].narrow(1, 0, 2).contiguous(), b.weights[1][0], b.weights[1][1]},
      true, 1, 0., true, false, true));
  Tensor y = torch::layer_norm(b.x.matmul(b.weights[0]), {8}, b.weights[3][0], b.weights[3][1]);
  y = torch::relu_(y) + out.sum();
  y = torch::conv1d(y.unsqueeze(1), b.weights[2].narrow(0, 0, 3).view({3, 1, 8}), {}, 1, 4);
  return y.sigmoid().pow(2).sum();
}

// Like a recurrent cell: the parts share one storage and count their own writes.
Tensor gates_written_in_place(Workbench& b) {
  const auto gates = b.x.matmul(b.weights[0]).unsafe_chunk(4, 1);
  const Tensor in = gates[0].sigmoid_(), forget = gates[1].sigmoid_(), cell = gates[2].tanh_();
  const Tensor state = forget * b.rows(1).narrow(1, 0, 2) + in * cell;
  return (gates[3].sigmoid_() * state.tanh()).sum();
}

// The first part is saved and may be kept; the second part's state is in the same storage.
Tensor neighbours_written_afterwards(Workbench& b) {
  Tensor sum = torch::zeros({});
  for (std::size_t i = 0; i < b.weights.size(); ++i) {
    const auto parts = b.x.matmul(b.weights[i]).unsafe_chunk(2, 1);
    const Tensor first = parts[0].sigmoid_(), second = parts[1].tanh();
    b.held.push_back(parts[1]);
    sum = sum + (first.exp() * second.exp()).sum();
  }
  return sum;
}
void write_to_all_held(Workbench& b) {
  const at::NoGradGuard no_grad;
  for (const Tensor& each : b.held) each.detach().add_(1);
}

Tensor into_a_given_tensor(Workbench& b) {
  const Tensor y = b.x.matmul(b.weights[0]).sigmoid();
  Tensor out = torch::empty({4, 8});
  {
    const at::NoGradGuard no_grad;
    at::mul_out(out, y.detach(), b.x);
    out.add_(1);
  }
  return (y * out * b.rows(1)).tanh().sum();
}

// The loss does not depend on the product that keeps y, so plain autograd never reads y again.
Tensor written_after_it_was_kept(Workbench& b) {
  const Tensor y = b.x.matmul(b.weights[0]);
  b.held = {y, y * b.rows(1)};
  const Tensor gate = y.sigmoid();
  return (gate * b.rows(2)).sum();
}
void write_to_held(Workbench& b) {
  const at::NoGradGuard no_grad;
  b.held[0].detach().add_(1);
}

Tensor read_before_the_last_write(Workbench& b) {
  Tensor y = b.x.matmul(b.weights[0]);
  const Tensor early = y + 1;
  const Tensor gate = early.sigmoid();
  y.add_(1);
  const Tensor late = y * b.rows(1);  // saves y after the write
  return (gate * late * early.tanh()).sum();
}

Tensor several_regions_alive(Workbench& b) {
  Tensor y = b.x;
  std::vector<Tensor> skips;
  for (std::size_t i = 0; i < 4; ++i) {
    b.cut();
    y = torch::gelu(torch::dropout(y.matmul(b.weights[i]), 0.2, true));
    if (i % 2 == 0) skips.push_back(y);
    if (i == 3) y = y + skips[0] * skips[1];
  }
  return y.square().sum();
}

Tensor complex_numbers(Workbench& b) {
  const Tensor c = torch::complex(b.x.matmul(b.weights[0]), b.x.matmul(b.weights[1]));
  const Tensor product = c.matmul(c.conj().t());
  return torch::real(product * product.conj()).sqrt().sum();
}

Tensor same_tensor_twice(Workbench& b) {
  Tensor y = b.x.matmul(b.weights[0]);
  for (int i = 0; i < 3; ++i) {
    const Tensor h = torch::gelu(y);
    y = y + h.matmul(b.weights[0]) * h;
  }
  return (y * y).mean();
}

Tensor an_operator_that_throws(Workbench& b) {
  Tensor y = b.x.matmul(b.weights[0]);
  try {
    y.add_(torch::ones({5}));
  } catch (const c10::Error&) {
  }
  return (y.sigmoid() * b.rows(1)).tanh().sum();
}

const std::vector<Program>& programs() {
  static const std::vector<Program> all = {
      {"a view, then a write to its base", view_then_base},
      {"a write through a view", through_a_view},
      {"an alias that no operator made", view_through_data},
      {"addresses used again", addresses_used_again},
      {"memory of the program's own, written before backward", foreign_memory,
       [](Workbench& b) { b.raw.fill(9); }},
      {"a mask written by hand", mask_written_by_hand},
      {"a write to a tensor from before the region", writes_to_its_input},
      {"a write in the next region", next_region_writes},
      {"a part without gradients", without_gradients_inside},
      {"a detached part", detached_inside},
      {"a custom function", custom_function},
      {"batch normalisation", batch_normalisation},
      {"instance normalisation", instance_normalisation},
      {"spectral normalisation", spectral_normalisation},
      {"dropouts", dropouts},
      {"random leaky relu", random_leaky_relu},
      {"a generator of its own", a_generator_of_its_own},
      {"lists", lists},
      {"under autocast", under_autocast},
      {"recurrent and convolution", recurrent_and_convolution},
      {"gates written in place", gates_written_in_place},
      {"neighbours written afterwards", neighbours_written_afterwards, write_to_all_held},
      {"into a given tensor", into_a_given_tensor},
      {"written after it was kept", written_after_it_was_kept, write_to_held},
      {"read before the last write", read_before_the_last_write},
      {"several regions alive", several_regions_alive},
      {"complex numbers", complex_numbers},
      {"the same tensor twice", same_tensor_twice},
      {"an operator that throws", an_operator_that_throws},
  };
  return all;
}

// Returns whether the program needs host access to its results.
bool is_of_the_host(const Program& program) {
  return std::string_view(program.name) == "a mask written by hand";
}

std::vector<Program> programs_here() {
  std::vector<Program> all = programs();
  if (!trial_device().is_cpu()) std::erase_if(all, is_of_the_host);
  return all;
}

TrialOutcome plain(const Program& program, Backward backward) {
  return run_program(program, {.is_taped = false}, backward);
}

TEST_SUITE_BEGIN("tape");

TEST_CASE("a program's bits are those of plain autograd, whatever is dropped") {
  torch::set_num_threads(1);
  for (const Program& program : programs_here()) {
    const TrialOutcome expected = plain(program, Backward::once);
    CAPTURE(std::string(program.name));
    REQUIRE(expected.error == "");
    for (const double probability : {0.0, 0.3, 0.7, 1.0}) {
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        const TrialOutcome taped =
            run_program(program, {.keep_probability = probability, .seed = seed}, Backward::once);
        CHECK_MESSAGE(difference(expected, taped) == "",
                      std::string(program.name) << ", kept " << probability << ", seed " << seed
                                                << ": " << difference(expected, taped));
      }
    }
  }
}

TEST_CASE("backward over a retained graph, and of gradients, gives the same bits") {
  for (const Program& program : programs_here()) {
    for (const Backward backward : {Backward::twice, Backward::thrice_differentiated}) {
      const TrialOutcome expected = plain(program, backward);
      if (!expected.error.empty()) continue;  // some functions have no second derivative
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const TrialOutcome taped =
            run_program(program, {.keep_probability = 0.4, .seed = seed}, backward);
        CHECK_MESSAGE(difference(expected, taped) == "", std::string(program.name)
                                                             << ", seed " << seed << ": "
                                                             << difference(expected, taped));
      }
    }
  }
}

// Returns the next node number of the thread that runs backward passes on the trial's device.
std::uint64_t number_of_backward_thread() {
  Tensor x = torch::ones({1}, trial_device()).requires_grad_();
  std::uint64_t number = 0;
  x.register_hook([&number](const Tensor& gradient) {
    number = at::sequence_number::peek();
    return gradient;
  });
  (x * 2).sum().backward();
  return number;
}

TEST_CASE("gradients of gradients keep their bits while one thread's nodes overtake another's") {
  const Program program{"lists", lists};
  const std::uint64_t theirs = number_of_backward_thread();
  const std::uint64_t ours = at::sequence_number::peek();
  constexpr std::uint64_t kAhead = 300;  // some runs of the program use as many numbers
  if (ours < theirs + kAhead) take_node_numbers(static_cast<int>(theirs + kAhead - ours));
  const TrialOutcome expected = plain(program, Backward::thrice_differentiated);
  REQUIRE(expected.error == "");
  for (int run = 1; run <= 6; ++run) {
    CAPTURE(run);
    CHECK(difference(expected, plain(program, Backward::thrice_differentiated)) == "");
  }
}

TEST_CASE("dropping everything keeps little, and replays") {
  std::uint64_t dropped = 0, replayed = 0;
  for (const Program& program : programs_here()) {
    const TrialOutcome taped = run_program(program, {.holds_tapes = true}, Backward::once);
    dropped += taped.counts.dropped;
    replayed += taped.counts.replayed;
  }
  CHECK(dropped > 50);
  CHECK(replayed > dropped);
}

struct RuleCase {
  const char* rule;
  bool TapeRules::*member;
  const char* program;  // the program that needs the rule
};

const RuleCase kRules[] = {
    {"storages", &TapeRules::storages, "a view, then a write to its base"},
    {"weak references", &TapeRules::weak_references, "addresses used again"},
    {"detached arguments", &TapeRules::detached, "a custom function"},
    {"gradient mode", &TapeRules::gradient_mode, "recurrent and convolution"},
    {"autocast", &TapeRules::autocast, "under autocast"},
    {"generators", &TapeRules::generators, "dropouts"},
    {"copies", &TapeRules::copies, "a write to a tensor from before the region"},
    {"copies everywhere", &TapeRules::copies_everywhere, "a write in the next region"},
    {"factories", &TapeRules::factories, "a mask written by hand"},
    {"statistics", &TapeRules::statistics, "batch normalisation"},
    {"after the operator", &TapeRules::after_operator, "random leaky relu"},
    {"last state", &TapeRules::last_state, "read before the last write"},
    {"versions", &TapeRules::versions, "written after it was kept"},
};

TEST_CASE("each rule is needed: without it the program named for it goes wrong") {
  for (const RuleCase& item : kRules) {
#ifdef __SANITIZE_ADDRESS__
    if (item.member == &TapeRules::weak_references) continue;  // the sanitizer reuses no addresses
#endif
    const auto program = std::ranges::find_if(programs(), [&](const Program& each) {
      return std::string_view(each.name) == item.program;
    });
    REQUIRE(program != programs().end());
    if (!trial_device().is_cpu() && is_of_the_host(*program)) continue;
    const TrialOutcome expected = plain(*program, Backward::once);
    int wrong = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      TapePlan plan{.keep_probability = seed % 2 == 0 ? 0.0 : 0.4, .seed = seed};
      plan.rules.*item.member = false;
      if (difference(expected, run_program(*program, plan, Backward::once)) != "") ++wrong;
    }
    CAPTURE(std::string(item.rule));
    CHECK(wrong > 0);
  }
}

TEST_SUITE_END();

}  // namespace
