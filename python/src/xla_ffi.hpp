// XLA's foreign function interface as onepass uses it: the memory layouts of its C API, version 0, whose own header
// (xla/ffi/api/c_api.h) comes with jaxlib only. Declared here so that a build needs no jaxlib; test_xla_handlers.py
// compares every size and offset with that header. XLA only ever adds fields behind the last, and says in struct_size
// how many of them there are.
#pragma once
#include <cstddef>
#include <cstdint>

namespace onepass::xla {

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadata = 1;  // the type of extension by which XLA asks for a handler's version

// The first fields of each struct.
struct Head {
  std::size_t struct_size;
  Extension* extension_start;
};

struct Version {
  Head head;
  int major, minor;
};

struct TypeId {
  std::int64_t id;
};

struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
  TypeId state;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

// Numbers of xla::PrimitiveType.
enum class Type : int { pred = 1, s32 = 4, s64 = 5, u64 = 9, f16 = 10, f32 = 11, f64 = 12, bf16 = 16, f8e4m3fn = 20 };

struct Buffer {  // row-major
  Head head;
  Type dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct Bytes {
  const char* data;
  std::size_t size;
};
struct Scalar {
  Type dtype;
  void* value;
};
enum class AttributeKind : int { array = 1, dictionary = 2, scalar = 3, string = 4 };

struct Buffers {  // arguments or results; types says that each is a Buffer, the only kind there is
  Head head;
  std::int64_t size;
  int* types;
  void** buffers;
};
struct Attributes {  // sorted by name
  Head head;
  std::int64_t size;
  AttributeKind* kinds;
  Bytes** names;
  void** values;
};

struct Error;    // XLA's own
struct Context;  // of one execution
struct Api;

struct CallFrame {
  Head head;
  const Api* api;
  Context* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
};
using Handler = Error*(CallFrame*);

// absl::StatusCode
enum class Status : int { invalid_argument = 3, resource_exhausted = 8, unimplemented = 12, internal = 13 };

struct ErrorCreate {
  Head head;
  const char* message;
  Status code;
};
struct ErrorGetMessage {
  Head head;
  Error* error;
  const char* message;  // out
  int code;             // out, from version 0.4 on
};
struct ErrorDestroy {
  Head head;
  Error* error;
};
struct StreamGet {
  Head head;
  Context* context;
  void* stream;  // out
};
struct MemoryAllocate {
  Head head;
  Context* context;
  std::size_t size, alignment;
  void* data;  // out
};
struct MemoryFree {
  Head head;
  Context* context;
  std::size_t size;
  void* data;
};
struct DeviceGet {
  Head head;
  Context* context;
  std::int32_t ordinal;  // out
};

struct Api {
  Head head;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void (*error_get_message)(ErrorGetMessage*);
  void (*error_destroy)(ErrorDestroy*);
  void* handler_register;
  Error* (*stream_get)(StreamGet*);
  void* type_register;
  void* execution_context_get;
  void* state_set;
  void* state_get;
  Error* (*memory_allocate)(MemoryAllocate*);
  Error* (*memory_free)(MemoryFree*);
  void* thread_pool[2];
  void* future[3];
  void* run_id_get;
  Error* (*device_get)(DeviceGet*);
};

}  // namespace onepass::xla
