#include "sdk/src/memory/offload.h"

#include <ATen/autocast_mode.h>

#include <memory>

#include "coxswain/error.h"
#include "tests/sdk/memory/offload_support.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace offload_test;

namespace {

struct Variant {
  const char* name;
  std::int64_t in_flight_bytes;
};

constexpr Variant kVariants[] = {
    {"nothing in flight", 0},
    {"small window", 20000},
    {"all in flight until the call ends", std::int64_t{1} << 40},
};

OffloadOptions options(const TempFolder& folder, const Variant& variant = kVariants[1]) {
  return {.device = usual_device(),
          .folder = folder.path(),
          .tier_bytes = 64 << 20,
          .in_flight_bytes = variant.in_flight_bytes,
          .smallest_bytes = 1024,
          .report = {}};
}

std::unique_ptr<Net> make_net(int which) {
  torch::manual_seed(11);
  switch (which) {
    case 0:
      return std::make_unique<Mlp>();
    case 1:
      return std::make_unique<ConvNet>();
    case 2:
      return std::make_unique<SharedNet>();
    default:
      return std::make_unique<ViewNet>();
  }
}

std::string message_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const cox::Error& error) {
    return error.what();
  }
  return "";
}

class Bf16Autocast {
 public:
  explicit Bf16Autocast(bool on) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Bf16Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_cache_enabled(true);
  }
};

}  // namespace

TEST_CASE("gradients are bit for bit those of keeping, for four nets, autocast and any window") {
  const TempFolder folder;
  for (const bool bf16 : {false, true}) {
    for (int which = 0; which < 4; ++which) {
      const auto net = make_net(which);
      const Bf16Autocast autocast(bf16);
      const auto kept = step(*net, nullptr);
      for (const Variant& variant : kVariants) {
        CAPTURE(bf16);
        CAPTURE(which);
        CAPTURE(variant.name);
        Offloader offloader(options(folder, variant));
        for (int i = 0; i < 3; ++i) CHECK(same_bits(step(*net, &offloader), kept));
        CHECK(offloader.counts().written_bytes > 0);
        CHECK(offloader.counts().stayed_bytes == 0);
        CHECK(offloader.counts().tier_bytes == 0);
        CHECK(offloader.counts().read_bytes > 0);
      }
    }
  }
}

TEST_CASE("what an operator writes to after it has saved it is moved as it is in the end") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  torch::nn::Linear layer(64, 64);
  const auto gradients = [&](Offloader* offloader) {
    torch::manual_seed(5);
    const Tensor x = torch::randn({64, 64});
    std::shared_ptr<cox::detail::OffloadFrame> frame;
    Tensor y;
    if (offloader != nullptr) {
      frame = frame_of(*offloader, "rrelu", *layer);
      const cox::detail::SavedTensorScope saving(*frame);
      y = torch::rrelu(layer->forward(x), 0.1, 0.4, true);
      y = torch::rrelu(y, 0.1, 0.4, true);
    } else {
      y = torch::rrelu(torch::rrelu(layer->forward(x), 0.1, 0.4, true), 0.1, 0.4, true);
    }
    if (frame) {
      frame->leave();
      CHECK(offloader->counts().written_bytes >= 3 * 64 * 64 * 4);
    }
    layer->zero_grad();
    y.square().mean().backward();
    return layer->weight.grad().clone();
  };
  const Tensor kept = gradients(nullptr);
  for (const Variant& variant : kVariants) {
    CAPTURE(variant.name);
    Offloader offloader(options(folder, variant));
    for (int i = 0; i < 3; ++i) CHECK(torch::equal(kept, gradients(&offloader)));
  }
}

TEST_CASE("parts of a storage that are written one after another have the bits of keeping") {
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  const TempFolder folder;
  torch::manual_seed(4);
  torch::nn::Linear layer(64, 4 * 64);
  const Tensor x = torch::randn({64, 64});
  const auto gradients = [&](Offloader* offloader) {
    const auto gates = [&] {
      const auto parts = layer->forward(x).unsafe_chunk(4, 1);
      return parts[0].sigmoid_() * parts[1].sigmoid_() + parts[2].tanh_() * parts[3].sigmoid_();
    };
    Tensor y;
    if (offloader != nullptr) {
      const auto frame = frame_of(*offloader, "gates", *layer);
      {
        const cox::detail::SavedTensorScope saving(*frame);
        y = gates();
      }
      frame->leave();
      CHECK(offloader->counts().written_bytes >= 4 * 64 * 64 * 4);
    } else {
      y = gates();
    }
    layer->zero_grad();
    y.square().mean().backward();
    return layer->weight.grad().clone();
  };
  const Tensor kept = gradients(nullptr);
  for (const Variant& variant : kVariants) {
    CAPTURE(variant.name);
    Offloader offloader(options(folder, variant));
    for (int i = 0; i < 3; ++i) CHECK(torch::equal(kept, gradients(&offloader)));
  }
}

