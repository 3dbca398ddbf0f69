#include "sdk/src/shard/sharding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "metrics/topics/memory.h"
#include "sdk/src/memory/heap.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

// A wait polls kLooks times, then yields the core kYields times, then follows the ranks' wait
// policy and is watched.
constexpr int kLooks = 20;
constexpr int kYields = 200;

// Adds the time of a wait to the counts.
class TimedWait {
 public:
  explicit TimedWait(metrics::SharedUpdates& counts) : counts_(counts) {}
  ~TimedWait() {
    ++counts_.waits;
    counts_.wait_seconds += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

 private:
  metrics::SharedUpdates& counts_;
  const Clock::time_point start_ = Clock::now();
};

Status check_place(const Membership& job) {
  const transport::Communicator& all = job.all();
  if (all.ranks_on_node() != all.size())
    return failed_precondition("shard.mode=state: expected all ", all.size(),
                               " ranks on one node, found ", all.ranks_on_node(),
                               " on this one; start them on one node, or set shard.mode=off");
  if (!job.place().device.is_cpu())
    return failed_precondition("shard.mode=state: expected ranks that train on the CPU, found ",
                               job.place().device.str(), "; set run.device=cpu, or shard.mode=off");
  return ok_status();
}

std::unique_ptr<transport::Communicator> join_node(const Membership& job) {
  job.agree(check_place(job));
  return require(job.all().split_by_node(), Error::Scope::all_ranks);
}

WriteOrder make_order(transport::Communicator& node, WriteOrder::Wait wait) {
  auto memory = node.shared_segment(WriteOrder::bytes_needed(node.size()));
  return WriteOrder(require(std::move(memory), Error::Scope::all_ranks), node.rank().value(),
                    node.size(), std::move(wait));
}

}  // namespace

bool Sharding::is_wanted(SessionState& state) {
  return state.job().config().shard.mode == ShardMode::state && state.job().world_size() > 1;
}

Sharding::Sharding(SessionState& state)
    : state_(state),
      node_(join_node(state.job())),
      parameters_(state.job().config().shard.grain),
      order_(make_order(*node_, [this](const std::function<bool()>& is_over) { wait(is_over); })),
      rewriter_(parameters_, order_) {
  if (state_.loop().is_sharded())
    throw Error(failed_precondition("shard.mode=state: expected one Reducer, or models that are "
                                    "adopted, found a second Reducer; set shard.mode=off"),
                Error::Scope::all_ranks);
  state_.loop().begin_sharded();
  // Every step frees each rank's own gradients, which the C library would keep.
  configure_heap(FreedBlocks::returned);
}

void Sharding::wait(const std::function<bool()>& is_over) {
  for (int look = 0; look < kLooks; ++look) {
    if (is_over()) return;
  }
  const WaitingScope waiting(state_.recorder());
  const TimedWait timed(updates_);
  for (int yield = 0; yield < kYields; ++yield) {
    sched_yield();
    if (is_over()) return;
  }
  const BetweenPolls attend = state_.control().is_started()
                                  ? state_.waits().attend("the update of a sharded model")
                                  : state_.job().world().between_polls();
  transport::Waiter waiter(wait_policy_of(*node_));
  while (!is_over()) {
    if (attend) attend();
    require(waiter.pause());
  }
}

void Sharding::add(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedParameter> named;
  for (const NamedTensor& each : parameters)
    named.push_back({each.name.empty() ? concat("number ", named.size()) : each.name, each.tensor});
  const Status added = parameters_.add(*node_, named, weights());
  if (!added.ok()) throw Error(added, Error::Scope::all_ranks);
  make_room();
  name_faults();
  tell_summary();
  warn_of_uneven(parameters);
  malloc_trim(0);  // returns the parameters' former memory to the system
}

// Slices are in proportion to the ranks' budgets if every rank has one in bytes, else equal.
std::vector<double> Sharding::weights() const {
  const auto ranks = static_cast<std::size_t>(node_->size());
  const MemoryConfig& memory = state_.job().config().memory;
  std::vector<double> bytes;
  for (std::int32_t rank = 0; rank < node_->size(); ++rank) {
    const auto own = memory.budget_of_rank.find(rank);
    const MemoryBudget& budget = own == memory.budget_of_rank.end() ? memory.budget : own->second;
    if (budget.kind != BudgetKind::bytes) return std::vector<double>(ranks, 1);
    bytes.push_back(static_cast<double>(budget.bytes));
  }
  return bytes;
}

