#define EMULATED_TYPE f32
#define EMULATED_COPY_BYTES 16
#define EMULATED_NAME f32_16
#include "on_host/copy_source.inl"
