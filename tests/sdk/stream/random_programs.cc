#include "tests/sdk/stream/random_programs.h"

#include <torch/torch.h>

#include <iterator>

namespace cox::detail {
namespace {

using at::Tensor;

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& a,
                        const Tensor& b) {
    const Tensor out = (a * 2).sigmoid() * b;
    context->save_for_backward({a, b, out});
    return out;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor s = (saved[0] * 2).sigmoid();
    return {gradients[0] * saved[1] * 2 * s * (1 - s), gradients[0] * s};
  }
};

// The values of a program so far, all [6, 6], and the draws that choose the next operator.
class Author {
 public:
  Author(Workbench& bench, std::uint64_t seed) : bench_(bench), random_(seed) {
    for (std::size_t i = 0; i < weights_.size(); ++i)
      weights_[i] = bench.weights[i].narrow(0, 0, 6).narrow(1, 0, 6);
    const Tensor start = torch::cat({bench.x, bench.x}, 0).narrow(0, 0, 6).narrow(1, 0, 6);
    values_ = {start * 1.0, start + 0.1};
    sum_ = torch::zeros({}, bench.x.device());
  }

  Tensor loss() {
    const std::size_t length = 8 + below(18);
    for (std::size_t i = 0; i < length; ++i) {
      if (below(6) == 0) bench_.cut();
      const Tensor made = next();
      if (!made.defined()) continue;
      if (below(3) == 0) sum_ = sum_ + (made * weight()).sum() * 0.1;
      if (values_.size() < 6) {
        values_.push_back(made);
      } else {
        values_[below(values_.size())] = made;
      }
    }
    for (const Tensor& value : values_) sum_ = sum_ + value.tanh().sum();
    return sum_;
  }

 private:
  using Make = Tensor (Author::*)();

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  Tensor& value() { return values_[below(values_.size())]; }
  const Tensor& weight() { return weights_[below(weights_.size())]; }

  Tensor next() {
    constexpr Make kMakes[] = {&Author::arithmetic, &Author::function, &Author::view,
                               &Author::pieces,     &Author::write,    &Author::no_gradients,
                               &Author::random,     &Author::fresh};
    return (this->*kMakes[below(std::size(kMakes))])();
  }

  Tensor arithmetic() {
    const Tensor a = value();
    switch (below(5)) {
      case 0:
        return a.matmul(weight());
      case 1:
        return a + value();
      case 2:
        return a * value();
      case 3:
        return torch::where(a > 0, a, value() * weight());
      default:
        return torch::linear((a * 2).tanh(), weight());
    }
  }
  Tensor function() {
    const Tensor a = value();
    switch (below(6)) {
      case 0:
        return torch::gelu(a);
      case 1:
        return a.sigmoid();
      case 2:
        return torch::layer_norm(a, {6}, weight()[0], weight()[1]);
      case 3:
        return torch::softmax(a, -1);
      case 4:
        return Doubled::apply(a, weight());
      default:
        return torch::silu(a).clamp(-1, 1);
    }
  }
  Tensor view() {
    const Tensor a = value();
    switch (below(6)) {
      case 0:
        return a.view({6, 6});
      case 1:
        return a.t();
      case 2:
        return a.contiguous();
      case 3:
        return a.detach();
      case 4:
        return a.reshape({3, 12}).reshape({6, 6});
      default:
        return a.narrow(0, 0, 3).repeat({2, 1});
    }
  }
  Tensor pieces() {
    const Tensor a = value();
    if (below(2) == 0) {
      const auto parts = a.split(2, 1);
      return torch::cat({parts[2], parts[0], parts[1]}, 1);
    }
    const auto rows = a.unbind(0);
    return torch::stack({rows[1], rows[0], rows[3], rows[2], rows[5], rows[4]});
  }
  Tensor write() {
    Tensor& a = value();
    switch (below(6)) {
      case 0:
        a.mul_(1.1);
        break;
      case 1:
        a.add_(value(), 0.1);
        break;
      case 2:
        torch::relu_(a);
        break;
      case 3:
        a.narrow(1, 1, 2).mul_(0.5);
        break;
      case 4:
        a.t().narrow(0, 0, 2).add_(weight().narrow(0, 0, 2));
        break;
      default:
        a.index_put_({torch::tensor({0, 2})}, weight().narrow(0, 0, 2));
        break;
    }
    return {};
  }
  Tensor no_gradients() {
    const at::NoGradGuard no_grad;
    return (value() * weight()).tanh();
  }
  Tensor random() { return torch::dropout(value(), 0.3, true); }
  Tensor fresh() {
    Tensor made = torch::zeros({6, 6}, bench_.x.device());
    const auto written = static_cast<float>(below(5));
    if (made.is_cpu()) {
      made.accessor<float, 2>()[1][2] = written;  // invisible to all operators
    } else {
      made[1][2].fill_(written);
    }
    return below(2) == 0 ? made : made + value();
  }

  Workbench& bench_;
  std::mt19937_64 random_;
  std::array<Tensor, 4> weights_;
  std::vector<Tensor> values_;
  Tensor sum_;
};

}  // namespace

Program random_program(std::uint64_t seed) {
  return {"random", [seed](Workbench& bench) { return Author(bench, seed).loss(); }};
}

RandomTrials try_random_programs(std::uint64_t first, int count) {
  RandomTrials trials;
  for (std::uint64_t seed = first; trials.equal + static_cast<int>(trials.different.size()) < count;
       ++seed) {
    const Program program = random_program(seed);
    const Backward backward = seed % 4 == 0 ? Backward::twice : Backward::once;
    const TrialOutcome expected = run_program(program, {.is_taped = false}, backward);
    if (!expected.error.empty()) {
      ++trials.refused;
      continue;
    }
    const double keep = static_cast<double>(seed % 3) * 0.4;
    const TrialOutcome taped =
        run_program(program, {.keep_probability = keep, .seed = seed}, backward);
    const std::string text = difference(expected, taped);
    if (text.empty()) {
      ++trials.equal;
    } else {
      trials.different.push_back("seed " + std::to_string(seed) + ": " + text);
    }
  }
  return trials;
}

}  // namespace cox::detail
