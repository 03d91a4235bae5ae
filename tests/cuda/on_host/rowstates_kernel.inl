// As rows_kernel.inl, of the first of two launches.
#define KERNEL_FAMILY rowstates_
#include "on_host/rows_kernel.inl"
