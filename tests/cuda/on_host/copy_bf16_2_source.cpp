#define EMULATED_TYPE bf16
#define EMULATED_COPY_BYTES 2
#define EMULATED_NAME bf16_2
#include "on_host/copy_source.inl"
