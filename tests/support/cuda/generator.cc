#include "tests/support/cuda/generator.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstring>
#include <vector>

namespace cox::standin {
namespace {

constexpr std::uint64_t kOffsetPerDraw = 4;  // offsets on CUDA are multiples of 4

struct State {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

bool same_place(const at::mt19937& a, const at::mt19937& b) {
  const auto one = a.data(), other = b.data();
  return one.left_ == other.left_ && one.next_ == other.next_ && one.state_ == other.state_;
}

}  // namespace

DeviceGenerator::DeviceGenerator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::CUDA, device),
                         c10::DispatchKeySet(c10::DispatchKey::CUDA)),
      numbers_(at::detail::createCPUGenerator(seed_)),
      counted_(seed_) {}

void DeviceGenerator::move_to(std::uint64_t seed, std::uint64_t draws) {
  seed_ = seed;
  counted_ = at::mt19937(seed);
  for (draws_ = 0; draws_ < draws; ++draws_) counted_();
  numbers_.set_current_seed(seed);  // also drops half a pair of normal numbers
  numbers_.get<at::CPUGeneratorImpl>()->set_engine(counted_);
}

void DeviceGenerator::count_draws() const {
  const at::mt19937 now = numbers_.get<at::CPUGeneratorImpl>()->engine();
  for (; !same_place(counted_, now); ++draws_) counted_();
}

void DeviceGenerator::set_offset(std::uint64_t offset) {
  TORCH_CHECK(offset % kOffsetPerDraw == 0, "offset must be a multiple of 4");
  move_to(seed_, offset / kOffsetPerDraw);
}

std::uint64_t DeviceGenerator::get_offset() const {
  count_draws();
  return draws_ * kOffsetPerDraw;
}

std::uint64_t DeviceGenerator::seed() {
  move_to(c10::detail::getNonDeterministicRandom(true), 0);
  return seed_;
}

void DeviceGenerator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.numel() == sizeof(State), "RNG state is wrong size");
  State wanted;
  std::memcpy(&wanted, state.data(), sizeof wanted);
  move_to(wanted.seed, wanted.offset / kOffsetPerDraw);
}

c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  const State now{seed_, get_offset()};
  // Like the real generator, uses no operator that a program could observe.
  at::Tensor state = at::detail::empty_cpu({static_cast<std::int64_t>(sizeof now)}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), &now, sizeof now);
  return state.getIntrusivePtr();
}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* other = new DeviceGenerator(device().index());
  other->move_to(seed_, get_offset() / kOffsetPerDraw);
  return other;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i)
      made->push_back(at::Generator(c10::make_intrusive<DeviceGenerator>(i)));
    return made;
  }();
  if (device < 0) device = c10::cuda::current_device();
  return generators->at(static_cast<std::size_t>(device));
}

}  // namespace cox::standin
