#define EMULATED_NAME dense
#define EMULATED_PACKED false
#include "on_host/orders_source.inl"
