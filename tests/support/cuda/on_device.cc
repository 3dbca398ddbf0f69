// Moves a program's tensors without a named device to `cuda:0`. The preloaded library runs tests
// and examples written for the CPU, unchanged, with models and data on the device
// (scripts/with-cuda-stand-in --on-device).
//
// LibTorch has no default device in C++. The dynamic linker finds this file's factory functions
// first (at::_ops::randn::call, ...). Tensors made by the SDK, in namespace cox, stay on the SDK's
// device: the program's symbol table identifies the callers.
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/tensor.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cox::standin {
namespace {

constexpr int kDeepest = 48;  // frames from a tensor's factory to the caller in the program

struct Function {
  std::uintptr_t begin = 0;
  std::string_view name;  // mangled
  bool of_test = false;   // from a file *_test.cc, whatever its namespace
};

// The program's own functions, by address.
class Program {
 public:
  static const Program& get() {
    static const auto* program = new Program;
    return *program;
  }

  // Returns null if the address is outside the program.
  const Function* function_at(std::uintptr_t address) const {
    if (address < first_ || address >= last_) return nullptr;
    auto next = std::upper_bound(
        functions_.begin(), functions_.end(), address - base_,
        [](std::uintptr_t at, const Function& function) { return at < function.begin; });
    return next == functions_.begin() ? nullptr : &*std::prev(next);
  }

 private:
  Program() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* self) {
          static_cast<Program*>(self)->find_range(*info);
          return 1;  // the program comes first
        },
        this);
    read_symbols();
  }

  void find_range(const dl_phdr_info& info) {
    base_ = info.dlpi_addr;
    first_ = UINTPTR_MAX;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& part = info.dlpi_phdr[i];
      if (part.p_type != PT_LOAD) continue;
      first_ = std::min(first_, base_ + part.p_vaddr);
      last_ = std::max(last_, base_ + part.p_vaddr + part.p_memsz);
    }
  }

  void read_symbols() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file < 0 || fstat(file, &about) != 0) return;
    const auto* image = static_cast<const char*>(
        mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0));
    close(file);
    if (image == MAP_FAILED) return;
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(image);
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i)
      if (sections[i].sh_type == SHT_SYMTAB) read_table(image, sections, sections[i]);
    std::sort(functions_.begin(), functions_.end(),
              [](const Function& a, const Function& b) { return a.begin < b.begin; });
  }

  void read_table(const char* image, const Elf64_Shdr* sections, const Elf64_Shdr& table) {
    const char* names = image + sections[table.sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image + table.sh_offset);
    bool of_test = false;  // a file's name precedes its local symbols
    for (std::size_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const std::string_view name = names + symbol.st_name;
      const bool is_local = ELF64_ST_BIND(symbol.st_info) == STB_LOCAL;
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FILE) of_test = name.ends_with("_test.cc");
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_value != 0)
        functions_.push_back({symbol.st_value, name, is_local && of_test});
    }
  }

  std::uintptr_t base_ = 0, first_ = 0, last_ = 0;
  std::vector<Function> functions_;
};

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

enum class Owner { unknown, sdk, program };

// The author of a function of the program: the SDK, the program itself, or (unknown) a header of
// LibTorch or C++.
Owner owner(const Function& function) {
  const std::string_view name = function.name;
  if (contains(name, "ZN12_GLOBAL__N_1") || contains(name, "ZNK12_GLOBAL__N_1") ||
      contains(name, "COX_TEST") || contains(name, "unity_") || contains(name, "N3cox4test"))
    return Owner::program;
  for (const auto* sdk : {"_ZN3cox", "_ZNK3cox", "_ZZN3cox", "_ZZNK3cox", "_ZL3cox"})
    if (name.rfind(sdk, 0) == 0) return function.of_test ? Owner::program : Owner::sdk;
  for (const auto* other : {"_ZN2at", "_ZNK2at", "_ZN5torch", "_ZNK5torch", "_ZN3c10", "_ZNK3c10",
                            "_ZNSt", "_ZNKSt", "_ZSt", "_ZN9__gnu_cxx", "_ZZNSt"})
    if (name.rfind(other, 0) == 0) return Owner::unknown;
  return Owner::program;
}

struct Walk {
  int depth = 0;
  bool through_converter = false;  // a list of numbers: torch::tensor({1, 2})
  bool inside_torch = false;       // an operator's own numbers, which it may read on the host
  Owner owner = Owner::unknown;
};

