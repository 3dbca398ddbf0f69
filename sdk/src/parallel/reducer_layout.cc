#include <torch/torch.h>

#include <exception>
#include <string>
#include <utility>

#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/exact_reduction.h"
#include "sdk/src/parallel/make_reduction.h"
#include "sdk/src/parallel/overlapped_reduction.h"
#include "sdk/src/parallel/parameter_list.h"
#include "sdk/src/parallel/reducer_impl.h"

namespace cox {

using detail::BucketChoice;

namespace {

constexpr std::uint64_t kMicroBatchesAtFirst = 64;

std::int64_t gradient_bytes(const std::vector<at::Tensor>& parameters,
                            const std::vector<bool>& required, std::int64_t factor) {
  std::int64_t bytes = 0;
  for (const detail::GradientShape& shape : detail::ordinary_shapes(parameters, required)) {
    if (shape.needed) bytes += factor * shape.elements * detail::bytes_of(shape.type);
  }
  return bytes;
}

// A choice as numbers that a broadcast carries: the two sizes, then the order.
std::vector<std::int64_t> packed(const BucketChoice& choice) {
  std::vector<std::int64_t> numbers = {choice.sizes.first_bytes, choice.sizes.bytes};
  numbers.insert(numbers.end(), choice.order.begin(), choice.order.end());
  return numbers;
}

BucketChoice unpacked(const std::vector<std::int64_t>& numbers) {
  BucketChoice choice;
  choice.sizes = {numbers[0], numbers[1]};
  for (std::size_t i = 2; i < numbers.size(); ++i) {
    choice.order.push_back(static_cast<std::uint32_t>(numbers[i]));
  }
  return choice;
}

}  // namespace

Reducer::Impl::Impl(Session session_in, std::vector<at::Tensor> parameters_in,
                    std::vector<at::Tensor> buffers_in)
    : session(std::move(session_in)),
      state(session.state()),
      parameters(std::move(parameters_in)),
      required(detail::required_of(parameters)),
      buffers(std::move(buffers_in)),
      tuning(parameters.size(), gradient_bytes(parameters, required, is_reproducible() ? 2 : 1),
             state.config().reduction.bucket_bytes),
      bins(parameters.size(), detail::first_bin(kMicroBatchesAtFirst)) {
  if (is_reproducible()) {
    const Status fits = detail::check_exact(parameters);
    if (!fits.ok()) throw Error(fits, Error::Scope::all_ranks);
  }
  build();
  const detail::StepExchange* exchange = reduction->exchange();
  if (exchange == nullptr) return;  // nothing leaves early, and a hook costs a microsecond
  hooks.emplace(parameters, [this](std::size_t parameter) { reduction->ready(parameter); });
  if (state.rank() != kRoot || exchange->note().empty()) return;
  state.log().warning(exchange->note());
}

// The others must not wait for a rank that is on its way out.
Reducer::Impl::~Impl() {
  if (std::uncaught_exceptions() == 0 || reduction == nullptr) return;
  if (detail::StepExchange* exchange = reduction->exchange()) {
    exchange->leave("its training loop ended with an exception");
  }
}

// What is frozen now may be trained later, so it keeps its place.
void Reducer::Impl::build() {
  reduction = detail::make_reduction(state, parameters, required, tuning.choice(), bins);
  show_held();
}

// What buckets cost this rank: adding and copying, and the wait after backward. The time of a whole
// step would say the same through many times the noise.
double Reducer::Impl::cost_of_buckets() const {
  double seconds = last.exposed_seconds;
  for (const BucketReport& bucket : last.buckets) seconds += bucket.worked_seconds;
  return seconds;
}

void Reducer::Impl::share(std::span<std::byte> bytes, RankId from) {
  transport::Communicator& ranks = state.data();
  const Status told =
      transport::finish(ranks, ranks.start_broadcast(bytes, from), state.wait_policy());
  if (!told.ok()) throw Error(told.with_context("layout of gradient buckets"));
}

// Of the lowest rank that saw one: rank 0 may have had no samples. Empty where no rank did.
std::vector<std::uint32_t> Reducer::Impl::order_seen() {
  constexpr std::uint64_t kNobody = ~std::uint64_t{0};
  transport::Communicator& ranks = state.data();
  const auto mine = static_cast<std::uint64_t>(state.rank().value());
  std::uint64_t lowest = reduction->order().empty() ? kNobody : mine;
  const Status agreed = transport::finish(
      ranks,
      ranks.start_all_reduce(std::as_writable_bytes(std::span(&lowest, 1)), transport::min_u64()),
      state.wait_policy());
  if (!agreed.ok()) throw Error(agreed.with_context("layout of gradient buckets"));
  if (lowest == kNobody) return {};
  std::vector<std::uint32_t> order = detail::completed(reduction->order(), parameters.size());
  share(std::as_writable_bytes(std::span(order)), RankId(static_cast<std::int32_t>(lowest)));
  return order;
}

// After a step in which every rank took part.
void Reducer::Impl::tune() {
  if (reduction->exchange() == nullptr || tuning.is_over()) return;
  const BucketChoice former = tuning.choice();
  const bool is_due = tuning.wants_order() ? tuning.learn_order(order_seen())
                                           : tuning.learn_cost(cost_of_buckets());
  if (!is_due) return;
  std::vector<std::int64_t> numbers = packed(tuning.choice());
  share(std::as_writable_bytes(std::span(numbers)), kRoot);
  adopt(unpacked(numbers), former);
}

// The old buckets live on in .grad: a folder that has no room for both would send by messages from
// now on, so the old layout then stays. The note is equal on all ranks.
void Reducer::Impl::adopt(const BucketChoice& choice, const BucketChoice& former) {
  tuning.adopt(choice);
  if (const auto* exact = dynamic_cast<detail::ExactReduction*>(reduction.get())) {
    bins = exact->bins();
  }
  auto old = std::move(reduction);
  build();
  if (reduction->exchange()->note().empty() || !old->exchange()->note().empty()) return;
  reduction = std::move(old);
  tuning.restore(former);
  show_held();
}

void Reducer::Impl::show_held() {
  metrics::HeldBytes held;
  for (const at::Tensor& parameter : parameters) {
    held.parameters += static_cast<std::int64_t>(parameter.nbytes());
    if (parameter.requires_grad()) held.gradients += static_cast<std::int64_t>(parameter.nbytes());
  }
  if (detail::StepExchange* exchange = reduction->exchange()) {
    for (std::size_t b = 0; b < exchange->gradient_buckets(); ++b) {
      held.buckets += static_cast<std::int64_t>(exchange->flat(b).nbytes());
    }
  }
  state.show_held(held);
}

}  // namespace cox
