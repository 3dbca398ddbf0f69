// Recorded steps of the seven models: whole, and with all gradients.
#include "tests/sdk/stream/step_recording.h"

#include <string>

#include "sdk/src/stream/saved_tensors.h"

#include <doctest/doctest.h>

namespace {

TEST_SUITE("sdk.stream.step_recording") {
  TEST_CASE("a recorded step has every operator's time and every parameter's gradient") {
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    for (const auto& model : stream_models::all_models(5)) {
      CAPTURE(std::string(model.name));
      const auto step = stream_models::record_step(model, 1);
      REQUIRE(cox::planner::validate(step).ok());
      std::int64_t gradients = 0;
      for (const auto& tensor : step.tensors) gradients += tensor.is_result ? tensor.bytes : 0;
      std::int64_t parameters = 0;
      for (const at::Tensor& each : model.model->parameters()) {
        if (each.grad().defined()) parameters += static_cast<std::int64_t>(each.nbytes());
      }
      CHECK(gradients == parameters);
      CHECK(cox::planner::step_ns(step) > 0);
      CHECK(cox::planner::keep_all(step).peak_bytes > step.base_bytes + gradients);
    }
  }
}

}  // namespace
