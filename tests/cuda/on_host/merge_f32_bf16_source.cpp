#define EMULATED_NAME f32_bf16
#define EMULATED_DIM 33
#define EMULATED_INPUT f32
#define EMULATED_OUTPUT bf16
#define EMULATED_CAPACITY 48
#define EMULATED_IN "fp32"
#define EMULATED_OUT "bf16"
#include "on_host/merge_source.inl"
