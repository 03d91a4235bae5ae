// Elements of q, k and v.
#pragma once
#include "cuda/device/formats.cuh"

namespace onepass {

// As they are multiplied: e4m3 q becomes fp16 first.
using Element = ElementOf<features.input == ScalarType::e4m3 ? ScalarType::f16 : features.input>::Format;

}  // namespace onepass
