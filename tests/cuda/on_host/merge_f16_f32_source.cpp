#define EMULATED_NAME f16_f32
#define EMULATED_DIM 40
#define EMULATED_INPUT f16
#define EMULATED_OUTPUT f32
#define EMULATED_CAPACITY 256
#define EMULATED_IN "fp16"
#define EMULATED_OUT "fp32"
#include "on_host/merge_source.inl"
