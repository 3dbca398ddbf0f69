#include "tests/sdk/stream/step_recording.h"

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "sdk/src/stream/operator_times.h"
#include "sdk/src/stream/storage.h"

namespace stream_models {
namespace {

using cox::detail::MeasuredRegion;
using cox::detail::Tape;
using cox::detail::TapeRecords;
using cox::planner::GraphOperator;
using cox::planner::StepGraph;
using cox::planner::StepOperator;
using Index = std::int32_t;

constexpr std::uint64_t kBatch = 9;

std::size_t at(Index index) {
  return static_cast<std::size_t>(index);
}

void add_once(std::vector<Index>& list, Index value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

class StepBuilder {
 public:
  StepBuilder(const TapeRecords& records, MeasuredRegion region, std::int64_t backward_ns)
      : records_(records),
        region_(std::move(region)),
        backward_ns_(backward_ns),
        versions_(region_.graph.storages.size()) {}

  StepGraph run() {
    for (const auto& storage : region_.graph.storages) bytes_.push_back(storage.bytes);
    for (std::size_t i = 0; i < region_.graph.operators.size(); ++i) find_buffers(i);
    for (std::size_t i = 0; i < region_.graph.operators.size(); ++i) {
      note_gradients(i);
      forward(i);
    }
    start_backward();
    for (std::size_t i = region_.graph.operators.size(); i-- > 0;) backward(i);
    share_backward_time();
    for (const auto& [storage, tensor] : parameter_gradients_)
      step_.tensors[at(tensor)].is_result = true;
    return std::move(step_);
  }

 private:
  struct Forward {
    std::vector<Index> saved;             // tensors
    std::vector<Index> made;              // storages, written ones too
    std::vector<Index> read;              // storages whose gradients it makes
    std::vector<std::size_t> parameters;  // outsides
  };

  Index add_tensor(std::int64_t bytes) {
    step_.tensors.push_back({bytes, false});
    return static_cast<Index>(step_.tensors.size()) - 1;
  }
  std::int64_t bytes_of(Index storage) const { return bytes_[at(storage)]; }

  // `use` gets each reference, and whether it is written to.
  template <class Use>
  void for_each_reference(std::size_t op, const Use& use) const {
    const TapeRecords::Operator& it = records_.operators[op];
    const auto& schema = it.handle.schema().arguments();
    for (std::size_t a = 0; a < schema.size(); ++a) {
      const TapeRecords::Argument& argument = records_.arguments[it.first_argument + a];
      if (argument.kind == TapeRecords::ArgumentKind::integers) continue;
      const bool is_written =
          schema[a].alias_info() != nullptr && schema[a].alias_info()->isWrite();
      for (std::uint32_t r = 0; r < argument.count; ++r)
        use(records_.references[argument.first + r], is_written);
    }
  }

  // The tensors from outside that it reads, itself or through views.
  std::vector<std::size_t> outsides_of(const TapeRecords::Reference& read) const {
    if (read.source == TapeRecords::Source::outside) return {at(read.index)};
    const bool is_view =
        read.source == TapeRecords::Source::result && read.storage == TapeRecords::kNone;
    return is_view ? views_[at(read.index)] : std::vector<std::size_t>{};
  }
  bool makes_storage(std::size_t op) const {
    return std::ranges::any_of(region_.graph.storages,
                               [&](const auto& it) { return at(it.maker) == op; });
  }

  // Memory from outside that the region writes to (a tensor of zeros that is filled slice by slice)
  // counts as a storage of its own.
  void find_buffers(std::size_t op) {
    std::vector<std::size_t> views;
    for_each_reference(op, [&](const TapeRecords::Reference& read, bool is_written) {
      for (const std::size_t index : outsides_of(read)) {
        views.push_back(index);
        const c10::StorageImpl* storage = records_.outsides[index].storage;
        if (!is_written || cox::detail::is_parameter(records_.outsides[index].tensor)) continue;
        if (!buffers_.emplace(storage, static_cast<Index>(bytes_.size())).second) continue;
        bytes_.push_back(static_cast<std::int64_t>(storage->nbytes()));
        versions_.emplace_back();
      }
    });
    if (makes_storage(op)) views.clear();
    views_.push_back(std::move(views));
  }
  Index buffer_of(std::size_t outside) const {
    const auto found = buffers_.find(records_.outsides[outside].storage);
    return found == buffers_.end() ? TapeRecords::kNone : found->second;
  }

  void note_gradients(std::size_t op) {
    Forward it;
    for_each_reference(op, [&](const TapeRecords::Reference& read, bool) {
      if (!read.requires_grad) return;
      if (read.source == TapeRecords::Source::result && read.storage != TapeRecords::kNone)
        add_once(it.read, read.storage);
      for (const std::size_t index : outsides_of(read)) {
        if (buffer_of(index) != TapeRecords::kNone) add_once(it.read, buffer_of(index));
        add_parameter(it, index);
      }
    });
    forwards_.push_back(std::move(it));
  }

  void add_parameter(Forward& it, std::size_t index) const {
    if (!cox::detail::is_parameter(records_.outsides[index].tensor)) return;
    const auto same = [&](std::size_t other) {
      return records_.outsides[other].storage == records_.outsides[index].storage;
    };
    if (std::ranges::none_of(it.parameters, same)) it.parameters.push_back(index);
  }

  void forward(std::size_t op) {
    const GraphOperator& it = region_.graph.operators[op];
    Forward& noted = forwards_[op];
    StepOperator made{it.name, it.ns, {}, {}};
    for (const auto& read : it.reads) {
      if (read.storage >= 0) add_once(made.reads, versions_[at(read.storage)][at(read.writes)]);
    }
    read_buffers(op, made);
    for (std::size_t s = 0; s < region_.graph.storages.size(); ++s) {
      if (at(region_.graph.storages[s].maker) != op) continue;
      noted.made.push_back(static_cast<Index>(s));
      made.makes.push_back(add_tensor(region_.graph.storages[s].bytes));
      versions_[s].push_back(made.makes.back());
    }
    for (const Index s : it.writes) {
      if (std::ranges::find(noted.made, s) == noted.made.end()) {
        noted.made.push_back(s);
        made.makes.push_back(add_tensor(bytes_of(s)));
        written_ = made.makes.back();
      }
      versions_[at(s)].push_back(written_);
    }
    for (const auto& save : it.saves) {
      const auto& versions = versions_[at(save.storage)];
      add_once(noted.saved, save.by_value ? versions[at(save.value.writes)] : versions.back());
    }
    write_buffers(op, noted, made);
    if (made.makes.empty()) return;  // a view
    if (made.name.starts_with("aten::")) made.name = made.name.substr(6);
    step_.operators.push_back(std::move(made));
  }

  void read_buffers(std::size_t op, StepOperator& made) {
    for_each_reference(op, [&](const TapeRecords::Reference& read, bool) {
      for (const std::size_t index : outsides_of(read)) {
        const Index buffer = buffer_of(index);
        if (buffer == TapeRecords::kNone || (!makes_storage(op) && !is_writer(op))) continue;
        auto& versions = versions_[at(buffer)];
        if (versions.empty()) {
          versions.push_back(add_tensor(bytes_of(buffer)));
          step_.operators.push_back({"buffer", 0, {}, {versions.back()}});
        }
        add_once(made.reads, versions.back());
      }
    });
  }
  bool is_writer(std::size_t op) const { return records_.operators[op].writes_outside; }

  void write_buffers(std::size_t op, Forward& noted, StepOperator& made) {
    for_each_reference(op, [&](const TapeRecords::Reference& read, bool is_written) {
      if (!is_written) return;
      for (const std::size_t index : outsides_of(read)) {
        const Index buffer = buffer_of(index);
        if (buffer == TapeRecords::kNone ||
            std::ranges::find(noted.made, buffer) != noted.made.end())
          continue;
        noted.made.push_back(buffer);
        made.makes.push_back(add_tensor(bytes_of(buffer)));
        versions_[at(buffer)].push_back(made.makes.back());
      }
    });
    for (const TapeRecords::SavedNote& note : records_.measured->saved) {
      if (at(note.key.saver) != op || !note.is_forced) continue;
      const auto found = buffers_.find(note.address);
      if (found != buffers_.end() && !versions_[at(found->second)].empty())
        add_once(noted.saved, versions_[at(found->second)].back());
    }
  }

  void start_backward() {
    forward_operators_ = step_.operators.size();
    Index loss = region_.graph.storages.empty() ? 0 : last_made();
    gradients_[loss] = add_tensor(bytes_of(loss));
    step_.operators.push_back({"gradient_of_loss", 0, {}, {gradients_[loss]}});
  }
  Index last_made() const {
    for (std::size_t i = forwards_.size(); i-- > 0;) {
      if (!forwards_[i].made.empty()) return forwards_[i].made.front();
    }
    return 0;
  }

  void backward(std::size_t op) {
    const Forward& it = forwards_[op];
    StepOperator made{region_.graph.operators[op].name + "_backward", weight(op), {}, {}};
    if (made.name.starts_with("aten::")) made.name = made.name.substr(6);
    for (const Index s : it.made) {
      if (gradients_.contains(s)) add_once(made.reads, gradients_[s]);
    }
    if (made.reads.empty() || (it.read.empty() && it.parameters.empty())) return;
    for (const Index tensor : it.saved) add_once(made.reads, tensor);
    for (const Index s : it.read) {
      if (gradients_.contains(s)) add_once(made.reads, gradients_[s]);
      gradients_[s] = add_tensor(bytes_of(s));
      made.makes.push_back(gradients_[s]);
    }
    for (const std::size_t index : it.parameters) {
      const auto* storage = records_.outsides[index].storage;
      const auto known = parameter_gradients_.find(storage);
      if (known != parameter_gradients_.end()) add_once(made.reads, known->second);
      const Index tensor = add_tensor(static_cast<std::int64_t>(storage->nbytes()));
      parameter_gradients_[storage] = tensor;
      made.makes.push_back(tensor);
    }
    std::ranges::sort(made.reads);
    // A tensor that it makes for the second time in one call (x * x) is made once.
    std::erase_if(made.reads,
                  [&](Index t) { return std::ranges::find(made.makes, t) != made.makes.end(); });
    step_.operators.push_back(std::move(made));
  }

  // To be scaled.
  std::int64_t weight(std::size_t op) const {
    const std::string& name = region_.graph.operators[op].name;
    const bool is_product =
        name.find("mm") != std::string::npos || name.find("conv") != std::string::npos;
    const bool has_both = is_product && !forwards_[op].parameters.empty();
    return region_.graph.operators[op].ns * (has_both ? 2 : 1);
  }

  void share_backward_time() {
    double sum = 1;
    for (std::size_t i = forward_operators_; i < step_.operators.size(); ++i)
      sum += static_cast<double>(step_.operators[i].ns);
    for (std::size_t i = forward_operators_; i < step_.operators.size(); ++i) {
      std::int64_t& ns = step_.operators[i].ns;
      ns = static_cast<std::int64_t>(static_cast<double>(ns) / sum *
                                     static_cast<double>(backward_ns_));
    }
  }

  const TapeRecords& records_;
  const MeasuredRegion region_;
  const std::int64_t backward_ns_;
  StepGraph step_;
  std::vector<std::int64_t> bytes_;                   // of each storage, buffers last
  std::vector<std::vector<std::size_t>> views_;       // each operator's, of outsides
  std::map<const c10::StorageImpl*, Index> buffers_;  // as storages
  std::vector<std::vector<Index>> versions_;          // tensors of each storage, one for each write
  std::vector<Forward> forwards_;
  Index written_ = 0;
  std::size_t forward_operators_ = 0;
  std::map<Index, Index> gradients_;  // of storages
  std::map<const c10::StorageImpl*, Index> parameter_gradients_;
};

struct Pass {
  std::shared_ptr<Tape> tape;
  std::int64_t backward_ns = 0;
};

Pass measured_pass(const ModelCase& model) {
  torch::manual_seed(7);
  model.model->zero_grad();
  const auto keep = [](const cox::detail::SavedValue&) { return cox::detail::Hold::keep; };
  Pass pass{Tape::make("a step", keep), 0};
  pass.tape->measure(std::make_shared<cox::detail::RegionMeter>(&cox::detail::steady_ns));
  at::Tensor loss;
  {
    const cox::detail::TapeScope scope(*pass.tape);
    loss = model.loss(kBatch);
  }
  pass.tape->close();
  const std::int64_t begun = cox::detail::steady_ns();
  loss.backward();
  pass.backward_ns = cox::detail::steady_ns() - begun;
  return pass;
}

}  // namespace

StepGraph record_step(const ModelCase& model, int passes) {
  const bool was_optimised = torch::jit::getGraphExecutorOptimize();
  torch::jit::setGraphExecutorOptimize(false);
  measured_pass(model);
  Pass first = measured_pass(model);
  MeasuredRegion region = cox::detail::measured_region(*first.tape);
  for (int i = 1; i < passes; ++i) {
    const Pass pass = measured_pass(model);
    const MeasuredRegion other = cox::detail::measured_region(*pass.tape);
    if (cox::detail::is_alike(region.graph, other.graph)) cox::detail::take_lesser(region, other);
    first.backward_ns = std::min(first.backward_ns, pass.backward_ns);
  }
  StepGraph step = StepBuilder(first.tape->records(), std::move(region), first.backward_ns).run();
  torch::jit::setGraphExecutorOptimize(was_optimised);
  step.name = model.name;
  for (const at::Tensor& each : model.model->parameters())
    step.base_bytes += static_cast<std::int64_t>(each.nbytes());
  for (const at::Tensor& each : model.model->buffers())
    step.base_bytes += static_cast<std::int64_t>(each.nbytes());
  return step;
}

}  // namespace stream_models
