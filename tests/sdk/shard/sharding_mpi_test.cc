#include <malloc.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/shard/shard_rewriter.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/support/ended_by.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Flags = std::vector<std::string>;
namespace nn = torch::nn;

Session sharded(Flags more = {}) {
  Flags flags = {"--cox.shard.mode=state", "--cox.shard.grain=16"};
  flags.insert(flags.end(), more.begin(), more.end());
  return solo_session(flags);
}

nn::Sequential small_net() {
  torch::manual_seed(3);
  return nn::Sequential(nn::Linear(16, 32), nn::Tanh(), nn::Linear(32, 8));
}

void backward(nn::Sequential& net, int rank) {
  torch::manual_seed(50 + rank);
  net->forward(torch::randn({4, 16})).pow(2).mean().backward();
}

void meet(Session& session) {
  CHECK(cox::detail::gather_values(session.state().job().all(), 0).ok());
}

// Returns the line of /proc/self/maps with the address, such as "7f00-7f10 r--s ...".
std::string mapping_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    const auto begin = std::stoull(line, nullptr, 16);
    const auto end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
    if (wanted >= begin && wanted < end) return line;
  }
  return {};
}

// The memory and the files of a process, besides its tensors.
struct Held {
  std::size_t descriptors = 0;
  std::size_t shared_mappings = 0;
  std::size_t heap_bytes = 0;
};

Held held() {
  Held held;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++held.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t modes = line.find(' ') + 1;
    if (line[modes + 3] == 's') ++held.shared_mappings;
  }
  held.heap_bytes = ::mallinfo2().uordblks;
  return held;
}

// Returns the error of ranks that fail together.
template <class Work>
std::string refusal_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    CHECK(error.scope() == Error::Scope::all_ranks);
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

// Trains two adopted models with a shared first layer. Returns their tensors.
std::vector<at::Tensor> trained_together(const Flags& flags) {
  Session session = solo_session(flags);
  nn::Sequential one = small_net();
  nn::Sequential other(one->ptr<nn::LinearImpl>(0), nn::Linear(32, 4));
  session.adopt(*one);
  session.adopt(*other, AdoptOptions{.name = "other"});
  std::vector<at::Tensor> parameters = one->parameters();
  parameters.push_back(other->parameters()[2]);
  torch::optim::Adam optimizer(parameters, 0.01);
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    torch::manual_seed(50 + session.rank());
    const at::Tensor inputs = torch::randn({4, 16});
    (one->forward(inputs).pow(2).mean() + other->forward(inputs).pow(2).mean()).backward();
    optimizer.step();
  }
  session.finish();
  std::vector<at::Tensor> values;
  for (const at::Tensor& each : parameters) values.push_back(each.detach().clone());
  return values;
}

// Trains with a Reducer. One step has no sample on any rank, one is given up by the last rank, and
// rank 0 has two steps more. Returns the parameters.
std::vector<at::Tensor> trained_with_gaps(const Flags& flags) {
  Session session = solo_session(flags);
  nn::Sequential net = small_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<at::Tensor> values;
  {
    Reducer reducer(session, *net);
    const auto update = [&](const ReductionOutcome& outcome) {
      if (outcome.finite) optimizer.step();
      optimizer.zero_grad();
    };
    for (int step = 0; step < (session.rank() == 0 ? 10 : 8); ++step) {
      StepScope scope = session.step();
      torch::manual_seed(50 + session.rank() + step);
      const at::Tensor loss = net->forward(torch::randn({4, 16})).pow(2).mean();
      reducer.backward(scope, loss, step == 3 ? 0 : 4);
      if (step == 5 && session.rank() == session.world_size() - 1) reducer.abandon();
      update(reducer.average(scope));
    }
    reducer.join([&](StepScope&, const ReductionOutcome& outcome) { update(outcome); });
    for (const at::Tensor& p : net->parameters()) values.push_back(p.detach().clone());
  }
  session.finish();
  return values;
}

}  // namespace

