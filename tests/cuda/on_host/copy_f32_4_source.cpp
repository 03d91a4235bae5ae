#define EMULATED_TYPE f32
#define EMULATED_COPY_BYTES 4
#define EMULATED_NAME f32_4
#include "on_host/copy_source.inl"
