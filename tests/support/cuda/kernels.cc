#include "tests/support/cuda/kernels.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cuda/generator.h"
#include "tests/support/cuda/stand_in.h"

namespace cox::standin {
namespace {

constexpr c10::DispatchKey kCudaKey = c10::DispatchKey::CUDA;
constexpr c10::DispatchKey kCpu = c10::DispatchKey::CPU;
constexpr c10::DispatchKey kSparseCuda = c10::DispatchKey::SparseCUDA;
constexpr c10::DispatchKey kSparseCpu = c10::DispatchKey::SparseCPU;

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

// Returns the bytes from the first to the last element, whatever the strides.
std::size_t extent_bytes(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<std::size_t>(last + 1) * tensor.element_size();
}

at::Tensor over(const at::Tensor& tensor, void* bytes) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(bytes, tensor.sizes(), tensor.strides(), options);
}

at::Tensor sparse_like(const at::Tensor& like, const at::Tensor& indices,
                       const at::Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes(),
                                       values.options().layout(at::kSparse), like.is_coalesced());
}

// Copies an operator's result into a sparse tensor in place.
void put_back(const at::Tensor& sparse, const at::Tensor& made) {
  auto* impl = static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
  impl->raw_resize_(made.sparse_dim(), made.dense_dim(), made.sizes());
  impl->set_indices_and_values_unsafe(made._indices(), made._values());
  impl->set_coalesced(made.is_coalesced());
}

// The arguments and results of one boxed call.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void run();

 private:
  const c10::Argument& argument(std::size_t i) const { return op_.schema().arguments()[i]; }
  c10::IValue& value(std::size_t i) { return stack_[base_ + i]; }
  c10::Device find_device();
  void check_devices();
  void take_arguments(Launch& launch);
  at::Tensor take(Launch& launch, const at::Tensor& tensor, bool writes);
  bool take_generator();
  void call();
  void give_results(Launch& launch);
  at::Tensor give(Launch& launch, const at::Tensor& made);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::size_t base_;
  std::vector<at::Tensor> tensors_;  // tensors in the arguments, including lists
  std::vector<at::Tensor> originals_, aliases_;
  c10::Device device_;
};

void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) tensors.push_back(*tensor);
}

Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : op_(op),
      stack_(stack),
      base_(stack.size() - op.schema().arguments().size()),
      device_(find_device()) {}

c10::Device Call::find_device() {
  std::optional<c10::Device> named;
  for (std::size_t i = 0; i < op_.schema().arguments().size(); ++i) {
    collect(value(i), tensors_);
    if (value(i).isDevice() && value(i).toDevice().is_cuda()) named = value(i).toDevice();
  }
  for (const at::Tensor& tensor : tensors_)
    if (on_device(tensor)) return tensor.device();
  const c10::DeviceIndex current = c10::cuda::current_device();
  return {c10::DeviceType::CUDA, named && named->has_index() ? named->index() : current};
}

// Checks as the real library does: tensors share a device, except scalars and indices that it
// copies.
void Call::check_devices() {
  static const std::set<std::string> copy_indices = {"aten::index", "aten::index_put_",
                                                     "aten::_index_put_impl_"};
  for (const at::Tensor& tensor : tensors_) {
    if (!tensor.defined() || tensor.device() == device_) continue;
    if (tensor.is_cpu() && tensor.dim() == 0) continue;
    if (tensor.is_cpu() && copy_indices.count(op_.schema().name()) > 0) {
      cox_standin_wait(c10::cuda::getCurrentCUDAStream(), 0);
      continue;
    }
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device_, " and ", tensor.device(), "! (", op_.schema().name(), ")");
  }
}

at::Tensor Call::take(Launch& launch, const at::Tensor& tensor, bool writes) {
  if (!on_device(tensor)) return tensor;
  originals_.push_back(tensor);
  aliases_.push_back(writes ? launch.writes(tensor) : launch.reads(tensor));
  return aliases_.back();
}

void Call::take_arguments(Launch& launch) {
  for (std::size_t i = 0; i < op_.schema().arguments().size(); ++i) {
    c10::IValue& given = value(i);
    const c10::AliasInfo* aliases = argument(i).alias_info();
    const bool writes = aliases != nullptr && aliases->isWrite();
    if (given.isTensor()) {
      given = take(launch, given.toTensor(), writes);
    } else if (given.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : given.toTensorVector())
        list.push_back(take(launch, tensor, writes));
      given = list;
    } else if (given.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : given.toOptionalTensorVector())
        list.push_back(tensor ? std::optional(take(launch, *tensor, writes)) : tensor);
      given = list;
    } else if (given.isDevice()) {
      given = c10::Device(at::kCPU);
    }
  }
}

// Passes the numbers of the device's generator to an operator with a generator argument.
bool Call::take_generator() {
  for (std::size_t i = 0; i < op_.schema().arguments().size(); ++i) {
    if (argument(i).name() != "generator") continue;
    const at::Generator given =
        value(i).isGenerator() ? value(i).toGenerator() : default_generator(device_.index());
    auto* generator = dynamic_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl());
    TORCH_CHECK(generator != nullptr, "Expected a 'cuda' device type for generator but found '",
                given.device().type(), "'");
    const std::lock_guard lock(generator->mutex_);
    value(i) = generator->numbers();
    return true;
  }
  return false;
}

