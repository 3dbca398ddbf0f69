#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/blocks/measurement.h"
#include "support.h"

#include <doctest/doctest.h>

namespace {

using namespace blocks_test;

// Advances by one each time it is read, so a duration counts the events inside of it.
cox::Nanoseconds counting_clock() {
  static std::int64_t reads = 0;
  return cox::Nanoseconds(++reads);
}
constexpr cox::Seconds kOneRead = cox::Nanoseconds(1);

struct Plain : torch::nn::Module {
  Plain() : weight(register_parameter("weight", torch::full({2, 2}, 0.5))) {}
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight;
};
using Unit = cox::Block<std::shared_ptr<Plain>>;

struct Model : torch::nn::Module {
  Unit a{register_module("a", std::make_shared<Plain>())};
  Unit b{register_module("b", std::make_shared<Plain>())};
  cox::Block<torch::nn::Embedding> words{register_module("words", torch::nn::Embedding(5, 2))};
};

struct Watch {
  explicit Watch(MeasureMode mode = MeasureMode::times)
      : registry(*BlockRegistry::discover(model)) {
    REQUIRE(registry.attach(sink, &counting_clock).ok());
    REQUIRE(registry.measure(mode).ok());
  }
  const BlockMeasurement& only() const {
    REQUIRE(sink.reports.size() == 1);
    return sink.reports[0].measured;
  }
  Model model;
  KeepingSink sink;
  BlockRegistry registry;
};

Tensor middle(std::vector<std::int64_t> sizes) {
  return torch::ones(sizes).requires_grad_() * 1;
}

}  // namespace

