// Where the keys, or the values, of one sequence lie: (head, token) -> address. Kernels read K and V through this view
// and never take the next token to be one row stride away but inside a run; a new layout of K and V is written here.
#pragma once
#include <algorithm>
#include <cstdint>

#include "algebra/numerics.hpp"
#include "problem/attention/arguments.hpp"

namespace onepass {

// The factors of one batch entry: [batch, heads, blocks], of which dimensions of size 1 are repeated.
class Descale {  // not given: 1
 public:
  Descale() = default;
  Descale(const ConstTensor& t, std::int64_t batch) {
    if (!t.given()) return;
    const auto stride = [&](int i) { return t.shape[i] > 1 ? t.stride[i] : 0; };
    data_ = static_cast<const float*>(t.data) + batch * stride(0);
    head_ = stride(1), block_ = stride(2);
  }
  bool given() const { return data_ != nullptr; }
  float at(std::int64_t head, std::int64_t row) const {
    return data_ ? data_[head * head_ + row / kDescaleRows * block_] : 1.0f;
  }

 private:
  const float* data_ = nullptr;
  std::int64_t head_ = 0, block_ = 0;
};

class KeyValueView {
 public:
  // Rows of tokens that lie one stride apart.
  template <class T>
  struct Run {
    const T* row;         // of its first token
    std::int64_t stride;  // in elements, from token to token
    std::int64_t tokens;
  };

  KeyValueView() = default;
  // With the factors of what is fp8_e4m3, and what was taken out of it.
  KeyValueView(const ConstTensor& t, const Sequence& seq, const ConstTensor& descale, const ConstTensor& mean)
      : KeyValueView(t, seq, descale) {
    if (!mean.given()) return;
    const auto stride = [&](int i) { return mean.shape[i] > 1 ? mean.stride[i] : 0; };
    means_ = static_cast<const float*>(mean.data) + seq.batch * stride(0);
    mean_head_ = stride(1), mean_column_ = stride(2);
  }
  KeyValueView(const ConstTensor& t, const Sequence& seq, const ConstTensor& descale) : KeyValueView(t, seq) {
    factors_ = Descale(descale, seq.batch);
  }
  KeyValueView(const ConstTensor& t, const Sequence& seq)
      : data_(t.data),
        dtype_(t.dtype),
        pages_(seq.pages),
        origin_(pages_.size > 0 ? 0 : row_offset(t, seq.batch, 0, seq.k_begin)),
        page_stride_(t.stride[0]),
        head_stride_(t.stride[pages_.size > 0 ? 2 : 1]),
        stride_(pages_.size > 0 ? t.stride[1] : row_stride(t)) {}

  DType dtype() const { return dtype_; }
  // In elements, from the tensor's first.
  std::int64_t offset(std::int64_t head, std::int64_t token) const {
    if (pages_.size == 0) return origin_ + head * head_stride_ + token * stride_;
    return pages_.of(token) * page_stride_ + head * head_stride_ + token % pages_.size * stride_;
  }
  template <class T>
  const T* row(std::int64_t head, std::int64_t token) const {
    return static_cast<const T*>(data_) + offset(head, token);
  }
  float element(std::int64_t head, std::int64_t token, std::int64_t column) const {
    return factor(head, token) * load_element(data_, dtype_, offset(head, token) + column) + mean(head, column);
  }
  // The result of run() is without the factors and means.
  bool scaled() const { return factors_.given() || centered(); }
  bool centered() const { return means_ != nullptr; }
  // The factor of a token's elements; 1 unless scaled().
  float factor(std::int64_t head, std::int64_t token) const { return factors_.at(head, token); }
  // The number that is then added to a column of a head; 0 unless scaled().
  float mean(std::int64_t head, std::int64_t column) const {
    return means_ ? means_[head * mean_head_ + column * mean_column_] : 0.0f;
  }
  // The run that begins at `token`, at most `most` tokens of it. One run holds whole sequences where tensors are
  // contiguous or packed, and one page of what is paged.
  template <class T>
  Run<T> run(std::int64_t head, std::int64_t token, std::int64_t most) const {
    const std::int64_t left = pages_.size > 0 ? pages_.size - token % pages_.size : most;
    return {row<T>(head, token), stride_, std::min(most, left)};
  }
  // f(run, tokens before it) for the runs of [token, token + count), in order.
  template <class T, class F>
  void each_run(std::int64_t head, std::int64_t token, std::int64_t count, F&& f) const {
    for (std::int64_t done = 0; done < count;) {
      const Run<T> r = run<T>(head, token + done, count - done);
      f(r, done);
      done += r.tokens;
    }
  }

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Pages pages_;
  Descale factors_;
  const float* means_ = nullptr;
  std::int64_t mean_head_ = 0, mean_column_ = 0;
  std::int64_t origin_ = 0, page_stride_ = 0, head_stride_ = 0,
               stride_ = 0;  // origin: head 0 of the sequence's first token
};

// Views of a call's keys and values.
inline KeyValueView keys_of(const Tensors& a, const Sequence& seq) { return {a.k, seq, a.k_descale}; }
inline KeyValueView values_of(const Tensors& a, const Sequence& seq) { return {a.v, seq, a.v_descale, a.v_mean}; }

}  // namespace onepass
