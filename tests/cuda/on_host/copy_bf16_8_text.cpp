#define EMULATED_TYPE bf16
#define EMULATED_PIECE 8
#define EMULATED_NAME bf16_8
#include "on_host/copy_text.inl"