TEST_SUITE("sdk.blocks.measure") {
  TEST_CASE("a call is reported when its backward pass is over, with both times") {
    Watch watch;
    const Tensor out = cox::run(watch.model.a, &Plain::forward, middle({2, 2}));
    CHECK(watch.sink.reports.empty());
    out.sum().backward();
    CHECK(watch.only().forward == kOneRead);
    CHECK(watch.only().backward == kOneRead);
    CHECK(watch.only().mode == MeasureMode::times);
    CHECK(watch.only().parameters == 4);
    CHECK(watch.sink.reports[0].block == BlockId(0));
  }

  TEST_CASE("without gradients a call is reported at once, with no backward time") {
    Watch watch;
    torch::NoGradGuard no_grad;
    const Tensor out = cox::run(watch.model.a, &Plain::forward, torch::ones({2, 2}));
    CHECK(watch.only().forward == kOneRead);
    CHECK(watch.only().backward == cox::Seconds(0));
  }

  TEST_CASE("a call whose graph is dropped is reported then, with no backward time") {
    Watch watch;
    (void)cox::run(watch.model.a, &Plain::forward, middle({2, 2}));
    CHECK(watch.only().forward == kOneRead);
    CHECK(watch.only().backward == cox::Seconds(0));
  }

  TEST_CASE("with integer inputs backward ends when the parameters have their gradients") {
    Watch watch;
    const Tensor early = cox::run(watch.model.a, &Plain::forward, middle({2, 2}));
    const Tensor late = cox::run(
        watch.model.words,
        [](torch::nn::EmbeddingImpl& words, const Tensor& ids) { return words.forward(ids); },
        torch::tensor({1, 3}));
    (early.sum() + late.sum()).backward();
    REQUIRE(watch.sink.reports.size() == 2);
    for (const Report& report : watch.sink.reports) {
      CAPTURE(report.block.value());
      CHECK(report.measured.backward == kOneRead);
    }
  }

  TEST_CASE("with a leaf as input backward ends with the parameters too") {
    Watch watch;
    const Tensor x = torch::ones({2, 2}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      watch.sink.reports.clear();
      cox::run(watch.model.a, &Plain::forward, x).sum().backward();
      CHECK(watch.only().backward == kOneRead);
    }
  }

  TEST_CASE("a shared module used twice reports twice under one name, with the same gradients") {
    Watch watch;
    const Tensor x = middle({2, 2});
    cox::run(watch.model.a, &Plain::forward, cox::run(watch.model.a, &Plain::forward, x))
        .sum()
        .backward();
    CHECK(watch.sink.reports.size() == 2);
    for (const Report& report : watch.sink.reports) {
      CHECK(report.block == BlockId(0));
      CHECK(report.measured.backward > cox::Seconds(0));
    }
    Plain plain;
    plain.forward(plain.forward(x.detach())).sum().backward();
    CHECK(torch::equal(plain.weight.grad(), watch.model.a->weight.grad()));
  }

  TEST_CASE("a nested call names the block around it and is contained in it") {
    Watch watch(MeasureMode::full);
    const Unit& inner = watch.model.b;
    const auto around = cox::owned([inner](Plain& outer, const Tensor& x) {
      return outer.forward(cox::run(inner, &Plain::forward, x).exp());
    });
    cox::run(watch.model.a, around, middle({2, 2})).sum().backward();
    REQUIRE(watch.sink.reports.size() == 2);
    const Report& in = watch.sink.reports[watch.sink.reports[0].block == BlockId(1) ? 0 : 1];
    const Report& out = watch.sink.reports[watch.sink.reports[0].block == BlockId(1) ? 1 : 0];
    CHECK(in.measured.inside == BlockId(0));
    CHECK_FALSE(out.measured.inside.has_value());
    CHECK(out.measured.forward > in.measured.forward);
    CHECK(in.measured.saved_bytes == 16);   // x
    CHECK(out.measured.saved_bytes == 32);  // and exp's result, an input of the outer product
  }

  TEST_CASE("only the first backward pass over a graph is measured") {
    Watch watch;
    const Tensor loss = cox::run(watch.model.a, &Plain::forward, middle({2, 2})).sum();
    loss.backward({}, true);
    loss.backward();
    CHECK(watch.sink.reports.size() == 1);
  }

  TEST_CASE("boundary bytes count each storage once, and shapes have a key") {
    Watch watch;
    torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({4, 2});
    const auto same = [](Plain&, const Tensor& left, const Tensor&) {
      return std::tuple<Tensor, Tensor>(left, left + 1);
    };
    (void)cox::run(watch.model.a, same, x, x.narrow(0, 0, 2));
    (void)cox::run(watch.model.a, same, x, x.narrow(0, 2, 2));
    (void)cox::run(watch.model.a, same, x, x.narrow(0, 0, 3));
    const auto& reports = watch.sink.reports;
    CHECK(reports[0].measured.input_bytes == 32);
    CHECK(reports[0].measured.output_bytes == 32);
    CHECK(reports[0].measured.shape_key == reports[1].measured.shape_key);
    CHECK(reports[0].measured.shape_key != reports[2].measured.shape_key);
  }

  TEST_CASE("after release nothing is reported, also for graphs from before") {
    Watch watch;
    const Tensor late =
        cox::run(watch.model.words, &torch::nn::EmbeddingImpl::forward, torch::tensor({1, 3}));
    watch.registry.release();
    late.sum().backward();
    cox::run(watch.model.a, &Plain::forward, middle({2, 2})).sum().backward();
    CHECK(watch.sink.reports.empty());
  }

  TEST_CASE("a changed mode holds from the next call on, and off reports nothing") {
    Watch watch;
    REQUIRE(watch.registry.measure(MeasureMode::off).ok());
    cox::run(watch.model.a, &Plain::forward, middle({2, 2})).sum().backward();
    CHECK(watch.sink.reports.empty());
    REQUIRE(watch.registry.measure(MeasureMode::full).ok());
    cox::run(watch.model.a, &Plain::forward, middle({2, 2})).sum().backward();
    CHECK(watch.only().mode == MeasureMode::full);
  }

  TEST_CASE("a measurement travels as a profile that keeps the end of a long name") {
    BlockMeasurement measured;
    measured.parameters = std::uint64_t{1} << 40;
    measured.saved_bytes = 7;
    measured.input_bytes = 1024;
    measured.output_bytes = 512;
    measured.forward = cox::Seconds(0.5);
    const cox::BlockProfile profile =
        block_profile(BlockId(3), 9, "a_long_prefix.transformer.h.13", measured);
    CHECK(std::string(profile.name.data(), profile.name.size()) == "_prefix.transformer.h.13");
    CHECK(profile.parameters == 0xFFFFFFFF);
    CHECK(profile.boundary_kib == 1.5f);
    CHECK(profile.forward_seconds == 0.5f);
    CHECK(profile.saved_bytes == 7);
    CHECK(profile.blocks == 9);
  }
}
