#include "sdk/src/stream/operator_meter.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

TensorShape shape_of(const at::Tensor& tensor) {
  TensorShape shape;
  if (!tensor.is_nested()) shape.sizes = tensor.sizes().vec();
  shape.needs_gradient = tensor.requires_grad() && at::GradMode::is_enabled();
  return shape;
}

ConvolutionKind convolution_kind(bool is_transposed) {
  return is_transposed ? ConvolutionKind::transposed : ConvolutionKind::plain;
}

// Serves at::convolution and our own FP8 product. The FP8 product has a convolution's arguments in
// a list that ends with `transposed` and `groups`.
ConvolutionKind convolution_of(const OperatorCall& call) {
  const auto& schema = call.handle.schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const c10::IValue& value = call.arguments[i];
    if (schema[i].name() == "transposed" && value.isBool()) return convolution_kind(value.toBool());
    if (schema[i].name() != "convolution" || !value.isIntList()) continue;
    const auto list = value.toIntList();
    return list.size() < 2 ? ConvolutionKind::none
                           : convolution_kind(list.get(list.size() - 2) != 0);
  }
  return ConvolutionKind::none;
}

bool is_tensor(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->isSubtypeOf(*c10::OptionalType::ofTensor());
}

// Counts storages that no argument has, each once.
std::uint64_t own_bytes(std::span<const c10::IValue> results, std::vector<const void*>& known) {
  std::uint64_t bytes = 0;
  for (const c10::IValue& result : results) {
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      const void* storage = storage_of(tensor);
      if (std::ranges::find(known, storage) != known.end()) return;
      known.push_back(storage);
      bytes += storage_bytes(tensor);
    });
  }
  return bytes;
}

}  // namespace

OperatorShapes shapes_of(const OperatorCall& call) {
  OperatorShapes shapes;
  shapes.name = call.handle.operator_name().name;
  const auto& schema = call.handle.schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const std::size_t before = shapes.operands.size();
    for_each_tensor_in(call.arguments[i], [&shapes](const at::Tensor& tensor) {
      shapes.operands.push_back(shape_of(tensor));
    });
    if (shapes.operands.size() == before && is_tensor(schema[i])) shapes.operands.emplace_back();
  }
  shapes.convolution = convolution_of(call);
  return shapes;
}

void OperatorMeter::begin(const OperatorCall& call, BlockId block) {
  running_.emplace(Running{{&call.handle.operator_name(), block}, shapes_of(call)});
  for (const c10::IValue& argument : call.arguments) {
    for_each_tensor_in(argument, [this](const at::Tensor& tensor) {
      running_->storages.push_back(storage_of(tensor));
    });
  }
  running_->since_ns = now_();
}

void OperatorMeter::end(std::span<const c10::IValue> results) {
  const std::int64_t spent_ns = now_() - running_->since_ns;
  Running run = std::move(*running_);
  running_.reset();
  for (const c10::IValue& result : results) {
    for_each_tensor_in(result, [&run](const at::Tensor& tensor) {
      run.shapes.results.push_back(shape_of(tensor));
    });
  }
  OperatorRow& sum = sums_[run.key];
  sum.calls += 1;
  sum.forward_ns += static_cast<std::uint64_t>(std::max<std::int64_t>(0, spent_ns));
  sum.result_bytes += own_bytes(results, run.storages);
  const auto flops = flops_of(run.shapes);
  if (!flops) return;
  if (!sum.flops) sum.flops.emplace();
  sum.flops->forward += flops->forward;
  sum.flops->backward += flops->backward;
}

bool OperatorMeter::add_to(OperatorTable& table, std::span<double> flops) {
  bool is_any = false;
  for (auto& [key, sum] : sums_) {
    if (sum.calls == 0) continue;
    is_any = true;
    const std::size_t block = key.block.value();
    add_row(table, key.name->name, table.blocks[block].name, sum);
    if (sum.flops) flops[block] += sum.flops->sum();
    sum = {};
  }
  return is_any;
}

}  // namespace cox::detail
