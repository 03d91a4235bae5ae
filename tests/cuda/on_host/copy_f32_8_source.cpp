#define EMULATED_TYPE f32
#define EMULATED_COPY_BYTES 8
#define EMULATED_NAME f32_8
#include "on_host/copy_source.inl"
