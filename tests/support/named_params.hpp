// Parameters of tests print their names: GoogleTest shows bytes of a struct and the address of a pointer otherwise.
#pragma once
#include <gtest/gtest.h>

#include <concepts>
#include <ostream>
#include <string>
#include <type_traits>

namespace onepass::test {

template <class T>
concept HasName = std::is_class_v<T> && requires(const T& x) {
  { x.name } -> std::convertible_to<std::string>;
};
template <class T>
concept MakesName = std::is_class_v<T> && requires(const T& x) {
  { x.name() } -> std::convertible_to<std::string>;
};

}  // namespace onepass::test

namespace testing::internal {

template <onepass::test::HasName T>
class UniversalPrinter<T> {
 public:
  static void Print(const T& x, std::ostream* out) { *out << x.name; }
};
template <onepass::test::HasName T>
class UniversalPrinter<const T*> {
 public:
  static void Print(const T* x, std::ostream* out) { *out << x->name; }
};
template <onepass::test::MakesName T>
class UniversalPrinter<const T*> {
 public:
  static void Print(const T* x, std::ostream* out) { *out << x->name(); }
};

}  // namespace testing::internal
