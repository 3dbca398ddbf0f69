// Seven models as their users write them: plain torch::nn code without Coxswain. The models have
// the habits that make watching and repeating hard: in-place operators, skips, loops and branches
// in forward, variable lengths, random masks, statistics, views, parts without gradients, a script.
// train_models.cc trains them in a plain loop; tests of the operator stream run them unchanged. All
// models are small: forward and backward take a few milliseconds on a CPU core.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace plain_models {

struct ModelCase {
  const char* name = "";
  std::shared_ptr<torch::nn::Module> model;
  // Draws a batch from a generator of its own, seeded by the argument. Returns the scalar loss of
  // the model on the batch. Masks of dropout come from the default generator.
  std::function<at::Tensor(std::uint64_t batch_seed)> loss;
};

// Each factory makes the model's parameters from the seed and restores the default generator. The
// model is in training mode. Batches have `times` times the usual number of samples.

// Residual blocks: BatchNorm, in-place ReLU, a skip added in place.
ModelCase make_resnet(std::uint64_t seed, std::int64_t times = 1);
// A generator and a discriminator in one module, with the sum of their losses. The discriminator
// runs three times a step.
ModelCase make_dcgan(std::uint64_t seed, std::int64_t times = 1);
// The same generator and discriminator with separate losses and optimizers, as in the tutorial of
// DCGAN. The discriminator trains first, on real images and on the generator's. Then the generator
// trains, by the discriminator's judgement of its images.
std::vector<ModelCase> make_dcgan_players(std::uint64_t seed, std::int64_t times = 1);
// Skips over the whole depth: max_pool, upsampling, cat.
ModelCase make_unet(std::uint64_t seed, std::int64_t times = 1);
// Packed sequences whose lengths depend on the batch; dropout within the LSTM and after it.
ModelCase make_lstm(std::uint64_t seed, std::int64_t times = 1);
// The head multiplies by the embedding's parameter. `dropout` is the probability in the three usual
// places; 0 omits random operators.
ModelCase make_gpt2(std::uint64_t seed, double dropout = 0.1, std::int64_t times = 1);
// A recurrent cell compiled by TorchScript, called with its graph optimiser off.
ModelCase make_scripted(std::uint64_t seed, std::int64_t times = 1);
// Finite differences on a grid: a field that is written in place, border cells, a time step
// computed without gradients, a small network as the closure term, four steps.
ModelCase make_field(std::uint64_t seed, std::int64_t times = 1);

// Writes a TorchScript module of three layers to a file, as torch.jit.script(...).save(path) does.
// loss_of_script() returns the loss of such a module on a batch.
void write_script(const std::string& path, std::uint64_t seed);
at::Tensor loss_of_script(torch::jit::Module& script, std::uint64_t batch_seed,
                          std::int64_t times = 1);

constexpr std::size_t kModels = 7;

// Returns one of the models, in the order above, without making the others. REQUIRES: `place` <
// kModels.
ModelCase model_at(std::size_t place, std::uint64_t seed, std::int64_t times = 1);

std::vector<ModelCase> all_models(std::uint64_t seed, std::int64_t times = 1);

}  // namespace plain_models