void Sharding::tell_summary() const {
  if (!state_.job().is_root()) return;
  std::uint64_t bytes = 0;
  for (const ShardedParameter& each : parameters_.all()) {
    if (!each.gradient_of) bytes += each.tensor.nbytes();
  }
  state_.job().log().info(
      concat("shard.mode=state: ", fixed(static_cast<double>(bytes) / 0x1p20, 1),
             " MiB of parameters, and averaged gradients, once for ", node_->size(),
             " ranks, which divide the optimizer's state; with shard.mode=off each rank "
             "would hold all of them. The system counts the shared memory as rank 0's"));
}

// In bf16 and fp16, LibTorch computes the end of each thread's part in another way than whole
// vectors. The parts of a slice end elsewhere than those of the whole parameter
// (slice_bits_test.cc).
void Sharding::warn_of_uneven(const std::vector<NamedTensor>& parameters) const {
  constexpr std::int64_t kOfOneThread = 32768;  // smaller tensors run on one thread
  constexpr std::int64_t kVector = 64;
  const std::int64_t threads = at::get_num_threads();
  const auto uneven = std::ranges::find_if(parameters, [threads](const NamedTensor& each) {
    const bool is_narrow = each.tensor.is_floating_point() && each.tensor.element_size() < 4;
    return is_narrow && each.tensor.numel() > kOfOneThread &&
           each.tensor.numel() % (threads * kVector) != 0;
  });
  if (threads == 1 || uneven == parameters.end() || !state_.job().is_root()) return;
  state_.job().log().warning(concat(
      "shard.mode=state: expected narrow parameters whose elements ", threads,
      " threads divide evenly, found ", uneven->name, " of ", uneven->tensor.numel(),
      "; last bits of its update may differ from replicated training; set OMP_NUM_THREADS=1"));
}

void Sharding::show_held() const {
  metrics::HeldBytes held;
  for (const ShardedParameter& each : parameters_.all()) {
    auto& kind = each.gradient_of ? held.gradients : held.parameters;
    kind += static_cast<std::int64_t>(each.slice.nbytes());
  }
  state_.control().telemetry().show_held(held);
}

void Sharding::name_faults() {
  std::vector<NamedMemory> memory;
  for (const ShardedParameter& each : parameters_.all()) {
    memory.push_back({static_cast<const std::byte*>(each.tensor.const_data_ptr()),
                      each.tensor.nbytes(), (each.gradient_of ? "" : "parameter ") + each.name});
  }
  faults_.reset();
  faults_.emplace(std::move(memory));
}

// Allocates the other memory of all ranks: for gathering shards, and for turns.
void Sharding::make_room() {
  const auto segment = [this](std::size_t bytes) {
    return require(node_->shared_segment(bytes), Error::Scope::all_ranks);
  };
  if (!turns_) rewriter_.gather_in(segment(ShardRewriter::kGatheringBytes));
  const std::size_t gradients = parameters_.all().size();
  turns_.emplace(segment(GradientTurns::bytes_needed(gradients, node_->size())), gradients,
                 node_->rank().value(), node_->size(),
                 [this](const std::function<bool()>& is_over) { wait(is_over); });
  own_gradients_.emplace(parameters_, order_, *turns_,
                         [this](const std::function<bool()>& is_over) { wait(is_over); });
}

void Sharding::backward_begins(double unit) {
  follow_replaced();
  before_reading();
  parameters_.let_go_of_gradients();
  own_gradients_->backward_begins(unit);
}

void Sharding::backward_ended() {
  own_gradients_->backward_ended();
}

ReductionMaker Sharding::maker(const ReductionSetup& setup, Passes passes) {
  return {[this, setup, passes](const auto& parameters, const auto& needed, auto&) {
    SharedGradients shared{parameters_, order_, *turns_, *own_gradients_, state_.job().data()};
    if (passes == Passes::told_by_reduction) {
      shared.backward_begins = [this](double unit) { backward_begins(unit); };
      shared.averaged = [this] { gradients_averaged(); };
    }
    const auto make_rest = [&](const auto& rest, const auto& rest_needed, auto& habits) {
      return detail::make_reduction(setup, rest, rest_needed, {reverse_order(rest.size()), {}},
                                    habits);
    };
    return std::make_unique<SharedReduction>(std::move(shared), parameters, needed, make_rest);
  }};
}

// Trims the heap when less memory is needed: when states became shards, or when more gradients are
// added early. The C library would keep the freed memory.
void Sharding::gradients_averaged() {
  rewriter_.gradients_averaged();
  ++updates_.updates;
  updates_.writes = order_.number();
  updates_.new_sequences = rewriter_.new_sequences();
  state_.control().telemetry().show(updates_);
  const std::uint64_t shards = rewriter_.shards_made();
  const std::size_t steady = own_gradients_->steady();
  const bool is_less_needed = shards != shards_seen_ || steady != steady_seen_;
  shards_seen_ = shards;
  steady_seen_ = steady;
  if (is_less_needed) malloc_trim(0);
}

