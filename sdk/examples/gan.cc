// Two models and two optimizers in one session: a generator learns to draw from N(3, 0.5), a critic
// to tell its numbers from real ones. Quoted by docs/data-parallel.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

// [gan]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "gan"});
  cox::ManualParallel ranks(session);
  torch::manual_seed(1);
  using namespace torch::nn;
  Sequential generator(Linear(4, 16), Tanh(), Linear(16, 1));
  Sequential critic(Linear(1, 16), LeakyReLU(), Linear(16, 1));
  ranks.sync_parameters(generator->parameters());  // all ranks start from rank 0's
  ranks.sync_parameters(critic->parameters());
  cox::AdamW generator_optimizer(generator->parameters(), {.lr = 3e-3, .beta1 = 0});
  cox::AdamW critic_optimizer(critic->parameters(), {.lr = 3e-3, .beta1 = 0});
  torch::manual_seed(100 + session.rank());  // every rank draws numbers of its own

  constexpr int kSamples = 64;
  for (int i = 0; i < 800; ++i) {
    auto step = session.step();
    const auto real = 3 + 0.5 * torch::randn({kSamples, 1});
    const auto made = generator->forward(torch::randn({kSamples, 4}));
    const auto critic_loss = torch::softplus(-critic->forward(real)).mean() +
                             torch::softplus(critic->forward(made.detach())).mean();
    ranks.backward(step, critic_loss);
    if (ranks.all_reduce_gradients(step, critic->parameters(), kSamples).finite) {
      critic_optimizer.step();
    }
    critic_optimizer.zero_grad();

    const auto generator_loss = torch::softplus(-critic->forward(made)).mean();
    ranks.backward(step, generator_loss);
    if (ranks.all_reduce_gradients(step, generator->parameters(), kSamples).finite) {
      generator_optimizer.step();
    }
    generator_optimizer.zero_grad();
    critic_optimizer.zero_grad();  // what the generator's loss left there

    step.loss(generator_loss.item<double>(), kSamples);
    step.samples(kSamples);
    if (ranks.close(step).stop) break;  // once a step: somebody got SIGTERM
  }
  const double mean = generator->forward(torch::randn({1024, 4})).mean().item<double>();
  session.finish();
  if (session.rank() == 0) std::printf("mean of the generated samples %.2f\n", mean);
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/gan]
