#include "sdk/src/training/optimizer_port.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/hash.h"
#include "sdk/src/optim/archive_bytes.h"
#include "sdk/src/optim/torch_state.h"

namespace cox::detail {
namespace {

// Returns the bytes of two moments and a step count for every parameter.
std::int64_t moment_bytes(const std::vector<at::Tensor>& parameters) {
  std::int64_t bytes = 0;
  for (const at::Tensor& p : parameters) bytes += 2 * static_cast<std::int64_t>(p.nbytes()) + 4;
  return bytes;
}

class AdamWPort final : public OptimizerPort {
 public:
  AdamWPort(AdamW& optimizer, std::span<const NamedTensor> named) : optimizer_(optimizer) {
    std::map<const void*, std::string> name_of;
    for (const NamedTensor& each : named)
      name_of.emplace(each.tensor.unsafeGetTensorImpl(), each.name);
    for (const NamedTensor& own : optimizer_.parameters()) {
      const auto found = name_of.find(own.tensor.unsafeGetTensorImpl());
      if (found == name_of.end()) {
        unnamed_.push_back(own.name);
      } else if (found->second != own.name) {
        names_.to_model.emplace(own.name, found->second);
        names_.to_own.emplace(found->second, own.name);
      }
    }
  }
  std::vector<at::Tensor> parameters() const override { return parameters_of(optimizer_); }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  void set_learning_rate(double rate) override { optimizer_.set_lr(rate); }
  std::size_t groups() const override { return optimizer_.groups(); }
  double learning_rate(std::size_t group) const override { return optimizer_.options(group).lr; }
  std::uint64_t options_hash() const override {
    Fnv1a64 hash;
    for (std::size_t group = 0; group < groups(); ++group) {
      const AdamWOptions& o = optimizer_.options(group);
      for (const double value : {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay})
        hash.add(std::bit_cast<std::uint64_t>(value));
    }
    return hash.value();
  }
  std::int64_t bytes_to_come() const override {
    return std::max<std::int64_t>(0, moment_bytes(parameters()) - state_bytes());
  }
  std::int64_t state_bytes() const override { return bytes_of(optimizer_.state()); }
  std::vector<NamedTensor> state() const override {
    return renamed(optimizer_.state(), names_.to_model);
  }
  // Saves of version 0.2 use the optimizer's own names.
  Status load_state(std::span<const NamedTensor> state, Handover handover) override {
    const auto own = renamed({state.begin(), state.end()}, names_.to_own);
    return handover == Handover::taken ? optimizer_.take_state(own) : optimizer_.load_state(own);
  }
  std::vector<std::string> unnamed() const override { return unnamed_; }

 private:
  using Names = std::map<std::string, std::string, std::less<>>;
  // Renames FIELD.NAME.
  static std::vector<NamedTensor> renamed(std::vector<NamedTensor> state, const Names& names) {
    for (NamedTensor& each : state) {
      const std::size_t dot = each.name.find('.');
      const auto other = names.find(std::string_view(each.name).substr(dot + 1));
      if (other != names.end()) each.name = each.name.substr(0, dot + 1) + other->second;
    }
    return state;
  }

  AdamW& optimizer_;
  struct {
    Names to_model, to_own;
  } names_;  // for parameters whose names differ between optimizer and model
  std::vector<std::string> unnamed_;
};

constexpr const char* kArchive = "torch_archive";

class TorchPort final : public OptimizerPort {
 public:
  TorchPort(torch::optim::Optimizer& optimizer, std::span<const NamedTensor> named)
      : optimizer_(optimizer),
        has_rates_(works([&] { rate_of(0); })),
        has_names_(has_named_state(optimizer)),
        named_(named.begin(), named.end()) {}
  std::vector<at::Tensor> parameters() const override { return parameters_of(optimizer_); }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  void set_learning_rate(double rate) override {
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
  }

  std::size_t groups() const override { return optimizer_.param_groups().size(); }
  double learning_rate(std::size_t group) const override { return has_rates_ ? rate_of(group) : 0; }
  std::uint64_t options_hash() const override {
    Fnv1a64 hash;
    const bool is_known = works([&] {
      for (const auto& group : optimizer_.param_groups()) {
        torch::serialize::OutputArchive archive;
        group.options().serialize(archive);
        hash.add(detail::bytes_of(archive));
      }
    });
    return is_known ? hash.value() : 0;
  }