_Unwind_Reason_Code look(_Unwind_Context* frame, void* walk_) {
  auto& walk = *static_cast<Walk*>(walk_);
  const std::uintptr_t address = _Unwind_GetIP(frame) - 1;
  if (address == static_cast<std::uintptr_t>(-1) || ++walk.depth > kDeepest)
    return _URC_END_OF_STACK;
  const Function* function = Program::get().function_at(address);
  if (function == nullptr) {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(address), &info) == 0 || info.dli_sname == nullptr)
      return _URC_NO_REASON;
    const std::string_view symbol = info.dli_sname;
    const bool is_here = contains(info.dli_fname, "cox_on_device");
    walk.inside_torch |=
        !is_here && (symbol.rfind("_ZN2at6tensorE", 0) == 0 || symbol.rfind("_ZN2at4_ops", 0) == 0);
    return _URC_NO_REASON;
  }
  walk.through_converter |= contains(function->name, "TensorDataContainer");
  walk.owner = owner(*function);
  return walk.owner == Owner::unknown ? _URC_NO_REASON : _URC_END_OF_STACK;
}

Walk walk() {
  Walk found;
  _Unwind_Backtrace(look, &found);
  return found;
}

using MaybeDevice = std::optional<at::Device>;

const at::Device kThere(at::kCUDA, 0);

MaybeDevice moved(MaybeDevice device, std::optional<bool> pinned) {
  if (device || pinned.value_or(false)) return device;
  const Walk found = walk();
  const bool move =
      found.owner == Owner::program && !found.inside_torch && !found.through_converter;
  return move ? MaybeDevice(kThere) : device;
}

// Draws random numbers on the CPU and moves them, so that they match a seed of the CPU's generator.
at::Tensor moved_numbers(const at::Tensor& made, MaybeDevice device, std::optional<bool> pinned) {
  const MaybeDevice there = moved(device, pinned);
  return there && there->is_cuda() && made.is_cpu() ? made.to(*there) : made;
}

template <typename Operator, typename... Arguments>
at::Tensor dispatch(Arguments... arguments) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(Operator::name, Operator::overload_name)
                             .template typed<typename Operator::schema>();
  return op.call(arguments...);
}

// Draws in place, as above: the program, or one of its modules, fills a tensor on the device.
template <typename Operator>
at::Tensor& drawn(at::Tensor& self, double a, double b, std::optional<at::Generator> generator) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(Operator::name, Operator::overload_name)
                             .template typed<typename Operator::schema>();
  const bool on_cpu = self.is_cuda() && (!generator || generator->device().is_cpu());
  const Walk found = on_cpu ? walk() : Walk();
  if (found.owner != Owner::program || found.inside_torch) return op.call(self, a, b, generator);
  at::Tensor made = at::empty(self.sizes(), self.options().device(at::kCPU));
  self.copy_(op.call(made, a, b, generator));
  return self;
}

template <typename Number>
at::Tensor numbers(at::ArrayRef<Number> values, const at::TensorOptions& options) {
  const bool move = !options.has_device() && walk().owner == Owner::program;
  at::Tensor made = at::empty({static_cast<std::int64_t>(values.size())}, options.device(at::kCPU));
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBool, made.scalar_type(), "tensor", [&] {
    std::transform(values.begin(), values.end(), made.mutable_data_ptr<scalar_t>(),
                   [](Number value) { return static_cast<scalar_t>(value); });
  });
  return move ? made.to(kThere) : made;
}

}  // namespace
}  // namespace cox::standin

