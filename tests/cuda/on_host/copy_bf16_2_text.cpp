#define EMULATED_TYPE bf16
#define EMULATED_PIECE 2
#define EMULATED_NAME bf16_2
#include "on_host/copy_text.inl"
