#define EMULATED_TYPE bf16
#define EMULATED_NAMESPACE emulated_bias_bf16
#define EMULATED_FUNCTION staged_bf16
#include "on_host/bias_source.inl"