TEST_CASE("a second backward over a retained graph has the same gradients as keeping") {
  const TempFolder folder;
  for (int which = 0; which < 4; ++which) {
    CAPTURE(which);
    const auto net = make_net(which);
    const auto kept = step(*net, nullptr, 3);
    for (const Variant& variant : kVariants) {
      CAPTURE(variant.name);
      Offloader offloader(options(folder, variant));
      CHECK(same_bits(step(*net, &offloader, 3), kept));
      CHECK(offloader.counts().tier_bytes == 0);
    }
  }
}

TEST_CASE("double backward has the same bits as keeping") {
  const TempFolder folder;
  const auto net = make_net(0);
  const auto second_order = [&](Offloader* offloader) {
    torch::manual_seed(5);
    const Tensor x = net->input().requires_grad_();
    const Tensor y = net->forward(x, offloader).square().mean();
    const auto first = torch::autograd::grad({y}, {x}, {}, true, true);
    return torch::autograd::grad({first[0].square().sum()}, net->parameters(), {}, {}, false, true);
  };
  const auto kept = second_order(nullptr);
  Offloader offloader(options(folder));
  const auto offloaded = second_order(&offloader);
  REQUIRE(kept.size() == offloaded.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    REQUIRE(kept[i].defined() == offloaded[i].defined());
    if (kept[i].defined()) CHECK(torch::equal(kept[i], offloaded[i]));
  }
}

TEST_CASE("each storage is moved once however many views are saved, and parameters stay") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  torch::nn::Linear layer(48, 144);
  Offloader offloader(options(folder));
  const auto frame = frame_of(offloader, "views", *layer);
  Tensor x = torch::ones({32, 48});
  {
    const cox::detail::SavedTensorScope saving(*frame);
    const auto parts = layer->forward(x).chunk(3, 1);  // saves x and the weight
    x = parts[0] * parts[1] * parts[2];                // saves three slices and a product
  }
  frame->leave();
  CHECK(offloader.counts().written_bytes == (32 * 48 + 32 * 144 + 32 * 48) * 4);
}

TEST_CASE("a storage that two calls save is moved by the first, and stays if it was to be left") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  torch::nn::Linear layer(48, 48);
  Offloader offloader(options(folder));
  const Tensor x = torch::ones({32, 48});
  const auto run = [&](const Tensor& input, bool leave_input) {
    const auto frame = frame_of(offloader, "b", *layer);
    if (leave_input) frame->leave_alone(cox::detail::storage_impl(input));
    const cox::detail::SavedTensorScope saving(*frame);
    Tensor y = torch::relu(layer->forward(input));  // saves its input and its output
    frame->leave();
    return std::make_tuple(y, offloader.counts().written_bytes);
  };
  const auto [y, first] = run(x, true);
  const auto [z, second] = run(y, false);
  CHECK(first == 32 * 48 * 4);
  CHECK(second - first == 32 * 48 * 4);
}

TEST_CASE("what the caller still holds in backward is not read again") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  torch::nn::Linear layer(48, 48);
  Offloader offloader(options(folder));
  const Tensor x = torch::ones({32, 48});
  const auto block = [&](const Tensor& in) { return torch::gelu(layer->forward(in)); };
  const Tensor y = call(&offloader, "b", *layer, block, x);
  y.sum().backward();
  CHECK(offloader.counts().written_bytes == 2 * 32 * 48 * 4);
  CHECK(offloader.counts().read_bytes == 32 * 48 * 4);
}

TEST_CASE("a tensor edited in place after it was saved is an error that names the block") {
  const TempFolder folder;
  REQUIRE(cox::detail::install_saved_tensor_engine().ok());
  for (const std::int64_t smallest : {1 << 10, 1 << 20}) {  // moved, or left alone
    OffloadOptions with = options(folder);
    with.smallest_bytes = smallest;
    Offloader offloader(with);
    torch::nn::Linear layer(48, 48);
    Tensor hidden;
    const auto block = [&](const Tensor& in) {
      hidden = layer->forward(in);
      return torch::gelu(hidden);
    };
    const Tensor y = call(&offloader, "h.3", *layer, block, torch::ones({32, 48}));
    {
      const torch::NoGradGuard no_grad;
      hidden.add_(1);
    }
    const std::string message = message_of([&] { y.sum().backward(); });
    CHECK(message.find("block h.3") != std::string::npos);
    CHECK(message.find("changed in place") != std::string::npos);
  }
}
