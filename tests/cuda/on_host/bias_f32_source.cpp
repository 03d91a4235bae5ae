#define EMULATED_TYPE f32
#define EMULATED_NAMESPACE emulated_bias_f32
#define EMULATED_FUNCTION staged_f32
#include "on_host/bias_source.inl"
