// The order of dimensions in which a caller passes tensors. The library has [batch, heads, seq, dim] ("bhsd");
// flash-attn, JAX and most caches have [batch, seq, heads, dim] ("bshd"). An interface that accepts both turns such
// tensors into views with heads first, and sentences show shapes in the caller's order.
#pragma once
#include <ostream>
#include <string_view>

#include "onepass/tensor.hpp"

namespace onepass {

// While it lives, calls of this thread come from a caller with tokens first, or not. Scopes nest.
// paged: k and v are [pages, page_size, heads_kv, dim] in either layout.
class CallersLayout {
 public:
  CallersLayout(bool tokens_first, bool paged);
  ~CallersLayout();
  CallersLayout(const CallersLayout&) = delete;
  CallersLayout& operator=(const CallersLayout&) = delete;

 private:
  const bool before_first_, before_paged_;
};

// True if the caller's tensor of this name and rank has its tokens before its heads where the library's has heads
// first. Packed tensors, scores, scales and means are the same in either layout.
bool is_turned(std::string_view name, int rank);

// From the caller's order to the library's, and back.
template <class Data>
BasicTensor<Data> turned(std::string_view name, const BasicTensor<Data>& t) {
  if (!is_turned(name, t.rank)) return t;
  return t.rank == 4 ? t.permuted({0, 2, 1, 3}) : t.permuted({0, 2, 1});
}

// The shape of a tensor as the caller passed it, in a sentence of want(), which prints it only if it is needed.
struct PassedShape {
  std::string_view name;
  const ConstTensor& tensor;
  friend std::ostream& operator<<(std::ostream& out, const PassedShape& s) {
    return out << shape_text(turned(s.name, s.tensor));
  }
};

}  // namespace onepass
