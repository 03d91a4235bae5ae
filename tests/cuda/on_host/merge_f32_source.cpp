#define EMULATED_NAME f32
#define EMULATED_DIM 64
#define EMULATED_INPUT f32
#define EMULATED_OUTPUT f32
#define EMULATED_CAPACITY 48
#define EMULATED_IN "fp32"
#define EMULATED_OUT "fp32"
#include "on_host/merge_source.inl"
