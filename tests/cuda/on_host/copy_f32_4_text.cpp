#define EMULATED_TYPE f32
#define EMULATED_PIECE 4
#define EMULATED_NAME f32_4
#include "on_host/copy_text.inl"
