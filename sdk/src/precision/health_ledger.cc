#include "sdk/src/precision/health_ledger.h"

#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

bool has_gradient(const at::Tensor& tensor) {
  return tensor.requires_grad() && !tensor.is_leaf();
}

// A tensor without a gradient may be a mask with -infinity on purpose; -infinity is not counted.
PendingScan look_at_constant(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) {
    return start_scan(tensor.masked_fill(at::isneginf(tensor), 0), ScanKind::extent);
  }
  PendingScan pending{scan(tensor, ScanKind::extent), {}};
  if (pending.scan.nonfinite > 0) pending.scan.nonfinite = count_unmasked(tensor);
  return pending;
}

// HookKey identifies a gradient's hook. The hook on its node identifies a tensor with a gradient.
struct HookKey {
  std::shared_ptr<HealthLedger> ledger;
  std::uint64_t step = 0;
  std::size_t output = 0;    // number at the tensor's node
  std::int64_t version = 0;  // the data's version
  friend bool operator==(const HookKey&, const HookKey&) = default;
};

// GradientHook replaces Tensor::register_hook, with one allocation instead of six.
class GradientHook final : public torch::autograd::FunctionPreHook {
 public:
  GradientHook(HookKey key, Boundary& boundary) : key_(std::move(key)), boundary_(boundary) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (key_.output < grads.size()) {
      key_.ledger->gradient(boundary_, key_.step, grads[key_.output]);
    }
    return grads;
  }

  const HookKey& key() const { return key_; }
  Boundary& boundary() const { return boundary_; }

 private:
  const HookKey key_;
  Boundary& boundary_;  // valid in the hook's step only
};

// Returns null if the tensor's node has no hook with the key.
Boundary* hooked_boundary(torch::autograd::Node& node, const HookKey& key) {
  for (const auto& hook : node.tensor_pre_hooks()) {
    const auto* own = dynamic_cast<const GradientHook*>(hook.get());
    if (own != nullptr && own->key() == key) return &own->boundary();
  }
  return nullptr;
}

}  // namespace

void HealthLedger::begin_anew(bool is_open) {
  const std::lock_guard lock(mutex_);
  ++step_;
  now_ = 0;
  calls_.clear();
  constants_.clear();
  boundaries_.clear();
  is_open_ = is_open;
}

std::size_t HealthLedger::begin_call(BlockId block) {
  const std::lock_guard lock(mutex_);
  BlockCallRecord& call = calls_.emplace_back();
  call.block = block;
  call.begin_at = ++now_;
  return calls_.size() - 1;
}

Boundary* HealthLedger::with_gradient(const at::Tensor& tensor) {
  torch::autograd::Node& node = *tensor.grad_fn();
  HookKey key{shared_from_this(), step_, static_cast<std::size_t>(tensor.output_nr()),
              version_of(tensor)};
  if (Boundary* known = hooked_boundary(node, key)) return known;
  Boundary& boundary = boundaries_.add();
  boundary.forward = start_scan(tensor, ScanKind::extent);
  node.add_tensor_pre_hook(std::make_unique<GradientHook>(std::move(key), boundary));
  return &boundary;
}

Boundary* HealthLedger::constant(const at::Tensor& tensor) {
  const std::int64_t version = version_of(tensor);
  const auto found = constants_.find(tensor.unsafeGetTensorImpl());
  if (found != constants_.end() && found->second.version == version) return found->second.boundary;
  const torch::NoGradGuard no_grad;
  Boundary& boundary = boundaries_.add();
  boundary.forward = look_at_constant(tensor);
  constants_.insert_or_assign(
      tensor.unsafeGetTensorImpl(),
      Known{c10::weak_intrusive_ptr<at::TensorImpl>(tensor.getIntrusivePtr()), version, &boundary});
  return &boundary;
}

Boundary* HealthLedger::boundary_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !c10::isFloatingType(tensor.scalar_type())) return nullptr;
  if (has_gradient(tensor)) return with_gradient(tensor);
  return tensor.requires_grad() ? nullptr : constant(tensor);
}

std::size_t HealthLedger::input(std::size_t call, const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  if (call >= calls_.size()) return 0;  // the step ended inside the call
  return add(calls_[call], &BlockCallRecord::inputs, boundary_of(tensor));
}

void HealthLedger::take_back(std::size_t call, std::size_t count) {
  const std::lock_guard lock(mutex_);
  if (call >= calls_.size()) return;
  BoundaryList& inputs = calls_[call].inputs;
  inputs.resize(inputs.size() - std::min<std::size_t>(count, inputs.size()));
}

void HealthLedger::output(std::size_t call, const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  if (call < calls_.size()) add(calls_[call], &BlockCallRecord::outputs, boundary_of(tensor));
}

std::size_t HealthLedger::add(BlockCallRecord& call, BoundaryList BlockCallRecord::*side,
                              Boundary* boundary) {
  if (boundary == nullptr) return 0;
  if (call.is_fp16) boundary->is_small_asked = true;
  BoundaryList& known = call.*side;
  if (std::ranges::find(known, boundary) != known.end()) return 0;
  known.push_back(boundary);
  return 1;
}

void HealthLedger::computes_in_fp16(std::size_t call) {
  const std::lock_guard lock(mutex_);
  if (call >= calls_.size() || calls_[call].is_fp16) return;
  calls_[call].is_fp16 = true;
  for (const auto* side : {&calls_[call].inputs, &calls_[call].outputs}) {
    for (Boundary* boundary : *side) boundary->is_small_asked = true;
  }
}

void HealthLedger::end_call(std::size_t call) {
  const std::lock_guard lock(mutex_);
  if (call < calls_.size()) calls_[call].end_at = ++now_;
}

void HealthLedger::gradient(Boundary& boundary, std::uint64_t step,
                            const at::Tensor& gradient) try {
  if (!is_open() || !gradient.defined()) return;
  const std::lock_guard lock(mutex_);
  if (step != step_) return;
  const ScanKind kind = boundary.is_small_asked ? ScanKind::small : ScanKind::extent;
  boundary.gradients.push_back(start_scan(gradient, kind));
  if (boundary.gradient_at == 0) boundary.gradient_at = ++now_;
} catch (...) {
  // A failure, such as lack of memory, costs the scan, never the backward pass.
}

const std::vector<PendingScan*>& HealthLedger::scans() {
  std::vector<PendingScan*>& pending = pending_;
  pending.clear();
  for (const BlockCallRecord& call : calls_) {
    for (const auto* side : {&call.inputs, &call.outputs}) {
      for (Boundary* boundary : *side) {
        pending.push_back(&boundary->forward);
        for (PendingScan& gradient : boundary->gradients) pending.push_back(&gradient);
      }
    }
  }
  return pending;
}

const std::vector<BlockCallRecord>& HealthLedger::read() {
  const std::lock_guard lock(mutex_);
  read_scans(scans());
  return calls_;
}

bool HealthLedger::is_on_device() {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(scans(), [](const PendingScan* scan) {
    return scan->on_device.defined() && !scan->on_device.is_cpu();
  });
}

HealthLedger::Page HealthLedger::take() {
  Page page;
  {
    const std::lock_guard lock(mutex_);
    page.figures = PendingRead(scans());
    page.calls = std::exchange(calls_, {});
    std::swap(page.boundaries, boundaries_);
  }
  close();
  return page;
}

}  // namespace cox::detail
