// The tensors of a call, in the types and orders that the library reads.
#pragma once
#include "libtorch/values.hpp"
#include "problem/role_row.hpp"

namespace onepass::libtorch {

class Views {
 public:
  // The tensor, or a copy that this keeps: small ones in float32 or int32, where a row asks for these, and those whose
  // last dimension has another stride than 1, where it must be 1.
  AtenTensorHandle readable(const char* name, AtenTensorHandle tensor, Types types, bool unit_last);
  Tensor view(const char* name, AtenTensorHandle tensor, const char* accepted, bool writable);

  bool meta() const { return meta_; }  // one of them has no numbers
  AtenTensorHandle hold(Owned made) { return held_.emplace_back(std::move(made)).get(); }

 private:
  std::vector<Owned> held_;
  bool meta_ = false;
};

}  // namespace onepass::libtorch
