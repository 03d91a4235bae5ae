// Nothing of src/cuda/attention/elements.cuh is needed on the host.
#pragma once
#include "cuda/device/mma.cuh"