TEST_SUITE("sharding") {
  TEST_CASE("a rank adds a gradient to the node's while its backward pass runs") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    bool was_there = true;
    // Gradients arrive from the last layer to the first.
    net->parameters()[2].register_hook([&](const at::Tensor&) { meet(session); });
    net->parameters()[0].register_hook(
        [&](const at::Tensor&) { was_there = net->parameters()[2].grad().defined(); });
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      backward(net, session.rank());
      CHECK(net->parameters()[2].grad().defined());
      optimizer.step();
    }
    if (session.rank() == 0) CHECK_FALSE(was_there);
    session.finish();
  }

  TEST_CASE("a gradient that goes on after it was added is told by its name, on all ranks") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      at::Tensor weight = net->parameters()[2];
      bool is_inside = false;
      weight.register_hook([&](const at::Tensor&) {
        if (!is_inside) meet(session);
      });
      int step = 0;
      net->parameters()[0].register_hook([&](const at::Tensor&) {
        if (step < 7 || session.rank() > 0) return;
        const at::AutoGradMode mode(true);
        is_inside = true;
        weight.pow(2).sum().backward();
      });
      for (; step < 8; ++step) {
        net->zero_grad();
        backward(net, session.rank());
      }
    });
    CHECK(says(text, "expected the gradient of 2.weight to be complete once"));
  }

  TEST_CASE("a backward pass that failed after a gradient was added is told on all ranks") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      net->parameters()[2].register_hook([&](const at::Tensor&) { meet(session); });
      int step = 0;
      net->parameters()[0].register_hook([&](const at::Tensor&) {
        if (step == 6) throw std::runtime_error("no batch");
      });
      for (; step < 8; ++step) {
        net->zero_grad();
        try {
          backward(net, session.rank());
        } catch (const std::runtime_error& error) {
          if (std::string(error.what()) != "no batch") throw;
        }
      }
    });
    CHECK(says(text, "expected the gradient of 2.weight to be complete once"));
  }

  TEST_CASE("models that share a layer leave the bits of replicated training") {
    const auto replicated = trained_together({});
    const auto together = trained_together({"--cox.shard.mode=state", "--cox.shard.grain=16"});
    for (std::size_t i = 0; i < replicated.size(); ++i)
      CHECK(sdk_test::same_bits(together[i], replicated[i]));
  }

  TEST_CASE("each rank keeps its own elements of the optimizer's state, all of them once") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      backward(net, session.rank());
      optimizer.step();
    }
    for (const at::Tensor& p : net->parameters()) {
      if (p.numel() < 64) continue;  // not divided
      const auto& state = static_cast<torch::optim::AdamParamState&>(
          *optimizer.state().at(p.unsafeGetTensorImpl()));
      CHECK(state.exp_avg().dim() == 1);
      const auto counts =
          cox::detail::gather_values(session.state().job().all(), state.exp_avg_sq().numel());
      REQUIRE(counts.ok());
      CHECK(std::accumulate(counts->begin(), counts->end(), std::int64_t{0}) == p.numel());
    }
    session.finish();
  }

  TEST_CASE("a state that is larger than the room to gather in is gathered in parts") {
    const auto sums = [](const Flags& flags) {
      Session session = solo_session(flags);
      torch::manual_seed(3);
      nn::Linear layer(nn::LinearOptions(700, 500).bias(false));
      REQUIRE(layer->weight.nbytes() > cox::detail::ShardRewriter::kGatheringBytes);
      session.adopt(*layer);
      torch::optim::Adam optimizer(layer->parameters(), 0.01);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        layer->forward(torch::full({2, 700}, 0.1 * (session.rank() + 1))).pow(2).mean().backward();
        optimizer.step();
      }
      const auto& state = static_cast<torch::optim::AdamParamState&>(
          *optimizer.state().at(layer->weight.unsafeGetTensorImpl()));
      const at::Tensor rows = state.exp_avg().sum(0);  // an operator that works on the whole
      session.finish();
      return rows;
    };
    CHECK(sdk_test::same_bits(sums({"--cox.shard.mode=state"}), sums({})));
  }

  TEST_CASE("the metrics of rank 0 count updates, and writes in a known order") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      backward(net, session.rank());
      optimizer.step();
    }
    const auto metrics = session.metrics();
    session.finish();
    if (session.rank() > 0) return;
    const auto total = [&](const std::string& name) {
      for (const auto& family : metrics->Collect()) {
        if (family.name == name) return family.metric.at(0).counter.value;
      }
      return -1.0;
    };
    CHECK(total("coxswain_shared_updates_total") == 6);
    CHECK(total("coxswain_shared_writes_total") >= 3 * 5);  // of three parameters; less the last
    CHECK(total("coxswain_shared_new_sequences_total") == 1);
    CHECK(total("coxswain_shared_waits_total") >= 0);
  }

  TEST_CASE(
      "steps without an average, and a rank that joins, leave the bits of replicated training") {
    const auto sharded_too = trained_with_gaps({"--cox.shard.mode=state", "--cox.shard.grain=16"});
    const auto replicated = trained_with_gaps({});
    REQUIRE(sharded_too.size() == replicated.size());
    for (std::size_t i = 0; i < replicated.size(); ++i)
      CHECK(sdk_test::same_bits(sharded_too[i], replicated[i]));
  }

  TEST_CASE("a write through a view of a divided state is refused by name, a read is not") {
    using View = at::Tensor (*)(const at::Tensor&);
    const View views[] = {[](const at::Tensor& t) { return t[0]; },
                          [](const at::Tensor& t) { return t.slice(0, 1, 3); },
                          [](const at::Tensor& t) { return t.view({-1}); },
                          [](const at::Tensor& t) { return t.t(); },
                          [](const at::Tensor& t) { return t.unbind()[2]; }};
    for (const View& view : views) {
      const std::string text = refusal_of([&] {
        Session session = sharded();
        nn::Sequential net = small_net();
        session.adopt(*net);
        torch::optim::Adam optimizer(net->parameters(), 0.01);
        for (int step = 0; step < 2; ++step) {
          optimizer.zero_grad();
          backward(net, session.rank());
          optimizer.step();
        }
        const at::NoGradGuard no_grad;
        const auto& state = static_cast<torch::optim::AdamParamState&>(
            *optimizer.state().at(net->parameters()[0].unsafeGetTensorImpl()));
        const at::Tensor part = view(state.exp_avg());
        CHECK(part.abs().sum().item<double>() > 0);
        part.zero_();
      });
      CHECK(says(text, "the optimizer's state of 0.weight"));
      CHECK(says(text, "found aten::zero_ on a view of it"));
    }
  }

  TEST_CASE("a thousand steps leak nothing, and the end gives all shared memory back") {
    constexpr std::size_t kLeast = 1 << 20;  // bytes; a leaked gradient of each step has twice that
    {
      const Session warm_up = sharded();  // MPI and LibTorch keep what they open first
    }
    const Held before = held();
    {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      torch::optim::Adam optimizer(net->parameters(), 0.01);
      Held early;
      for (int step = 0; step < 1000; ++step) {
        if (step == 100) early = held();
        optimizer.zero_grad();
        backward(net, session.rank());
        optimizer.step();
      }
      const Held late = held();
      CHECK(late.descriptors == early.descriptors);
      CHECK(late.shared_mappings == early.shared_mappings);
      CHECK(late.heap_bytes < early.heap_bytes + kLeast);
      CHECK(early.shared_mappings > before.shared_mappings);
      session.finish();
    }
    const Held after = held();
    CHECK(after.descriptors == before.descriptors);
    CHECK(after.shared_mappings == before.shared_mappings);
  }

  TEST_CASE("parameters lie in memory of all ranks that nobody writes to by pointer") {
    Session session = sharded();
    nn::Sequential net = small_net();
    const at::Tensor alias = net->parameters()[0].detach();
    session.adopt(*net);
    CHECK(says(mapping_of(net->parameters()[0].data_ptr()), " r--s "));
    CHECK(alias.data_ptr() == net->parameters()[0].data_ptr());
    CHECK_FALSE(says(mapping_of(net->parameters()[3].data_ptr()), " r--s "));  // 8 elements
    session.finish();
  }

  TEST_CASE("averaged gradients lie in memory of all ranks, and each takes part in their writes") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    backward(net, session.rank());
    at::Tensor gradient = net->parameters()[0].grad();
    CHECK(says(mapping_of(gradient.data_ptr()), " r--s "));
    const at::Tensor before = gradient.clone();
    gradient.mul_(0.5);
    CHECK(at::equal(gradient, before * 0.5));
    backward(net, session.rank());  // adds into this rank's own copy, which is averaged
    CHECK(at::allclose(net->parameters()[0].grad(), before * 1.5, 1e-5));
    session.finish();
  }

  TEST_CASE("a write by pointer ends the process with a line that names the parameter") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const int signal = ended_by([&] {
      ::dup2(ends[1], STDERR_FILENO);
      net->parameters()[0].data_ptr<float>()[0] = 1;
    });