void Sharding::follow_replaced() {
  while (const ShardedParameter* replaced = parameters_.replaced()) {
    const std::size_t index = parameters_.index_of(*replaced);
    if (!parameters_.fits_again(index))
      throw Error(
          failed_precondition("shard.mode=state: expected parameter ", replaced->name,
                              " with the sizes, type and memory of its own that it had at "
                              "adopt(), found different ones (set_data, Module::to or a load); "
                              "change the model before adopt()"),
          Error::Scope::all_ranks);
    parameters_.move_again(index, [&](const at::Tensor& values) { rewriter_.take(index, values); });
  }
}

at::Tensor SavedShards::form_of_whole(const at::Tensor& state) const {
  const ShardedParameter* of = rewriter_.sharded_by(state);
  return of == nullptr ? state : at::empty({}, state.options()).expand(of->tensor.sizes());
}

void SavedShards::complete(std::span<const NamedTensor> states, std::span<NamedTensor> saved,
                           const std::function<bool(std::size_t)>& keeps) const {
  using Keep = ShardRewriter::Keep;
  for (std::size_t place = 0; place < states.size(); ++place)
    saved[place].tensor =
        rewriter_.whole(states[place].tensor, keeps(place) ? Keep::yes : Keep::no);
}

void SavedShards::load(const at::Tensor& parameter, const at::Tensor& values) const {
  const at::NoGradGuard no_grad;
  const ShardedParameter& of = *parameters_.whole(parameter);
  rewriter_.write(parameters_.index_of(of), elements_of(values, of.own));
}

void SavedShards::divide(std::span<const NamedTensor> states,
                         std::span<const NamedTensor> model) const {
  const StreamPause unseen;
  for (const NamedTensor& state : states) {
    const std::string name = state.name.substr(state.name.find('.') + 1);
    const auto of = std::ranges::find(model, name, &NamedTensor::name);
    const ShardedParameter* parameter = of == model.end() ? nullptr : parameters_.whole(of->tensor);
    if (parameter != nullptr) rewriter_.divide(state.tensor, parameters_.index_of(*parameter));
  }
}

std::int64_t SavedShards::held_bytes_of(std::int64_t bytes,
                                        const std::vector<at::Tensor>& parameters) const {
  std::int64_t held = 0;
  std::int64_t all = 0;
  for (const at::Tensor& each : parameters) {
    const ShardedParameter* of = parameters_.whole(each);
    held += static_cast<std::int64_t>((of == nullptr ? each : of->slice).nbytes());
    all += static_cast<std::int64_t>(each.nbytes());
  }
  const double part = all == 0 ? 1 : static_cast<double>(held) / static_cast<double>(all);
  return std::llround(part * static_cast<double>(bytes));
}

std::vector<HeldTensor> SavedShards::copy_held(std::span<const NamedTensor> tensors) const {
  const StreamPause unseen;
  const at::NoGradGuard no_grad;
  std::vector<HeldTensor> copies;
  for (const NamedTensor& each : tensors) {
    const ShardedParameter* parameter = parameters_.whole(each.tensor);
    const ShardedParameter* of =
        parameter != nullptr ? parameter : rewriter_.sharded_by(each.tensor);
    const at::Tensor& held = parameter != nullptr ? parameter->slice : each.tensor;
    HeldTensor& copy = copies.emplace_back(HeldTensor{{each.name, held.detach().clone()}, {}});
    if (of != nullptr) copy.part_of = parameters_.index_of(*of);
  }
  return copies;
}

void SavedShards::put_back(std::span<const NamedTensor> model,
                           std::span<const HeldTensor> copies) const {
  const StreamPause unseen;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const HeldTensor& each = copies[i];
    if (each.part_of) {
      rewriter_.write(*each.part_of, each.copy.tensor);
    } else {
      at::Tensor(model[i].tensor).copy_(each.copy.tensor);
    }
  }
}

std::vector<NamedTensor> SavedShards::spread(std::span<const HeldTensor> states) const {
  const StreamPause unseen;
  const at::NoGradGuard no_grad;
  std::vector<NamedTensor> whole;
  for (const HeldTensor& each : states) {
    const at::Tensor& held = each.copy.tensor;
    at::Tensor values;
    if (!each.part_of) {
      values = held.clone();
    } else {
      const ShardedParameter& of = parameters_.all()[*each.part_of];
      values = at::empty_strided(of.tensor.sizes(), of.tensor.strides(), held.options()).zero_();
      elements_of(values, of.own).copy_(held);
    }
    whole.push_back({each.copy.name, values});
  }
  return whole;
}

void Sharding::give_back() {
  shown_.reset();
  rewriter_.before_reading();
  own_gradients_.reset();
  parameters_.give_back();
  state_.loop().end_sharded();
  faults_.reset();
}

}  // namespace cox::detail
