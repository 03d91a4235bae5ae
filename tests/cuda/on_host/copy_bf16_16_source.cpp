#define EMULATED_TYPE bf16
#define EMULATED_COPY_BYTES 16
#define EMULATED_NAME bf16_16
#include "on_host/copy_source.inl"
