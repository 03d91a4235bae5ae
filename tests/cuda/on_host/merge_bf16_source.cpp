#define EMULATED_NAME bf16
#define EMULATED_DIM 128
#define EMULATED_INPUT bf16
#define EMULATED_OUTPUT bf16
#define EMULATED_CAPACITY 48
#define EMULATED_IN "bf16"
#define EMULATED_OUT "bf16"
#include "on_host/merge_source.inl"