void Call::call() {
  const bool is_sparse = std::ranges::any_of(
      tensors_, [](const at::Tensor& each) { return each.defined() && each.is_sparse(); });
  const c10::DispatchKeySet cpu(is_sparse ? kSparseCpu : kCpu);
  if (!op_.hasTag(at::Tag::nondeterministic_seeded) || take_generator())
    return op_.redispatchBoxed(cpu, &stack_);
  // Other operators draw from the default generator, which takes the state of the device's.
  auto* ours = default_generator(device_.index()).get<DeviceGenerator>();
  auto* numbers = ours->numbers().get<at::CPUGeneratorImpl>();
  auto* standard = at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
  const std::lock_guard lock(ours->mutex_);
  const at::mt19937 kept = standard->engine();
  standard->set_engine(numbers->engine());
  op_.redispatchBoxed(cpu, &stack_);
  numbers->set_engine(standard->engine());
  standard->set_engine(kept);
}

at::Tensor Call::give(Launch& launch, const at::Tensor& made) {
  if (!made.defined()) return made;
  for (std::size_t i = 0; i < aliases_.size(); ++i) {
    if (!made.is_same(aliases_[i])) continue;
    if (made.is_sparse()) {
      put_back(originals_[i], launch.result(made));
    } else if (made.sizes() != originals_[i].sizes()) {  // out= was resized
      originals_[i].resize_(made.sizes());
      launch.writes(originals_[i]).copy_(made);
    }
    return originals_[i];
  }
  return launch.result(made);
}

void Call::give_results(Launch& launch) {
  const std::size_t count = op_.schema().returns().size();
  for (std::size_t i = stack_.size() - count; i < stack_.size(); ++i) {
    if (stack_[i].isTensor()) {
      stack_[i] = give(launch, stack_[i].toTensor());
    } else if (stack_[i].isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& tensor : stack_[i].toTensorVector())
        list.push_back(give(launch, tensor));
      stack_[i] = list;
    }
  }
}

void Call::run() {
  for (const c10::Argument& returned : op_.schema().returns())
    TORCH_CHECK(!returned.alias_info() || returned.alias_info()->isWrite(),
                "stand-in for CUDA: no kernel for the view ", op_.schema().name());
  const c10::cuda::CUDAGuard guard(device_);
  check_devices();
  Launch launch(device_, op_.schema().name().c_str());
  take_arguments(launch);
  call();
  give_results(launch);
  if (op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape))
    launch.wait();
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

std::set<std::string> refused_operators() {
  std::ifstream file(COX_STANDIN_OPERATORS);
  TORCH_CHECK(file.is_open(), "expected ", COX_STANDIN_OPERATORS);
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') names.insert(line);
  return names;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

bool is_of_cpu(const c10::OperatorHandle& op, c10::DispatchKey cpu, c10::DispatchKey cuda) {
  return op.hasKernelForDispatchKey(cpu) && !op.hasKernelForDispatchKey(cuda);
}

// Registers each operator's kernel by name. A fallback for the key would not be reached if an
// operator has a composite kernel, which computes in another way than the CPU (native_layer_norm).
bool register_kernels() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", kCudaKey, __FILE__, __LINE__);
  static auto* sparse_library =
      new torch::Library(torch::Library::IMPL, "aten", kSparseCuda, __FILE__, __LINE__);
  const std::set<std::string> refused = refused_operators();
  static const std::set<std::string> composed = {"aten::convolution", "aten::convolution_backward"};
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string full = full_name(name);
    const auto op = dispatcher.findSchema(name);
    if (full.rfind("aten::", 0) != 0 || !op) continue;
    const auto on_cpu = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>(); };
    if (is_of_cpu(*op, kSparseCpu, kSparseCuda)) sparse_library->impl(full.c_str(), on_cpu());
    if (composed.count(full) > 0 || (is_of_cpu(*op, kCpu, kCudaKey) && refused.count(full) == 0))
      library->impl(full.c_str(), on_cpu());
  }
  return true;
}

const bool kernels_registered =
    register_kernels();  // after the other files' kernels: this file is linked last

}  // namespace

Launch::Launch(c10::Device device, const char* what)
    : device_(device), what_(what), stream_(c10::cuda::getCurrentCUDAStream(device.index())) {
  cox_standin_launch(stream_);
}

at::Tensor Launch::take(const at::Tensor& tensor, bool writes) {
  if (!on_device(tensor)) return tensor;
  if (tensor.is_sparse())
    return sparse_like(tensor, take(tensor._indices(), writes), take(tensor._values(), writes));
  void* bytes = tensor.mutable_data_ptr();
  cox_standin_note(bytes, extent_bytes(tensor), writes, stream_, what_);
  return over(tensor, cox_standin_shadow(bytes));
}

at::Tensor Launch::reads(const at::Tensor& tensor) {
  return take(tensor, false);
}
at::Tensor Launch::writes(const at::Tensor& tensor) {
  return take(tensor, true);
}

at::Tensor Launch::result(const at::Tensor& made) {
  if (!made.defined()) return made;
  if (made.is_sparse()) return sparse_like(made, result(made._indices()), result(made._values()));
  const auto options = made.options().device(device_);
  const at::Tensor given = made.is_non_overlapping_and_dense()
                               ? at::empty_strided(made.sizes(), made.strides(), options)
                               : at::empty(made.sizes(), options);
  writes(given).copy_(made);
  return given;
}

void Launch::wait() {
  cox_standin_wait(stream_, 1);
}

}  // namespace cox::standin
