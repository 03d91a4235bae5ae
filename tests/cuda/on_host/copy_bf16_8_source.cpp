#define EMULATED_TYPE bf16
#define EMULATED_COPY_BYTES 8
#define EMULATED_NAME bf16_8
#include "on_host/copy_source.inl"
