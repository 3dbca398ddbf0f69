// Writes the operator graphs of the seven models of models.h into a folder;
// tests/data/operator-graphs has them.   record_steps FOLDER
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "coordinator/io/operator_files.h"
#include "sdk/src/stream/saved_tensors.h"
#include "tests/sdk/stream/step_recording.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "use: record_steps FOLDER\n");
    return 2;
  }
  torch::set_num_threads(1);
  if (!cox::detail::install_saved_tensor_engine().ok()) return 2;
  for (const stream_models::ModelCase& model : stream_models::all_models(5)) {
    const auto graph = stream_models::record_step(model, 15);
    const auto status = cox::planner::validate(graph);
    std::printf("%s: %zu operators, %zu tensors, %.3f ms, peak %.3f MB%s\n", model.name,
                graph.operators.size(), graph.tensors.size(),
                1e-6 * static_cast<double>(cox::planner::step_ns(graph)),
                1e-6 * static_cast<double>(cox::planner::keep_all(graph).peak_bytes),
                status.ok() ? "" : (": " + status.message()).c_str());
    if (!status.ok()) return 1;
    std::ofstream(std::string(argv[1]) + "/" + model.name + ".json") << cox::io::to_json(graph);
  }
  return 0;
}
