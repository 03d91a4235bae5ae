#define EMULATED_NAME packed
#define EMULATED_PACKED true
#include "on_host/orders_source.inl"
