// An accelerator without hardware: a device of torch's key PrivateUse1, whose memory is the host's.
//
// It behaves as a GPU where a program can tell: tensors of the host and of the device do not mix,
// memory is limited, streams, events and a generator are its own, autograd runs in a thread per
// device, and a process that was forked from one that has used the device cannot use it.  Operators
// run on the CPU, by torch's fallback.  It counts what makes a host wait for a GPU: copies to the
// host, and operators whose result has a size that depends on data.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "counters.h"

namespace standin {

Counters& counters() {
  static Counters instance;
  return instance;
}

std::atomic<Report> report{nullptr};
std::atomic<bool> bad_fork{false};

void count_synchronization(const char* what) {
  ++counters().synchronizations;
  if (auto call = report.load()) call(what);
}

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 8;
using c10::DeviceIndex;

// STANDIN_VISIBLE_DEVICES lists indices, as CUDA_VISIBLE_DEVICES does; four devices by default.
// It is read once, as CUDA does when it is initialized: a fork server must not ask.
DeviceIndex device_count() {
  static const DeviceIndex count = [] {
    const char* shown = std::getenv("STANDIN_VISIBLE_DEVICES");
    if (shown == nullptr) return 4;
    const std::string text(shown);
    return text.empty() ? 0 : 1 + static_cast<int>(std::count(text.begin(), text.end(), ','));
  }();
  return count;
}

thread_local DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};
std::atomic<c10::StreamId> last_stream{0};
std::atomic<bool> in_use{false};

std::atomic<bool> has_asserted{false};

void use_device() {
  TORCH_CHECK(
      !has_asserted, "standin error: device-side assert triggered; compute with standin devices in "
      "another process");
  TORCH_CHECK(
      !bad_fork, "Cannot re-initialize the standin device in forked subprocess. To use it with "
      "multiprocessing, you must use the 'spawn' start method");
  in_use = true;
}

// While an operator runs on the CPU, its copies are not those of a GPU.
thread_local bool in_fallback = false;

struct InFallback {
  bool before = in_fallback;
  InFallback() { in_fallback = true; }
  ~InFallback() { in_fallback = before; }
};

// -- memory ---------------------------------------------------------------------------------------

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    use_device();
    const auto device = current_device;
    void* data = nullptr;
    if (nbytes) {
      std::lock_guard<std::mutex> lock(mutex);
      auto& allocated = stats[device].allocated_bytes[0];
      const char* limit = std::getenv("STANDIN_MEMORY");
      TORCH_CHECK_WITH(
          OutOfMemoryError,
          !limit || allocated.current + static_cast<int64_t>(nbytes) <= std::atoll(limit),
          "standin out of memory. Tried to allocate ", nbytes, " bytes. Device ",
          static_cast<int>(device), " has a total capacity of ", limit ? limit : "", " bytes of which ",
          allocated.current, " are allocated.");
      TORCH_CHECK(posix_memalign(&data, 512, nbytes) == 0);
      allocated.increase(nbytes);
      stats[device].reserved_bytes[0].increase(nbytes);
      blocks[data] = {nbytes, device};
    }
    return {data, data, &Memory::release, c10::Device(kType, device)};
  }
  static void release(void* data);
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex);
    return stats[device];
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    stats[device].allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override { stats[device].allocated_bytes[0].reset_peak(); }

  std::mutex mutex;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kMaxDevices> stats;
  std::unordered_map<void*, std::pair<size_t, DeviceIndex>> blocks;
};

Memory& memory() {
  static auto* instance = new Memory();  // tensors may be freed after the end of main
  return *instance;
}

void Memory::release(void* data) {
  if (!data) return;
  auto& self = memory();
  std::lock_guard<std::mutex> lock(self.mutex);
  auto [nbytes, device] = self.blocks.at(data);
  self.stats[device].allocated_bytes[0].decrease(nbytes);
  self.stats[device].reserved_bytes[0].decrease(nbytes);
  self.blocks.erase(data);
  std::free(data);
}

