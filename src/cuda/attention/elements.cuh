// Elements of q, k and v.
#pragma once
#include "cuda/attention/formats.cuh"

namespace onepass {

using Element = ElementOf<features.input>::Format;

}  // namespace onepass