  std::int64_t bytes_to_come() const override {
    return optimizer_.state().empty() ? moment_bytes(parameters()) : 0;
  }

  std::int64_t state_bytes() const override { return has_names_ ? bytes_of(state()) : 0; }

  std::vector<std::string> unnamed() const override {
    const GroupNames names = names_by_group(optimizer_, named_);
    std::vector<std::string> unnamed;
    for (std::size_t g = 0; g < names.size(); ++g) {
      for (std::size_t i = 0; i < names[g].size(); ++i) {
        if (names[g][i] == place_name(g, i)) unnamed.push_back(names[g][i]);
      }
    }
    return unnamed;
  }

  std::vector<NamedTensor> state() const override {
    if (has_names_) return named_state(optimizer_, names_by_group(optimizer_, named_));
    torch::serialize::OutputArchive archive;
    optimizer_.save(archive);
    const std::string bytes = detail::bytes_of(archive);
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), tensor.mutable_data_ptr<std::uint8_t>());
    return {{kArchive, tensor}};
  }

  Status load_state(std::span<const NamedTensor> state, Handover handover) override {
    if (has_names_ && !is_by_position(state))
      return load_named_state(optimizer_, names_by_group(optimizer_, named_), state, handover);
    if (!is_by_position(state)) {
      return invalid_argument(
          "optimizer state: expected the archive of a torch::optim optimizer, found the archive of "
          "another kind; resume with the optimizer of the save");
    }
    const at::Tensor bytes = state[0].tensor.contiguous();
    // torch keeps its state for parameters that are not in the archive.
    auto former = std::exchange(optimizer_.state(), {});
    try {
      torch::serialize::InputArchive archive;
      archive.load_from(reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()),
                        static_cast<std::size_t>(bytes.numel()));
      optimizer_.load(archive);
    } catch (const c10::Error& error) {
      optimizer_.state() = std::move(former);
      return data_loss(std::string("optimizer state: torch cannot read it: ") +
                       error.what_without_backtrace());
    } catch (...) {
      optimizer_.state() = std::move(former);
      throw;
    }
    return ok_status();
  }

 private:
  // A program's own optimizer may have options without a learning rate or a text. torch's base
  // class throws for both.
  template <class Ask>
  static bool works(const Ask& ask) {
    try {
      ask();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  double rate_of(std::size_t group) const {
    return optimizer_.param_groups().at(group).options().get_lr();
  }

  torch::optim::Optimizer& optimizer_;
  bool has_rates_;
  bool has_names_;
  std::vector<NamedTensor> named_;
};

}  // namespace

std::int64_t bytes_of(std::span<const NamedTensor> tensors) {
  std::int64_t bytes = 0;
  for (const NamedTensor& each : tensors) bytes += static_cast<std::int64_t>(each.tensor.nbytes());
  return bytes;
}

std::vector<at::Tensor> parameters_of(const AdamW& optimizer) {
  std::vector<at::Tensor> all;
  for (const NamedTensor& named : optimizer.parameters()) all.push_back(named.tensor);
  return all;
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

Status check_rates(const OptimizerPort& optimizer) {
  for (std::size_t group = 0; group < optimizer.groups(); ++group) {
    const double rate = optimizer.learning_rate(group);
    if (std::isfinite(rate) && rate >= 0) continue;
    return invalid_argument("learning rate: expected a number of 0 or more, found ", rate,
                            " in group ", group, " of the optimizer; no parameter was updated");
  }
  return ok_status();
}

bool is_by_position(std::span<const NamedTensor> optimizer_state) {
  return optimizer_state.size() == 1 && optimizer_state[0].name == kArchive;
}

std::unique_ptr<OptimizerPort> make_port(AdamW& optimizer, std::span<const NamedTensor> named) {
  return std::make_unique<AdamWPort>(optimizer, named);
}

std::unique_ptr<OptimizerPort> make_port(torch::optim::Optimizer& optimizer,
                                         std::span<const NamedTensor> named) {
  return std::make_unique<TorchPort>(optimizer, named);
}

}  // namespace cox::detail
