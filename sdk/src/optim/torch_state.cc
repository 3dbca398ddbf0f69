#include "sdk/src/optim/torch_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::detail {
namespace {

namespace optim = torch::optim;

// The fields of each kind's state and options, by the names in torch's archives. Calls the visitor
// with the name and the field.
template <class Visit>
void fields(optim::AdagradParamState& s, Visit&& visit) {
  visit("sum", s.sum());
  visit("step", s.step());
}
// Adam and AdamW have two types of state with equal fields.
template <class Moments, class Visit>
void moment_fields(Moments& s, Visit&& visit) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg());
  visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void fields(optim::AdamParamState& s, Visit&& visit) {
  moment_fields(s, visit);
}
template <class Visit>
void fields(optim::AdamWParamState& s, Visit&& visit) {
  moment_fields(s, visit);
}
// Omits `al`, which each step fills before reading.
template <class Visit>
void fields(optim::LBFGSParamState& s, Visit&& visit) {
  visit("func_evals", s.func_evals());
  visit("n_iter", s.n_iter());
  visit("t", s.t());
  visit("prev_loss", s.prev_loss());
  visit("d", s.d());
  visit("H_diag", s.H_diag());
  visit("prev_flat_grad", s.prev_flat_grad());
  visit("old_dirs", s.old_dirs());
  visit("old_stps", s.old_stps());
  visit("ro", s.ro());
}
template <class Visit>
void fields(optim::RMSpropParamState& s, Visit&& visit) {
  visit("step", s.step());
  visit("square_avg", s.square_avg());
  visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}
template <class Visit>
void fields(optim::SGDParamState& s, Visit&& visit) {
  visit("momentum_buffer", s.momentum_buffer());
}

template <class Visit>
void fields(optim::AdagradOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("lr_decay", o.lr_decay());
  visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value());
  visit("eps", o.eps());
}
template <class Options, class Visit>
void moment_options(Options& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("betas", o.betas());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}
template <class Visit>
void fields(optim::AdamOptions& o, Visit&& visit) {
  moment_options(o, visit);
}
template <class Visit>
void fields(optim::AdamWOptions& o, Visit&& visit) {
  moment_options(o, visit);
}
template <class Visit>
void fields(optim::LBFGSOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("max_iter", o.max_iter());
  visit("max_eval", o.max_eval());
  visit("tolerance_grad", o.tolerance_grad());
  visit("tolerance_change", o.tolerance_change());
  visit("history_size", o.history_size());
  visit("line_search_fn", o.line_search_fn());
}
template <class Visit>
void fields(optim::RMSpropOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("alpha", o.alpha());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum());
  visit("centered", o.centered());
}
template <class Visit>
void fields(optim::SGDOptions& o, Visit&& visit) {
  visit("lr", o.lr());
  visit("momentum", o.momentum());
  visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay());
  visit("nesterov", o.nesterov());
}

template <class OptimizerType, class OptionsType, class StateType>
struct Kind {
  using Options = OptionsType;
  using State = StateType;
  const char* name;
  static bool is(const optim::Optimizer& optimizer) {
    return typeid(optimizer) == typeid(OptimizerType);
  }
};

constexpr std::tuple kKinds = {
    Kind<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>{"Adagrad"},
    Kind<optim::Adam, optim::AdamOptions, optim::AdamParamState>{"Adam"},
    Kind<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>{"AdamW"},
    Kind<optim::LBFGS, optim::LBFGSOptions, optim::LBFGSParamState>{"LBFGS"},
    Kind<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>{"RMSprop"},
    Kind<optim::SGD, optim::SGDOptions, optim::SGDParamState>{"SGD"}};

// Calls `act` with the optimizer's kind. Returns false for an optimizer without a kind.
template <class Act>
bool with_kind(const optim::Optimizer& optimizer, Act&& act) {
  const auto act_if = [&](const auto& kind) {
    if (!kind.is(optimizer)) return false;
    act(kind);
    return true;
  };
  return std::apply([&](const auto&... kind) { return (act_if(kind) || ...); }, kKinds);
}

at::Tensor bytes_tensor(std::string_view text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::ranges::copy(text, bytes.mutable_data_ptr<std::uint8_t>());
  return bytes;
}

