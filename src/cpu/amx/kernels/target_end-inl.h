// Closes what target-inl.h opened.
#if defined(ONEPASS_EMULATED_AVX512)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
