// Elements of q, k and v.
#pragma once
#include "cuda/device/formats.cuh"

namespace onepass {

using Element = ElementOf<features.input>::Format;

}  // namespace onepass
