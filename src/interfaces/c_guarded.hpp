// Every call of the C ABI turns what is thrown into a code and a sentence.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>

#include "interfaces/c_convert.hpp"

namespace onepass::interfaces {

onepass_code failed(onepass_code code, const char* sentence) noexcept;  // keeps the sentence for onepass_last_error

template <class F>
onepass_code guarded(F&& call) noexcept {
  try {
    call();
    return ONEPASS_OK;
  } catch (const Error& e) {
    return failed(static_cast<onepass_code>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return failed(ONEPASS_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(ONEPASS_INTERNAL, e.what());
  } catch (...) {
    return failed(ONEPASS_INTERNAL, "an unknown exception");
  }
}

// Into a struct of the caller's size; fields that this library does not know become 0.
template <class Struct>
void set_defaults(const char* name, Struct* to, std::size_t size, Struct defaults) {
  want(size >= sizeof defaults.size && size % alignof(Struct) == 0, ErrorCode::bad_value,
       "size must be sizeof(onepass_", name, ") (got ", size, ")");
  defaults.size = size;
  std::memset(&given(name, to), 0, size);
  std::memcpy(to, &defaults, std::min(size, sizeof defaults));
}

}  // namespace onepass::interfaces
