#include "sdk/examples/gpt2/reference.h"

#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "coordinator/io/json.h"
#include "sdk/examples/gpt2/model_file.h"
#include "sdk/examples/gpt2/reference_check.h"

namespace gpt2 {
namespace {

// Limits of this implementation; the recorded variants differ by 2e-6 among themselves.
constexpr double kLogitsLimit = 1e-5;  // absolute
constexpr double kLossLimit = 1e-5;
constexpr double kGradientLimit = 1e-4;
constexpr double kInitialLimit = 1e-6;
constexpr double kFinalLimit = 1e-4;

struct Training {
  std::vector<double> losses;
  std::vector<double> local_losses;
  double final_loss = 0;
  Norms first_gradient;
  std::vector<double> total_gradient;
  Norms final_parameters;
};

double l2(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble).norm().item<double>();
}

Norms parameter_norms(const Gpt2& model) {
  Norms norms;
  for (const auto& [name, tensor] : named_parameters(*model)) norms[name] = l2(tensor);
  return norms;
}

Norms gradient_norms(const Gpt2& model) {
  Norms norms;
  for (const auto& [name, tensor] : named_parameters(*model)) {
    norms[name] = tensor.grad().defined() ? l2(tensor.grad()) : 0.0;
  }
  return norms;
}

double total(const Norms& norms) {
  double squares = 0;
  for (const auto& [name, norm] : norms) squares += norm * norm;
  return std::sqrt(squares);
}

Training train(const Gpt2& model, ReferenceTrainer& trainer, std::size_t steps) {
  Training out;
  for (std::size_t step = 0; step < steps; ++step) {
    const StepLoss loss = trainer.backward();
    const Norms gradient = gradient_norms(model);
    if (step == 0) out.first_gradient = gradient;
    out.losses.push_back(loss.mean);
    out.local_losses.push_back(loss.local);
    out.total_gradient.push_back(total(gradient));
    trainer.update();
  }
  out.final_loss = trainer.evaluate().mean;
  out.final_parameters = parameter_norms(model);
  return out;
}

// Collects checks under a common prefix of their names.
class Checks {
 public:
  void add(std::string name, Worst worst, double limit) {
    checks_.push_back({.name = std::move(name),
                       .worst = worst.deviation,
                       .limit = limit,
                       .where = std::move(worst.where)});
  }
  std::vector<Check> take() { return std::move(checks_); }

 private:
  std::vector<Check> checks_;
};

Worst compare_shapes(const Reference& reference, const Gpt2& model) {
  Norms expected;  // 0 = the right shape, 1 = another
  Norms found;
  for (const auto& [name, shape] : reference.shapes) expected[name] = 0;
  for (const auto& [name, tensor] : named_parameters(*model)) {
    const auto shape = reference.shapes.find(name);
    found[name] = shape != reference.shapes.end() && tensor.sizes() != shape->second ? 1 : 0;
  }
  return worst_of(expected, found);
}

Worst compare_logits(const at::Tensor& expected, const at::Tensor& found) {
  if (expected.sizes() != found.sizes()) return {HUGE_VAL, "the shape"};
  const at::Tensor difference =
      (found.to(at::kCPU, at::kDouble) - expected.to(at::kDouble)).abs().flatten();
  const std::int64_t at = difference.argmax().item<std::int64_t>();
  const double worst = difference[at].item<double>();
  return {std::isfinite(worst) ? worst : HUGE_VAL, "element " + std::to_string(at)};
}

void check_forward(const Reference& reference, Gpt2& model, Checks& checks) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(reference.inputs());
  const at::Tensor targets = reference.targets();
  std::vector<double> losses;
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    losses.push_back(mean_loss(logits[row], targets[row]).item<double>());
  }
  checks.add("parameter_shapes", compare_shapes(reference, model), 0);
  checks.add("initial_parameter_l2", worst_of(reference.initial_parameters, parameter_norms(model)),
             kInitialLimit);
  checks.add("fp32.logits_sample0.absolute", compare_logits(reference.logits_sample0, logits[0]),
             kLogitsLimit);
  checks.add("per_sample_loss", worst_of(reference.per_sample_loss, losses, "row"), kLossLimit);
}