std::optional<std::string> text_of(const at::Tensor& bytes) {
  if (bytes.scalar_type() != at::kByte || bytes.dim() != 1) return std::nullopt;
  const at::Tensor dense = bytes.contiguous();
  const auto* first = dense.const_data_ptr<std::uint8_t>();
  return std::string(first, first + dense.numel());
}

std::string element(const char* field, std::size_t index) {
  return concat(field, "[", index, "]");
}

// FieldWriter makes tensors of fields, named BEFORE + field + AFTER.
class FieldWriter {
 public:
  FieldWriter(std::vector<NamedTensor>& out, std::string before, std::string after)
      : out_(out), before_(std::move(before)), after_(std::move(after)) {}

  void operator()(std::string_view field, const at::Tensor& value) {
    if (value.defined()) out_.push_back({concat(before_, field, after_), value});
  }
  void operator()(const char* field, std::int64_t value) {
    (*this)(field, at::scalar_tensor(value, at::kLong));
  }
  void operator()(const char* field, double value) {
    (*this)(field, at::scalar_tensor(value, at::kDouble));
  }
  void operator()(const char* field, bool value) {
    (*this)(field, at::scalar_tensor(value, at::kBool));
  }
  void operator()(const char* field, const std::tuple<double, double>& value) {
    (*this)(field, at::tensor({std::get<0>(value), std::get<1>(value)}, at::kDouble));
  }
  void operator()(const char* field, const std::optional<std::int64_t>& value) {
    if (value) (*this)(field, *value);
  }
  void operator()(const char* field, const std::optional<std::string>& value) {
    if (value) (*this)(field, bytes_tensor(*value));
  }
  void operator()(const char* field, const std::deque<at::Tensor>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) (*this)(element(field, i), values[i]);
  }

 private:
  std::vector<NamedTensor>& out_;
  std::string before_, after_;
};

// Given holds the tensors of a save by name, and records which were read.
class Given {
 public:
  Given(std::span<const NamedTensor> state, Handover handover) : handover_(handover) {
    for (const NamedTensor& named : state) {
      if (named.name.empty()) continue;
      const std::string_view name = tensors_.emplace(named.name, &named.tensor).first->first;
      if (!name.starts_with("group.") && !name.starts_with("options."))
        with_state_.insert(name.substr(std::min(name.find('.'), name.size() - 1) + 1));
    }
  }
  const at::Tensor* take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return nullptr;
    taken_.insert(found->first);
    return found->second;
  }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  bool are_copied() const { return handover_ == Handover::copied; }
  // Returns whether the save has a field of the parameter.
  bool has_field_of(const std::string& parameter) const { return with_state_.contains(parameter); }
  std::optional<std::string_view> first_untaken() const {
    for (const auto& [name, tensor] : tensors_) {
      if (!taken_.contains(name)) return name;
    }
    return std::nullopt;
  }

 private:
  Handover handover_;
  std::map<std::string_view, const at::Tensor*> tensors_;
  std::set<std::string_view> taken_;
  std::set<std::string_view> with_state_;  // parameters
};

// Form is the required type and shape of a state's tensors.
struct Form {
  at::Tensor like;                   // a parameter, for type, shape and device
  std::optional<std::int64_t> flat;  // elements of a group, for tensors of the whole group
  bool fits(const at::Tensor& tensor) const {
    if (flat && tensor.numel() == 1) return true;  // torch begins some as whole numbers
    if (tensor.scalar_type() != like.scalar_type()) return false;
    return flat ? tensor.numel() == *flat : tensor.sizes() == like.sizes();
  }
};

// FieldReader reads fields from FieldWriter's tensors. Keeps the first error.
class FieldReader {
 public:
  FieldReader(Given& given, std::string before, std::string after, Form form = {})
      : given_(given),
        before_(std::move(before)),
        after_(std::move(after)),
        form_(std::move(form)) {}

  const Status& status() const { return status_; }

