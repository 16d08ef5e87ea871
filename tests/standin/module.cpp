// The Python module: what was counted, the generators, and collectives.
//
// Collectives are those of another backend, gloo, on tensors of the CPU over the same memory.

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include "counters.h"

namespace standin {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using c10d::Work;
template <class T>
using Ptr = c10::intrusive_ptr<T>;

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().device(at::kCPU).requires_grad(false));
}

Tensors on_host(const Tensors& tensors) {
  Tensors made;
  for (const auto& tensor : tensors) made.push_back(on_host(tensor));
  return made;
}

Lists on_host(const Lists& lists) {
  Lists made;
  for (const auto& list : lists) made.push_back(on_host(list));
  return made;
}

Tensors joined(const Lists& lists) {
  Tensors made;
  for (const auto& list : lists) made.insert(made.end(), list.begin(), list.end());
  return made;
}

// The work of the other backend; its result is the device's tensors.
struct DeviceWork final : Work {
  DeviceWork(Ptr<Work> inner, Tensors outputs) : inner(std::move(inner)), outputs(std::move(outputs)) {}
  bool isCompleted() override { return inner->isCompleted(); }
  bool isSuccess() const override { return inner->isSuccess(); }
  std::exception_ptr exception() const override { return inner->exception(); }
  int sourceRank() const override { return inner->sourceRank(); }
  Tensors result() override { return outputs; }
  void synchronize() override { inner->wait(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner->wait(timeout); }
  void abort() override { inner->abort(); }
  Ptr<c10::ivalue::Future> getFuture() override {
    auto made = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    inner->getFuture()->addCallback([made, outputs = outputs](c10::ivalue::Future& done) {
      if (done.hasError())
        made->setError(done.exception_ptr());
      else
        made->markCompleted(outputs);
    });
    return made;
  }
  Ptr<Work> inner;
  Tensors outputs;
};

struct DeviceBackend final : c10d::Backend {
  explicit DeviceBackend(Ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner(std::move(inner)) {}
  const std::string getBackendName() const override { return "standin_gloo"; }
  void setTimeout(std::chrono::milliseconds timeout) override { inner->setTimeout(timeout); }
  Ptr<Backend::Options> getBackendOptions() override { return inner->getBackendOptions(); }

  Ptr<Work> made(Ptr<Work> work, Tensors outputs) {
    return c10::make_intrusive<DeviceWork>(std::move(work), std::move(outputs));
  }
  Ptr<Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto host = on_host(tensors);
    return made(inner->broadcast(host, options), tensors);
  }
  Ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto host = on_host(tensors);
    return made(inner->allreduce(host, options), tensors);
  }
  Ptr<Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto host = on_host(tensors);
    return made(inner->allreduce_coalesced(host, options), tensors);
  }
  Ptr<Work> reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto host = on_host(tensors);
    return made(inner->reduce(host, options), tensors);
  }
  Ptr<Work> allgather(
      Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto out = on_host(outputs);
    auto in = on_host(inputs);
    return made(inner->allgather(out, in, options), joined(outputs));
  }
  Ptr<Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    auto out = on_host(output), in = on_host(input);
    return made(inner->_allgather_base(out, in, options), {output});
  }
  Ptr<Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto out = on_host(outputs), in = on_host(inputs);
    return made(inner->allgather_into_tensor_coalesced(out, in, options), outputs);
  }
  Ptr<Work> gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto out = on_host(outputs);
    auto in = on_host(inputs);
    return made(inner->gather(out, in, options), joined(outputs));
  }
  Ptr<Work> scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    auto out = on_host(outputs);
    auto in = on_host(inputs);
    return made(inner->scatter(out, in, options), outputs);
  }
  Ptr<Work> reduce_scatter(
      Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override {
    auto out = on_host(outputs);
    auto in = on_host(inputs);
    return made(inner->reduce_scatter(out, in, options), outputs);
  }
  Ptr<Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto out = on_host(output), in = on_host(input);
    return made(inner->_reduce_scatter_base(out, in, options), {output});
  }
  Ptr<Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto out = on_host(outputs), in = on_host(inputs);
    return made(inner->reduce_scatter_tensor_coalesced(out, in, options), outputs);
  }
  Ptr<Work> alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    auto out = on_host(output), in = on_host(input);
    return made(inner->alltoall_base(out, in, output_sizes, input_sizes, options), {output});
  }
  Ptr<Work> send(Tensors& tensors, int to, int tag) override {
    auto host = on_host(tensors);
    return made(inner->send(host, to, tag), {});
  }
  Ptr<Work> recv(Tensors& tensors, int from, int tag) override {
    auto host = on_host(tensors);
    return made(inner->recv(host, from, tag), tensors);
  }
  Ptr<Work> barrier(const c10d::BarrierOptions& options) override { return inner->barrier(options); }

  Ptr<Backend> inner;
};

std::mutex listener_mutex;
PyObject* listener = nullptr;  // owned

void tell(const char* what) {
  py::gil_scoped_acquire gil;
  if (listener) py::reinterpret_borrow<py::object>(listener)(what);
}

}  // namespace
}  // namespace standin

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace standin;
  m.def("counts", [] {
    const auto& now = counters();
    py::dict made;
    made["synchronizations"] = now.synchronizations.load();
    made["to_host"] = now.to_host.load();
    made["to_device"] = now.to_device.load();
    made["to_host_bytes"] = now.to_host_bytes.load();
    made["to_device_bytes"] = now.to_device_bytes.load();
    return made;
  });
  m.def("set_listener", [](py::object function) {
    Py_XDECREF(listener);
    listener = function.is_none() ? nullptr : function.release().ptr();
    report = listener ? &tell : nullptr;
  });
  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(
        at::detail::getPrivateUse1Hooks().getDefaultGenerator(index)));
  });
  m.def("bad_fork", [] { return bad_fork.load(); });
  m.def("initialized", [] { return at::detail::getPrivateUse1Hooks().hasPrimaryContext(0); });
  m.def("collectives", [](c10::intrusive_ptr<c10d::Backend> inner) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DeviceBackend>(std::move(inner)));
  });
}
