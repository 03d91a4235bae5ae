// The shared parts of the operators of `onepass run`: their options, and a problem's way from files through a plan to
// files.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "problem/roles.hpp"
#include "tools/onepass/device_tensors.hpp"
#include "tools/onepass/inputs.hpp"
#include "tools/onepass/options.hpp"
#include "tools/onepass/outputs.hpp"

namespace onepass::cli {

struct Running {
  std::map<std::string, std::string> npy;
  std::string in, prefix, dtype, out_dtype, device = "cpu", implementation;
  int threads = 0, repeat = 1;
  OutputFiles outputs;
  bool json = false, progress = false;

  InputFiles files() const;
};
// --q FILE, of a role
void add_tensor_option(const Command& command, Running& running, const RoleRow& row);
// --lse and others like it
void add_row_file(const Command& command, RowFile& rows, const std::string& help);
// --in and --prefix, --dtype, and how it runs
void add_running_options(const Command& command, Running& running);

// Where a result goes. Its shape follows the inputs'; that those fit is checked before memory is had.
struct Result {
  const RoleRow* row;
  DType dtype;
  io::Shape shape;  // of the file
  std::optional<io::Array> memory{};
};
using Results = std::vector<Result>;
// A result without memory, to check a problem with.
Tensor placeholder(const Result& result, Device device);
void set_output(Tensors& tensors, const RoleRow& row, const Tensor& t);

// As a tensor of the call lies, from how it lies in its file.
using Orient = std::function<Tensor(const RoleRow&, const Tensor&)>;
// Plans the problem, gives the results memory, runs it, prints what ran and writes the files. `on_device` is null on
// the CPU. `first` runs before what is timed.
void compute(const Running& running, const Problem& problem, Tensors tensors, Results& results,
             DeviceTensors* on_device, const Orient& orient = {},
             const std::function<void(const Tensors&, Executor&)>& first = {});

}  // namespace onepass::cli
