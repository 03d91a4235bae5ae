// A number that counts the operations done with it: what the ladder says it computed is compared with what it did.
#pragma once
#include "algebra/scalar.hpp"

namespace onepass {

struct Counted {
  double value = 0;
  static inline long long operations = 0;  // + - * / max, and 2^x and log2 x
  static inline long long exponentials = 0;

  Counted() = default;
  explicit constexpr Counted(double x) : value(x) {}
  explicit operator double() const { return value; }
  friend Counted operator+(Counted a, Counted b) { return did(a.value + b.value); }
  friend Counted operator-(Counted a, Counted b) { return did(a.value - b.value); }
  friend Counted operator*(Counted a, Counted b) { return did(a.value * b.value); }
  friend Counted operator/(Counted a, Counted b) { return did(a.value / b.value); }
  static Counted did(double result) {
    ++operations;
    return Counted(result);
  }
};

template <>
struct Arith<Counted> {
  using D = Arith<double>;
  static Counted of(double x) { return Counted(x); }
  static Counted neg_inf() { return Counted(D::neg_inf()); }
  static Counted exp2(Counted x) { return ++Counted::exponentials, Counted::did(D::exp2(x.value)); }
  static Counted log2(Counted x) { return ++Counted::exponentials, Counted::did(D::log2(x.value)); }
  static Counted max(Counted a, Counted b) { return Counted::did(D::max(a.value, b.value)); }
  static Counted if_neg_inf(Counted x, Counted then, Counted otherwise) {
    return x.value == D::neg_inf() ? then : otherwise;
  }
  static Counted if_zero(Counted x, Counted then, Counted otherwise) { return x.value == 0 ? then : otherwise; }
};

}  // namespace onepass
