#define EMULATED_NAME wide
#define EMULATED_DIM 300
#define EMULATED_INPUT bf16
#define EMULATED_OUTPUT f16
#define EMULATED_CAPACITY 48
#define EMULATED_IN "bf16"
#define EMULATED_OUT "fp16"
#include "on_host/merge_source.inl"