void check_training(const std::string& name, const ExpectedRun& expected, const Training& found,
                    Checks& checks) {
  checks.add(name + ".loss", worst_of({expected.losses.front()}, {found.losses.front()}, "step"),
             kLossLimit);
  checks.add(name + ".losses", worst_of(expected.losses, found.losses, "step"), kLossLimit);
  checks.add(name + ".loss_after_last_step",
             worst_of({expected.final_loss}, {found.final_loss}, "value"), kLossLimit);
  checks.add(name + ".total_grad_norm",
             worst_of(expected.total_gradient, found.total_gradient, "step"), kGradientLimit);
  if (!expected.first_gradient.empty()) {
    checks.add(name + ".grad_norm", worst_of(expected.first_gradient, found.first_gradient),
               kGradientLimit);
  }
  if (!expected.final_parameters.empty()) {
    checks.add(name + ".parameter_l2_after_last_step",
               worst_of(expected.final_parameters, found.final_parameters), kFinalLimit);
  }
}

struct Variant {
  std::string name;
  Attention attention;
  const ExpectedRun* expected;
};

std::vector<Variant> variants_of(const Reference& reference, int world) {
  if (world == 2 && !reference.two_ranks.losses.empty()) {
    return {{"ddp_two_ranks", Attention::plain, &reference.two_ranks}};
  }
  std::vector<Variant> out = {{"fp32", Attention::plain, &reference.plain}};
  if (!reference.fused.losses.empty()) {
    out.push_back({"fp32_fused_attention", Attention::fused, &reference.fused});
  }
  return out;
}

cox::Result<Gpt2> load_model(const Reference& reference, Attention attention) {
  Config config = reference.config;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;  // the recorded runs have none
  Gpt2 model(config, attention);
  if (cox::Status status = load_weights(reference.weights, model); !status.ok()) return status;
  model->to(reference.tokens.device());
  return model;
}

cox::Status check_variant(const Reference& reference, RankRows rows, const Variant& variant,
                          const TrainerFactory& make_trainer, Checks& checks) {
  cox::Result<Gpt2> model = load_model(reference, variant.attention);
  if (!model.ok()) return model.status();
  if (variant.attention == Attention::plain) check_forward(reference, *model, checks);
  const std::unique_ptr<ReferenceTrainer> trainer =
      make_trainer({.model = *model,
                    .inputs = rows.of(reference.inputs()),
                    .targets = rows.of(reference.targets())});
  const Training found = train(*model, *trainer, variant.expected->losses.size());
  check_training(variant.name, *variant.expected, found, checks);
  const auto& local = variant.expected->rank_losses;
  if (rows.shares.empty() && static_cast<std::size_t>(rows.rank) < local.size()) {
    checks.add(variant.name + ".rank_losses",
               worst_of(local[static_cast<std::size_t>(rows.rank)], found.local_losses, "step"),
               kLossLimit);
  }
  return cox::ok_status();
}

}  // namespace

cox::Result<std::vector<Check>> check_reference(const Reference& reference, RankRows rows,
                                                const TrainerFactory& make_trainer) {
  const std::int64_t batch = reference.tokens.size(0);
  const bool is_even = rows.world > 0 && rows.shares.empty() && batch % rows.world == 0;
  const bool is_shared =
      rows.world > 0 && rows.shares.size() == static_cast<std::size_t>(rows.world);
  if (rows.rank < 0 || rows.rank >= rows.world || !(is_even || is_shared)) {
    return cox::invalid_argument("reference: expected a world size that divides the batch of " +
                                 std::to_string(batch) + " rows, found rank " +
                                 std::to_string(rows.rank) + " of " + std::to_string(rows.world));
  }
  Checks checks;
  for (const Variant& variant : variants_of(reference, rows.world)) {
    cox::Status status = check_variant(reference, rows, variant, make_trainer, checks);
    if (!status.ok()) return status;
  }
  return checks.take();
}

std::string to_json(const Check& check) {
  const auto number = [](double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.3g", value);
    return std::isfinite(value) ? std::string(text) : std::string("null");
  };
  cox::io::JsonWriter json;
  json.begin_object().field("check", check.name).key("worst").raw(number(check.worst));
  json.key("limit").raw(number(check.limit)).field("ok", check.ok()).field("where", check.where);
  return json.end_object().take();
}

bool print_checks(std::ostream& out, const std::vector<Check>& checks) {
  bool all = true;
  for (const Check& check : checks) {
    out << to_json(check) << '\n';
    all = all && check.ok();
  }
  out.flush();
  return all && !checks.empty();
}

}  // namespace gpt2
