// The generator of a stand-in CUDA device. As on CUDA, its state is a seed and an offset, 16 bytes.
// The generator draws the numbers of a CPU generator with the same seed, so that a model gets the
// same numbers on either device. The offset is four times the count of numbers drawn. The state
// excludes the half pair of normal numbers that a CPU generator keeps.
//
// Thread rule: the caller holds mutex_, as for LibTorch's generators.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <cstdint>

namespace cox::standin {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex device);

  void set_current_seed(std::uint64_t seed) override { move_to(seed, 0); }
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override;
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Returns a CPU generator in the same state, to draw from.
  at::Generator& numbers() { return numbers_; }

 private:
  DeviceGenerator* clone_impl() const override;
  void move_to(std::uint64_t seed, std::uint64_t draws);
  void count_draws() const;

  std::uint64_t seed_ = c10::default_rng_seed_val;
  at::Generator numbers_;
  mutable at::mt19937 counted_;  // advanced draws_ steps from the seed
  mutable std::uint64_t draws_ = 0;
};

// Returns the default generator of a device. REQUIRES: the device exists.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace cox::standin
