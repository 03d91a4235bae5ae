#define EMULATED_TYPE f32
#define EMULATED_PIECE 8
#define EMULATED_NAME f32_8
#include "on_host/copy_text.inl"
