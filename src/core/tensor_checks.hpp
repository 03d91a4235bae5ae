// What every tensor of a call must be before anything else of it is read.
#pragma once
#include <ostream>
#include <string_view>

#include "onepass/tensor.hpp"

namespace onepass {

// A tensor's shape, a device, in a sentence of want(), which prints them only if it is needed: a shape's text of a
// call's eleven tensors is 5 us.
struct ShownShape {
  const ConstTensor& tensor;
  friend std::ostream& operator<<(std::ostream& out, const ShownShape& s) { return out << shape_text(s.tensor); }
};
struct ShownDevice {
  Device device;
  friend std::ostream& operator<<(std::ostream& out, const ShownDevice& d) { return out << to_string(d.device); }
};

// Given, of a rank, dtype and device that exist, without negative sizes, with data if it has elements. Throws Error.
void check_tensor(std::string_view name, const ConstTensor& t);

// No two of its elements are one. Throws Error.
void check_output(std::string_view name, const ConstTensor& t);

}  // namespace onepass
