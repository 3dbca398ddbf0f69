// Models as tutorials have them, trained by a loop that was written without Coxswain, and the two
// lines that let the loop join a job (docs/adopt.md):
//
//   mpiexec.mpich -n 2 build/release/bin/train_models resnet --cox.memory.budget=2MiB
//
//   train_models MODEL [--epochs N] [--times N] [--alone]
//   train_models script FILE [--epochs N] [--times N] [--alone]   a TorchScript module from a file
//   train_models write_script FILE
//
// MODEL is resnet, dcgan, unet, lstm, gpt2, scripted or field. --times N makes batches N times as
// large. --alone omits the second line. Prints the last loss and the sum of all weights.
#include <torch/script.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/examples/models/models.h"

namespace {

using plain_models::ModelCase;

struct Options {
  std::string model, file;
  int epochs = 2;
  int times = 1;
  bool is_alone = false;
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--alone") {
      options.is_alone = true;
    } else if (words[i] == "--epochs" && i + 1 < words.size()) {
      options.epochs = std::stoi(words[++i]);
    } else if (words[i] == "--times" && i + 1 < words.size()) {
      options.times = std::stoi(words[++i]);
    } else {
      (options.model.empty() ? options.model : options.file) = words[i];
    }
  }
  return options;
}

// Player is the part that one optimizer trains: a model, or one of the two players of a GAN.
struct Player {
  std::function<torch::Tensor(std::uint64_t batch)> loss;
  std::function<void(cox::Session& session)> adopt;
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::Optimizer> optimizer = {};
};

Player player_of(const ModelCase& it, const std::string& name = {}) {
  return {it.loss, [it, name](cox::Session& session) { session.adopt(*it.model, {.name = name}); },
          it.model->parameters()};
}

Player scripted_player(const std::string& file, int times) {
  const auto script = std::make_shared<torch::jit::Module>(torch::jit::load(file));
  // TorchScript then calls one operator after the other, so blocks of the script can be recomputed
  // and run in formats.
  torch::jit::setGraphExecutorOptimize(false);
  Player player{[script, times](std::uint64_t batch) {
                  return plain_models::loss_of_script(*script, batch, times);
                },
                [script](cox::Session& session) { session.adopt(*script); },
                {}};
  for (const torch::Tensor& parameter : script->parameters())
    player.parameters.push_back(parameter);
  return player;
}

std::vector<Player> players_of(const Options& options) {
  constexpr std::uint64_t kSeed = 1;
  std::vector<Player> players;
  if (options.model == "script") {
    players.push_back(scripted_player(options.file, options.times));
  } else if (options.model == "dcgan") {
    for (const ModelCase& it : plain_models::make_dcgan_players(kSeed, options.times))
      players.push_back(player_of(it, it.name));
  }
  for (const ModelCase& it : plain_models::all_models(kSeed, options.times)) {
    if (players.empty() && it.name == options.model) players.push_back(player_of(it));
  }
  if (players.empty())
    throw std::invalid_argument("expected the name of a model, found '" + options.model + "'");
  for (Player& player : players)
    player.optimizer = std::make_unique<torch::optim::AdamW>(player.parameters, 0.003);
  return players;
}

double sum_of_weights(const std::vector<Player>& players) {
  double sum = 0;
  for (const Player& player : players) {
    for (const torch::Tensor& p : player.parameters)
      sum += p.detach().to(torch::kDouble).abs().sum().item<double>();
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "train_models"});  // the first line
  const Options options = parse(session.arguments());
  if (options.model == "write_script") {
    plain_models::write_script(options.file, 1);
    return 0;
  }
  std::vector<Player> players = players_of(options);
  for (const Player& player : players) {
    if (!options.is_alone) player.adopt(session);  // the second line
  }

  // The data set is a list of batches, which are drawn from their numbers.
  constexpr std::size_t kBatches = 12;
  torch::data::samplers::DistributedRandomSampler sampler(
      kBatches, static_cast<std::size_t>(session.world_size()),
      static_cast<std::size_t>(session.rank()));
  torch::manual_seed(5);
  double last_loss = 0;
  int steps = 0;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::size_t>(epoch));
    sampler.reset();
    while (const auto batch = sampler.next(1)) {
      for (const Player& player : players) {
        player.optimizer->zero_grad();
        const torch::Tensor loss = player.loss(batch->front());
        loss.backward();
        player.optimizer->step();
        last_loss = loss.item<double>();
      }
      ++steps;
    }
  }
  session.finish();
  std::printf("rank %d: %d steps, loss %.9g, weights %.17g\n", session.rank(), steps, last_loss,
              sum_of_weights(players));
  return 0;
} catch (const std::exception& error) {
  return cox::report(error);
}