  void operator()(std::string_view field, at::Tensor& value) {
    const at::Tensor* saved = given_.take(name_of(field));
    if (saved == nullptr) return;
    if (!form_.fits(*saved)) return complain(field, "the parameter's type and shape", saved);
    value = saved->detach().to(form_.like.device(), saved->scalar_type(), /*non_blocking=*/false,
                               given_.are_copied());
  }
  void operator()(const char* field, std::int64_t& value) { scalar(field, at::kLong, value); }
  void operator()(const char* field, double& value) { scalar(field, at::kDouble, value); }
  void operator()(const char* field, bool& value) { scalar(field, at::kBool, value); }
  void operator()(const char* field, std::tuple<double, double>& value) {
    const at::Tensor* saved = given_.take(name_of(field));
    if (saved == nullptr || saved->scalar_type() != at::kDouble || saved->numel() != 2)
      return complain(field, "two numbers of F64", saved);
    value = {saved->reshape({2})[0].item<double>(), saved->reshape({2})[1].item<double>()};
  }
  void operator()(const char* field, std::optional<std::int64_t>& value) {
    value.reset();
    if (given_.has(name_of(field))) scalar(field, at::kLong, value.emplace());
  }
  void operator()(const char* field, std::optional<std::string>& value) {
    value.reset();
    const at::Tensor* saved = given_.take(name_of(field));
    if (saved == nullptr) return;
    value = text_of(*saved);
    if (!value) complain(field, "a text as U8", saved);
  }
  void operator()(const char* field, std::deque<at::Tensor>& values) {
    values.clear();
    for (std::string next = element(field, 0); status_.ok() && given_.has(name_of(next));
         next = element(field, values.size()))
      (*this)(next, values.emplace_back());
  }

 private:
  std::string name_of(std::string_view field) const { return concat(before_, field, after_); }

  template <class Number>
  void scalar(const char* field, at::ScalarType type, Number& value) {
    const at::Tensor* saved = given_.take(name_of(field));
    if (saved == nullptr || saved->scalar_type() != type || saved->numel() != 1)
      return complain(field, concat("one number of type ", c10::toString(type)), saved);
    value = saved->item<Number>();
  }
  void complain(std::string_view field, const std::string& expected, const at::Tensor* saved) {
    if (!status_.ok()) return;
    const std::string found =
        saved == nullptr ? std::string("none") : c10::str(saved->scalar_type(), saved->sizes());
    status_ = invalid_argument("expected ", expected, " for ", name_of(field), ", found ", found);
  }

  Given& given_;
  std::string before_, after_;
  Form form_;
  Status status_;
};

std::string before_option(std::size_t group) {
  return concat("options.", group, ".");
}

std::string name_of_group(std::size_t group) {
  return concat("group.", group);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : "\n") + name;
  return text;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size() && !text.empty();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Returns the number in the save of each group of the optimizer.
Result<std::vector<std::size_t>> match_groups(Given& given, const GroupNames& names,
                                              bool is_ordered) {
  GroupNames saved;
  while (const at::Tensor* lines = given.take(name_of_group(saved.size())))
    saved.push_back(split_lines(text_of(*lines).value_or("")));
  const auto key = [&](std::vector<std::string> group) {
    if (!is_ordered) std::ranges::sort(group);
    return group;
  };
  if (saved.size() != names.size())
    return invalid_argument("expected ", saved.size(),
                            " groups of parameters, as in the save, found ", names.size());
  std::vector<std::size_t> matched;
  for (std::size_t g = 0; g < names.size(); ++g) {
    const auto same = std::ranges::find(saved, key(names[g]), key);
    if (same == saved.end())
      return invalid_argument("expected the groups of the save, found group ", g, " (",
                              names[g].empty() ? "empty" : names[g].front(), ", ...) with other ",
                              is_ordered ? "parameters or in another order" : "parameters");
    matched.push_back(static_cast<std::size_t>(same - saved.begin()));
  }
  return matched;
}

// Loaded is a complete state, put in place after all parts are valid.
template <class K>
struct Loaded {
  std::vector<std::unique_ptr<typename K::Options>> options;
  std::vector<std::pair<void*, std::unique_ptr<typename K::State>>> states;
};

constexpr auto kHasOneState = []<class K>(const K&) {
  return std::is_same_v<typename K::State, optim::LBFGSParamState>;
};

template <class K>
Form form_of(const optim::OptimizerParamGroup& group, const at::Tensor& parameter) {
  if (!kHasOneState(K{})) return {parameter, std::nullopt};
  std::int64_t elements = 0;
  for (const at::Tensor& each : group.params()) elements += each.numel();
  return {parameter, elements};
}

