#define EMULATED_TYPE f32
#define EMULATED_PIECE 16
#define EMULATED_NAME f32_16
#include "on_host/copy_text.inl"