#ifndef __SANITIZE_ADDRESS__  // its handler, called behind ours, exits
    CHECK(signal == SIGSEGV);
#endif
    std::string text(4096, '\0');
    const auto read = ::read(ends[0], text.data(), text.size());
    CHECK(read > 0);
    CHECK(says(text, "expected writes to parameter 0.weight by LibTorch's operators"));
    ::close(ends[0]);
    ::close(ends[1]);
    session.finish();
  }

  TEST_CASE("the end of the session gives each rank memory of its own, with the values of all") {
    nn::Sequential net = small_net();
    at::Tensor before;
    {
      Session session = sharded();
      session.adopt(*net);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      backward(net, session.rank());
      optimizer.step();
      before = net->parameters()[0].detach().clone();
      session.finish();
    }
    CHECK(says(mapping_of(net->parameters()[0].data_ptr()), " rw-p "));
    CHECK(at::equal(net->parameters()[0], before));
    const at::NoGradGuard no_grad;
    net->parameters()[0].mul_(2);
    CHECK(at::equal(net->parameters()[0], before * 2));
  }

  TEST_CASE("ranks that change different parameters are told, all of them") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      const at::NoGradGuard no_grad;
      net->parameters()[session.rank() == 0 ? 0 : 2].mul_(0.5);
    });
    CHECK(says(text, "expected all ranks of the node to write alike, found aten::mul_"));
  }

  TEST_CASE("a parameter that got other memory goes to the node's again, and aliases keep theirs") {
    Session session = sharded();
    nn::Sequential net = small_net();
    session.adopt(*net);
    at::Tensor weight = net->parameters()[0];
    const at::Tensor alias = weight.detach();
    const at::Tensor before = weight.detach().clone();
    weight.set_data(weight.detach() * 2);
    backward(net, session.rank());
    CHECK(says(mapping_of(weight.data_ptr()), " r--s "));
    CHECK(at::equal(weight, before * 2));
    CHECK(at::equal(alias, before));
    CHECK(says(mapping_of(alias.data_ptr()), " rw-p "));
    session.finish();
  }

  TEST_CASE("ranks that give a parameter different values are told, all of them") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      at::Tensor weight = net->parameters()[0];
      weight.set_data(weight.detach() * (2 + session.rank()));
      backward(net, session.rank());
    });
    CHECK(says(text, "found other values or other memory for 0.weight"));
  }

  TEST_CASE("a parameter that got another form is named") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      session.adopt(*net);
      at::Tensor weight = net->parameters()[0];
      weight.set_data(weight.detach().t().contiguous().t());
      backward(net, session.rank());
    });
    CHECK(says(text, "expected parameter 0.weight with the sizes, type and memory of its own"));
  }

  TEST_CASE("ranks on several nodes are refused on all ranks") {
    const std::string text = refusal_of([] {
      Session session = sharded({"--cox.control.ranks_per_node=1"});
      nn::Sequential net = small_net();
      session.adopt(*net);
    });
    CHECK(says(text, "on one node, found 1 on this one"));
  }

  TEST_CASE("a second Reducer is refused on all ranks") {
    const std::string text = refusal_of([] {
      Session session = sharded();
      nn::Sequential net = small_net();
      nn::Sequential other = small_net();
      const Reducer first(session, net->parameters(), {});
      const Reducer second(session, other->parameters(), {});
    });
    CHECK(says(text, "expected one Reducer, or models that are adopted, found a second Reducer"));
  }

  TEST_CASE("a loop that is only watched, and a ManualParallel, are refused on all ranks") {
    for (const bool averages : {false, true}) {
      const std::string text = refusal_of([averages] {
        Session session = sharded();
        if (averages) ManualParallel parallel(session);
        const StepScope step = session.step();
      });
      CHECK(says(text, "expected a Trainer, a Reducer, or a loop whose models are adopted"));
    }
  }
}
