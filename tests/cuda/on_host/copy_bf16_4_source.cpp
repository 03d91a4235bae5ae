#define EMULATED_TYPE bf16
#define EMULATED_COPY_BYTES 4
#define EMULATED_NAME bf16_4
#include "on_host/copy_source.inl"
