#include "sdk/examples/gpt2/planted_faults.h"

#include <chrono>
#include <limits>
#include <span>
#include <thread>

namespace gpt2 {
namespace {

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

PlantedFaults::PlantedFaults(const Faults& faults, cox::Trainer& trainer) : faults_(faults) {
  if (faults.slow_save_seconds <= 0) return;
  trainer.add_state("slow",
                    {.state =
                         [seconds = faults.slow_save_seconds] {
                           sleep_for(seconds);
                           return std::vector<cox::NamedTensor>{{"nothing", torch::zeros({1})}};
                         },
                     .load = [](std::span<const cox::NamedTensor>) { return cox::ok_status(); }});
}

void PlantedFaults::begin(cox::TrainerStep& step) {
  if (faults_.slow_data_seconds > 0) {
    const cox::PhaseScope phase = step.phase(cox::Phase::data);
    sleep_for(faults_.slow_data_seconds);
  }
  // ones() writes to the memory, so that the system really provides it.
  if (faults_.leak_mib > 0) leaked_.push_back(torch::ones({faults_.leak_mib << 18}));
}

torch::Tensor PlantedFaults::spoiled(torch::Tensor loss, std::uint64_t step) const {
  if (faults_.overflows(step) && loss.requires_grad()) {
    loss.register_hook([](const torch::Tensor& gradient) {
      return gradient * std::numeric_limits<float>::infinity();
    });
  }
  return loss;
}

}  // namespace gpt2
