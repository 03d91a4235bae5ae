// onepass: exact attention in one pass.
#pragma once
#include "onepass/append.hpp"
#include "onepass/attention.hpp"
#include "onepass/error.hpp"
#include "onepass/executor.hpp"
#include "onepass/explain.hpp"
#include "onepass/flat_gemm.hpp"
#include "onepass/linear.hpp"
#include "onepass/problem.hpp"
#include "onepass/quantize.hpp"
#include "onepass/softmax.hpp"
#include "onepass/tensor.hpp"
#include "onepass/unified_max.hpp"