template <class K>
Status read_group(optim::OptimizerParamGroup& group, const std::vector<std::string>& names,
                  std::size_t saved_as, Given& given, Loaded<K>& loaded) {
  auto options = std::make_unique<typename K::Options>(
      static_cast<const typename K::Options&>(std::as_const(group).options()));
  FieldReader read(given, before_option(saved_as), "");
  fields(*options, read);
  if (!read.status().ok()) return read.status();
  loaded.options.push_back(std::move(options));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!given.has_field_of(names[i])) continue;
    auto state = std::make_unique<typename K::State>();
    FieldReader fill(given, "", "." + names[i], form_of<K>(group, group.params()[i]));
    fields(*state, fill);
    if (!fill.status().ok()) return fill.status();
    loaded.states.emplace_back(group.params()[i].unsafeGetTensorImpl(), std::move(state));
  }
  return ok_status();
}

// Adagrad makes its states in its constructor, and reads them in every step.
template <class K>
void put_in_place(optim::Optimizer& optimizer, Loaded<K> loaded) {
  for (std::size_t g = 0; g < loaded.options.size(); ++g)
    static_cast<typename K::Options&>(optimizer.param_groups()[g].options()) = *loaded.options[g];
  if (!std::is_same_v<typename K::State, optim::AdagradParamState>) optimizer.state().clear();
  for (auto& [key, state] : loaded.states) optimizer.state()[key] = std::move(state);
}

template <class K>
Status load(optim::Optimizer& optimizer, const GroupNames& names, Given& given, const K& kind) {
  const at::Tensor* saved = given.take("kind");
  const std::string found = saved == nullptr ? "another" : text_of(*saved).value_or("another");
  if (found != kind.name)
    return invalid_argument("expected the state of torch::optim::", kind.name,
                            ", found the state of ", found,
                            "; resume with the optimizer of the save");
  const auto matched = match_groups(given, names, kHasOneState(kind));
  if (!matched.ok()) return matched.status();
  Loaded<K> loaded;
  for (std::size_t g = 0; g < names.size(); ++g) {
    const Status read =
        read_group(optimizer.param_groups()[g], names[g], (*matched)[g], given, loaded);
    if (!read.ok()) return read;
  }
  if (const auto left = given.first_untaken())
    return invalid_argument("expected state of the optimizer's parameters only, found ", *left);
  put_in_place(optimizer, std::move(loaded));
  return ok_status();
}

}  // namespace

std::string place_name(std::size_t group, std::size_t index) {
  return concat("group.", group, ".", index);
}

GroupNames names_by_group(const optim::Optimizer& optimizer, std::span<const NamedTensor> named) {
  std::map<const void*, const std::string*> name_of;
  for (const NamedTensor& each : named)
    name_of.emplace(each.tensor.unsafeGetTensorImpl(), &each.name);
  GroupNames names;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const std::vector<at::Tensor>& parameters = optimizer.param_groups()[g].params();
    std::vector<std::string>& group = names.emplace_back();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = name_of.find(parameters[i].unsafeGetTensorImpl());
      group.push_back(found == name_of.end() ? place_name(g, i) : *found->second);
    }
  }
  return names;
}

bool has_named_state(const optim::Optimizer& optimizer) {
  return with_kind(optimizer, [](const auto&) {});
}

std::vector<NamedTensor> named_state(optim::Optimizer& optimizer, const GroupNames& names) {
  std::vector<NamedTensor> out;
  with_kind(optimizer, [&]<class K>(const K& kind) {
    out.push_back({"kind", bytes_tensor(kind.name)});
    for (std::size_t g = 0; g < names.size(); ++g) {
      optim::OptimizerParamGroup& group = optimizer.param_groups()[g];
      out.push_back({name_of_group(g), bytes_tensor(joined(names[g]))});
      fields(static_cast<typename K::Options&>(group.options()),
             FieldWriter(out, before_option(g), ""));
      for (std::size_t i = 0; i < names[g].size(); ++i) {
        const auto state = optimizer.state().find(group.params()[i].unsafeGetTensorImpl());
        if (state != optimizer.state().end())
          fields(static_cast<typename K::State&>(*state->second),
                 FieldWriter(out, "", "." + names[g][i]));
      }
    }
  });
  return out;
}

Status load_named_state(optim::Optimizer& optimizer, const GroupNames& names,
                        std::span<const NamedTensor> state, Handover handover) {
  Given given(state, handover);
  Status loaded;
  with_kind(optimizer, [&](const auto& kind) { loaded = load(optimizer, names, given, kind); });
  return loaded.with_context("optimizer state");
}

}  // namespace cox::detail
