// --target: the plans of another GPU, run on the one at hand.
#pragma once
#include <memory>
#include <string>

#include "cuda/host/pretended.hpp"
#include "problem/problem.hpp"
#include "tools/onepass/options.hpp"

namespace onepass::cli {

void add_target(const Command& command, std::string& target);
// While the result lives, plans on `device` are those of `target`. It is null without a target. Throws Error: bad_value
// if the device is not a GPU or the target is not known, unsupported if the target is newer than the GPU.
std::unique_ptr<cuda::PretendedDevice> as_target(Device device, const std::string& target);

}  // namespace onepass::cli