// -- random numbers ---------------------------------------------------------------------------------

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex index) {
    device_ = c10::Device(kType, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

at::Generator& default_generator(DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>();
    for (int i = 0; i < kMaxDevices; i++) (*made)[i] = at::make_generator<Generator>(i);
    return made;
  }();
  return (*all)[index < 0 ? current_device : index];
}

// -- devices, streams and events ---------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    current_device = device.index() < 0 ? current_device : device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count(), "invalid device ordinal ", device);
    exchangeDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.index() < 0 ? current_device : device.index();
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    const auto index = device.index() < 0 ? current_device : device.index();
    return c10::Stream(c10::Stream::DEFAULT, {kType, index});
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const auto index = device.index() < 0 ? current_device : device.index();
    return c10::Stream(c10::Stream::UNSAFE, {kType, index}, ++last_stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point();
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { count_synchronization("stream"); }
  void synchronizeEvent(void*) const override { count_synchronization("event"); }
  void synchronizeDevice(DeviceIndex) const override { count_synchronization("device"); }
  double elapsedTime(void* start, void* end, DeviceIndex) const override {
    const auto span = *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return in_use; }
  void init() const override { use_device(); }
  DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(DeviceIndex index) const override { Guard().setDevice({kType, index}); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return Guard().exchangeDevice({kType, index}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    std::lock_guard<std::mutex> lock(memory().mutex);
    return {kType, memory().blocks.at(data).second};
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::OptionalDeviceGuard guard(storage.device());
    auto data = memory().allocate(size);
    std::memcpy(data.mutable_get(), storage.data(), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// -- operators ----------------------------------------------------------------------------------------

// Their results have sizes that the host must know, or are Python numbers.
const std::unordered_set<std::string> kWaiting{
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::equal", "aten::bincount", "aten::repeat_interleave",
    "aten::_unique"};

// They take indices, lengths or a number on the host beside tensors on a GPU.
const std::unordered_set<std::string> kMixed{
    "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence", "aten::_ctc_loss", "aten::_ctc_loss_backward"};

bool is_indexed_by_mask(const c10::FunctionSchema& schema, const torch::jit::Stack& inputs) {
  if (schema.name().rfind("aten::index", 0) != 0 && schema.name() != "aten::_index_put_impl_")
    return false;
  for (const auto& value : inputs) {
    if (!value.isList()) continue;
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined() &&
          item.toTensor().scalar_type() == at::kBool)
        return true;
  }
  return false;
}

void check_devices(const c10::FunctionSchema& schema, const torch::jit::Stack& inputs) {
  if (kMixed.count(schema.name())) return;
  for (const auto& value : inputs) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu() &&
        value.toTensor().dim() > 0) {
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but found at least two devices, ",
          "standin and cpu! (", schema.name(), ")");
    }
  }
}

// What CUDA's kernels assert, and those of the CPU check: the former end the use of the GPU by this
// process.  Other errors are checked on the host before.
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const std::vector<std::string> asserted{
      "is out of bounds", "index out of range in self", "between 0 and 1", "Expected p_in",
      "probability tensor contains"};
  try {
    at::native::cpu_fallback(op, stack);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool fatal = std::any_of(asserted.begin(), asserted.end(), [&](const std::string& part) {
      return text.find(part) != std::string::npos;
    });
    if (!fatal) throw;
    has_asserted = true;
    TORCH_CHECK(false, "standin error: device-side assert triggered: ", text);
  }
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  use_device();
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const torch::jit::Stack inputs(stack->end() - count, stack->end());
  check_devices(schema, inputs);
  if (!in_fallback && (kWaiting.count(schema.name()) || is_indexed_by_mask(schema, inputs)))
    count_synchronization(schema.name().c_str());
  InFallback guard;
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) {
    run_on_host(op, stack);
    return;
  }
  // The device's generator has its turn as the CPU's.
  auto generator = default_generator(-1);
  for (size_t i = 0; i < count; i++) {
    auto& value = (*stack)[stack->size() - count + i];
    if (value.isGenerator() && value.toGenerator().device().type() == kType) {
      generator = value.toGenerator();
      value = c10::IValue();
    }
  }
  auto host = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  const auto before = host.get_state();
  host.set_state(generator.get_state());
  run_on_host(op, stack);
  generator.set_state(host.get_state());
  host.set_state(before);
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

// A tensor of the CPU over the same memory.
at::Tensor on_host(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  use_device();
  if (!in_fallback && from.numel()) {
    auto& counted = counters();
    if (to.is_cpu()) {
      ++counted.to_host;
      counted.to_host_bytes += static_cast<int64_t>(from.nbytes());
      if (!non_blocking) count_synchronization("copy to host");
    } else if (from.is_cpu()) {
      ++counted.to_device;
      counted.to_device_bytes += static_cast<int64_t>(from.nbytes());
      // As on CUDA: a blocking copy waits for the device in either direction.
      if (!non_blocking) count_synchronization("copy to device");
    }
  }
  at::Tensor here = from.is_cpu() ? from : on_host(from);
  at::Tensor there = to.is_cpu() ? to : on_host(to);
  there.copy_(here);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) const_cast<at::Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  use_device();
  if (!in_fallback) {
    ++counters().to_host;
    counters().to_host_bytes += static_cast<int64_t>(tensor.nbytes());
    count_synchronization("item");
  }
  return at::_local_scalar_dense(on_host(tensor));
}

const at::Tensor& resize(
    const at::Tensor& self, c10::SymIntArrayRef symbolic, std::optional<at::MemoryFormat> format) {
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto needed = (self.storage_offset() + self.numel()) * self.element_size();
  if (needed > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor reshape_alias(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
    std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset) start = offset->guard_int(__FILE__, __LINE__);
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
    c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(0);
  self.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return self;
}

// Convolutions of other devices than torch's own have no default.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups) {
  std::optional<at::Tensor> host_bias;
  if (bias && bias->defined()) host_bias = on_host(*bias);
  InFallback guard;
  return at::convolution(
             on_host(input), on_host(weight), host_bias, stride, padding, dilation, transposed,
             output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  InFallback guard;
  const std::vector<int64_t> bias_sizes{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_host(grad), on_host(input), on_host(weight), bias_sizes, stride, padding, dilation,
      transposed, output_padding, groups, mask);
  const auto device = input.device();
  auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
  return {there(of_input), there(of_weight), there(of_bias)};
}

std::optional<at::Tensor> on_host_if_any(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return on_host(*tensor);
}

// Its schema does not say that it updates the running statistics, so the fallback would lose them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  use_device();
  InFallback guard;
  const auto [output, mean, invstd] = at::native_batch_norm(
      on_host(input), on_host_if_any(weight), on_host_if_any(bias), on_host_if_any(running_mean),
      on_host_if_any(running_var), training, momentum, eps);
  const auto device = input.device();
  return {output.to(device), mean.to(device), invstd.to(device)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("as_strided", as_strided);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

const bool registered = [] {
  c10::SetAllocator(kType, &memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  pthread_atfork(nullptr, nullptr, [] { bad_fork = bad_fork || in_use; });
  return true;
}();

}  // namespace
}  // namespace standin

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(
    _fused_sdp_choice_stub,
    [](const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
       std::optional<double>, bool) -> int64_t { return 0; })  // by plain operators
}
