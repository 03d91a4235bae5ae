// Entries of the dicts that the package passes.
#pragma once
#include <nanobind/nanobind.h>

#include <unordered_map>

namespace onepass::python {

// The GIL guards what is kept between calls. A Python without one keeps it for each thread.
#ifdef Py_GIL_DISABLED
#define ONEPASS_KEPT static thread_local
#else
#define ONEPASS_KEPT static
#endif

// The entry of a name that stays where it is while the process lives, or a null handle: a Python string is made of the
// name once, which costs 60 ns with its hash.
inline nanobind::handle find(const nanobind::dict& o, const char* name) {
  ONEPASS_KEPT std::unordered_map<const char*, PyObject*> keys;  // by address
  PyObject*& key = keys[name];
  if (!key) key = PyUnicode_InternFromString(name);
  return PyDict_GetItemWithError(o.ptr(), key);
}
inline bool is_given(const nanobind::dict& o, const char* name) {
  const nanobind::handle found = find(o, name);
  return found.is_valid() && !found.is_none();
}
// Throws KeyError.
inline nanobind::handle item(const nanobind::dict& o, const char* name) {
  const nanobind::handle found = find(o, name);
  if (!found.is_valid()) throw nanobind::key_error(name);
  return found;
}
template <class T>
T item(const nanobind::dict& o, const char* name) {
  return nanobind::cast<T>(item(o, name));
}

}  // namespace onepass::python