namespace at {

using cox::standin::dispatch;
using cox::standin::drawn;
using cox::standin::moved;
using cox::standin::moved_numbers;
using cox::standin::numbers;
using MaybeType = std::optional<ScalarType>;
using MaybeLayout = std::optional<Layout>;
using MaybeDevice = std::optional<Device>;
using MaybeGenerator = std::optional<Generator>;
using Flag = std::optional<bool>;
using MaybeFormat = std::optional<MemoryFormat>;  // inside _ops, std is an operator

Tensor tensor(ArrayRef<double> values, const TensorOptions& options) {
  return numbers(values, options);
}
Tensor tensor(ArrayRef<float> values, const TensorOptions& options) {
  return numbers(values, options);
}
Tensor tensor(ArrayRef<std::int64_t> values, const TensorOptions& options) {
  return numbers(values, options);
}
Tensor tensor(ArrayRef<int> values, const TensorOptions& options) {
  return numbers(values, options);
}

namespace _ops {

#define COX_SIZED(op)                                                           \
  Tensor op::call(c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout, \
                  MaybeDevice device, Flag pin) {                               \
    return dispatch<op>(size, type, layout, moved(device, pin), pin);           \
  }
COX_SIZED(ones)
COX_SIZED(zeros)
#undef COX_SIZED

#define COX_RANDOM(op, ...)                                                                      \
  return moved_numbers(dispatch<::at::_ops::op>(__VA_ARGS__, type, layout, device, pin), device, \
                       pin)
Tensor rand::call(c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout, MaybeDevice device,
                  Flag pin) {
  COX_RANDOM(rand, size);
}
Tensor rand_generator::call(c10::SymIntArrayRef size, MaybeGenerator generator, MaybeType type,
                            MaybeLayout layout, MaybeDevice device, Flag pin) {
  COX_RANDOM(rand_generator, size, generator);
}
Tensor randn::call(c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout, MaybeDevice device,
                   Flag pin) {
  COX_RANDOM(randn, size);
}
Tensor randn_generator::call(c10::SymIntArrayRef size, MaybeGenerator generator, MaybeType type,
                             MaybeLayout layout, MaybeDevice device, Flag pin) {
  COX_RANDOM(randn_generator, size, generator);
}
Tensor randint::call(c10::SymInt high, c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout,
                     MaybeDevice device, Flag pin) {
  COX_RANDOM(randint, high, size);
}
Tensor randint_generator::call(c10::SymInt high, c10::SymIntArrayRef size, MaybeGenerator generator,
                               MaybeType type, MaybeLayout layout, MaybeDevice device, Flag pin) {
  COX_RANDOM(randint_generator, high, size, generator);
}
Tensor randint_low::call(c10::SymInt low, c10::SymInt high, c10::SymIntArrayRef size,
                         MaybeType type, MaybeLayout layout, MaybeDevice device, Flag pin) {
  COX_RANDOM(randint_low, low, high, size);
}
Tensor randint_low_generator::call(c10::SymInt low, c10::SymInt high, c10::SymIntArrayRef size,
                                   MaybeGenerator generator, MaybeType type, MaybeLayout layout,
                                   MaybeDevice device, Flag pin) {
  COX_RANDOM(randint_low_generator, low, high, size, generator);
}
Tensor randperm::call(c10::SymInt n, MaybeType type, MaybeLayout layout, MaybeDevice device,
                      Flag pin) {
  COX_RANDOM(randperm, n);
}
#undef COX_RANDOM

// The initial weights of LibTorch's modules.
Tensor& uniform_::call(Tensor& self, double from, double to, MaybeGenerator generator) {
  return drawn<uniform_>(self, from, to, generator);
}
Tensor& normal_::call(Tensor& self, double mean, double deviation, MaybeGenerator generator) {
  return drawn<normal_>(self, mean, deviation, generator);
}

Tensor full::call(c10::SymIntArrayRef size, const Scalar& value, MaybeType type, MaybeLayout layout,
                  MaybeDevice device, Flag pin) {
  return dispatch<::at::_ops::full, c10::SymIntArrayRef, const Scalar&>(size, value, type, layout,
                                                                        moved(device, pin), pin);
}

Tensor empty_memory_format::call(c10::SymIntArrayRef size, MaybeType type, MaybeLayout layout,
                                 MaybeDevice device, Flag pin, MaybeFormat format) {
  return dispatch<::at::_ops::empty_memory_format>(size, type, layout, moved(device, pin), pin,
                                                   format);
}

Tensor arange::call(const Scalar& end, MaybeType type, MaybeLayout layout, MaybeDevice device,
                    Flag pin) {
  return dispatch<::at::_ops::arange, const Scalar&>(end, type, layout, moved(device, pin), pin);
}

Tensor arange_start::call(const Scalar& start, const Scalar& end, MaybeType type,
                          MaybeLayout layout, MaybeDevice device, Flag pin) {
  return dispatch<::at::_ops::arange_start, const Scalar&, const Scalar&>(start, end, type, layout,
                                                                          moved(device, pin), pin);
}

Tensor arange_start_step::call(const Scalar& start, const Scalar& end, const Scalar& step,
                               MaybeType type, MaybeLayout layout, MaybeDevice device, Flag pin) {
  return dispatch<::at::_ops::arange_start_step, const Scalar&, const Scalar&, const Scalar&>(
      start, end, step, type, layout, moved(device, pin), pin);
}

Tensor linspace::call(const Scalar& start, const Scalar& end, int64_t steps, MaybeType type,
                      MaybeLayout layout, MaybeDevice device, Flag pin) {
  return dispatch<::at::_ops::linspace, const Scalar&, const Scalar&>(
      start, end, steps, type, layout, moved(device, pin), pin);
}

Tensor eye::call(c10::SymInt n, MaybeType type, MaybeLayout layout, MaybeDevice device, Flag pin) {
  return dispatch<::at::_ops::eye>(n, type, layout, moved(device, pin), pin);
}

// The last step of torch::tensor({1, 2}), which writes the numbers on the host.
Tensor to_dtype_layout::call(const Tensor& self, MaybeType type, MaybeLayout layout,
                             MaybeDevice device, Flag pin, bool non_blocking, bool copy,
                             MaybeFormat format) {
  if (self.is_cpu() && (!device || device->is_cpu())) {
    const auto found = cox::standin::walk();
    if (found.through_converter && found.owner == cox::standin::Owner::program)
      device = cox::standin::kThere;
  }
  return dispatch<::at::_ops::to_dtype_layout, const Tensor&>(self, type, layout, device, pin,
                                                              non_blocking, copy, format);
}

}  // namespace _ops
}  // namespace at
