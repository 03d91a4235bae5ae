// A call from PyTorch as the library has it: tensors and options read from Python's objects.
#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "dlpack_exchange.hpp"
#include "onepass/onepass.hpp"
#include "plan/plan.hpp"
#include "problem/attention/options.hpp"
#include "problem/callers_layout.hpp"
#include "problem/roles.hpp"

namespace onepass::python {

// Everything of a call, by the positions that _torch_op.NAMES gives it. The objects are the caller's.
class TorchCall {
 public:
  static constexpr int kMax = 64;

  // All options at their defaults, no tensor.
  TorchCall();
  explicit TorchCall(nanobind::handle arguments);  // a tuple, maybe without its end

  PyObject* operator[](int i) const { return i < 0 ? Py_None : items[static_cast<std::size_t>(i)]; }
  PyObject*& operator[](int i) { return items[static_cast<std::size_t>(i)]; }
  // Keywords of onepass.torch.attention, a dict. False: one of them, or its value, is out of the ordinary.
  bool take_words(nanobind::handle options);
  bool given(int i) const;  // another object than the default
  PyObject* tensor(Role role) const;
  PyObject*& tensor(Role role);

  std::array<PyObject*, kMax> items;
  PyObject* into = Py_None;  // the caller's out
};

// Where a call has what; -1: nowhere.
struct TorchPositions {
  std::array<int, kRoles> of_role{};
  std::array<int, kAttentionOptions.size()> of_option{};  // the band's is the mask
  int mod_buffers = -1, align_offset = -1, left = -1, right = -1, implementation = -1, threads = -1, fp8 = -1,
      out_dtype = -1, tokens_first = -1, return_lse = -1, return_max = -1;
  int mask = -1, scale = -1, dropout_p = -1, deterministic = -1;  // among of_option too
  int inputs = 0, all = 0;                                        // the first are tensors
};
extern TorchPositions torch_at;

// torch.Tensor's exchange table; null: PyTorch has none, and nothing here is called.
extern const dlpack::ExchangeTable* torch_exchange;

// capsule: the table. names, defaults: of a call's items; `inputs` are tensors. masks: from a mask to (causal, align).
// threads: a function, how many threads CPU work takes; place: how the paths of PyTorch's libraries begin.
void register_torch_calls(nanobind::handle capsule, const nanobind::tuple& names, const nanobind::tuple& defaults,
                          int inputs, const nanobind::dict& masks, nanobind::handle threads, const std::string& place);

// names: of a call's items.
void register_torch_words(const nanobind::tuple& names);

// A call that is being read. Whatever is out of the ordinary (dtypes that are converted, expressions, dropout,
// implementations by name) is not taken, and left to the package's general path, which also has the sentences for what
// is wrong.
class TakenCall {
 public:
  explicit TakenCall(Op of) : op(of) {}

  bool take_options(const TorchCall& call);
  bool take(Role role, nanobind::handle object);  // None is taken: a tensor that is not given
  bool take_inputs(const TorchCall& call);
  void run();

  const Op op;
  Tensors tensors;
  CallOptions attention;

 private:
  bool take_band(Band& band, const TorchCall& call, PyObject* mask);
  template <class T>
  bool take_option(T& to, const TorchCall& call, int at);

  int threads_ = 0;
  std::optional<CallersLayout> layout_;
};

// A new tensor of float32, row-major.
nanobind::object new_floats(const std::int64_t* shape, int rank, Device device);

}  // namespace onepass::python
