#include "problem/operator.hpp"

#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass {

constinit const std::array<const Operator*, kOps> kOperators{&kForward,         &kMerge,    &kBackward, &kSoftmax,
                                                             &kSoftmaxBackward, &kQuantize, &kFlatGemm, &kLinear};

const Operator& operator_of(Op op) {
  const auto at = static_cast<std::size_t>(op);
  want(at < kOps, ErrorCode::bad_value, "op must be a value of Op, 0 to ", kOps - 1, " (got ", at, ")");
  return *kOperators[at];
}

}  // namespace onepass
