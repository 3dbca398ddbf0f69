#include "sdk/src/parallel/make_reduction.h"

#include <utility>

#include "sdk/src/parallel/exact_reduction.h"
#include "sdk/src/parallel/local_reduction.h"
#include "sdk/src/parallel/overlapped_reduction.h"

namespace cox::detail {
namespace {

std::unique_ptr<StepExchange> exchange_of(SessionState& state, const GradientLayout& layout,
                                          const StepExchange::Extent& extent) {
  transport::ExchangeOptions options;
  options.wait = state.wait_policy();
  if (!state.config().reduction.shared_memory) {
    options.shared_memory = transport::SharedMemory::avoid;
  }
  return std::make_unique<StepExchange>(state.data(), layout, extent, options);
}

}  // namespace

std::unique_ptr<GradientReduction> make_reduction(SessionState& state,
                                                  const std::vector<at::Tensor>& parameters,
                                                  const std::vector<bool>& needed,
                                                  const BucketChoice& choice,
                                                  const std::vector<ExactBin>& bins) {
  const std::size_t count = parameters.size();
  const bool is_exact = state.config().reduction.reproducible;
  if (!is_exact && state.world_size() == 1) return std::make_unique<LocalReduction>(parameters);
  const auto shapes =
      is_exact ? exact_shapes(parameters, needed) : ordinary_shapes(parameters, needed);
  GradientLayout layout = lay_out(shapes, choice.order, choice.sizes);
  if (is_exact) {
    auto exchange = exchange_of(state, layout, {count + 1, count});
    return std::make_unique<ExactReduction>(parameters, std::move(layout), std::move(exchange),
                                            bins);
  }
  auto exchange = exchange_of(state, layout, {count, 0});
  return std::make_unique<OverlappedReduction>(parameters, std::move(layout), std::move(exchange));
}

}  // namespace cox::detail
