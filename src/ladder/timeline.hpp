// A clock for schedules: two in-order units (matrix, softmax) and several workers that issue to them.
//
// A worker's matrix products are asynchronous: it goes on at once and waits later. What a piece of work costs is not
// assumed but metered: the counts it adds to the machine, over the unit's rate.
#pragma once
#include <algorithm>
#include <vector>

#include "ladder/meter.hpp"

namespace onepass::ladder {

// Operations per cycle of one SM of an H100: dense fp16 WGMMA, MUFU, fp32 lanes.
struct Rates {
  double matmul = 4096, exponentials = 16, pointwise = 128;
  double matrix_cycles(const Counts& c) const { return static_cast<double>(c.matmul_flops) / matmul; }
  // 2^x and the fp32 lanes are different pipes and run side by side.
  double softmax_cycles(const Counts& c) const {
    return std::max(static_cast<double>(c.exponentials) / exponentials,
                    static_cast<double>(c.pointwise_flops) / pointwise);
  }
};

class Timeline {
 public:
  Timeline(const Counts& counts, Index workers, Rates rates = {})
      : counts_(counts), rates_(rates), now_(static_cast<std::size_t>(workers)) {}

  // Does the product now, in the simulation; returns when the matrix unit has finished it.
  template <class F>
  double issue(std::size_t worker, F&& product) {
    const double cycles = rates_.matrix_cycles(metered(product)), start = std::max(now_[worker], matrix_free_);
    matrix_busy_ += cycles;
    return matrix_free_ = start + cycles;
  }
  void wait(std::size_t worker, double until) { now_[worker] = std::max(now_[worker], until); }
  // The worker itself works on the softmax unit.
  template <class F>
  void softmax(std::size_t worker, F&& work) {
    const double cycles = rates_.softmax_cycles(metered(work)), start = std::max(now_[worker], softmax_free_);
    now_[worker] = softmax_free_ = start + cycles;
  }

  double cycles() const { return std::max(matrix_free_, *std::max_element(now_.begin(), now_.end())); }
  double matrix_busy() const { return matrix_busy_; }  // cycles
  double utilisation() const { return cycles() > 0 ? matrix_busy_ / cycles() : 0.0; }

 private:
  template <class F>
  Counts metered(F&& f) {
    const Counts before = counts_;
    f();
    Counts c = counts_;
    c.matmul_flops -= before.matmul_flops;
    c.pointwise_flops -= before.pointwise_flops;
    c.exponentials -= before.exponentials;
    return c;
  }
  const Counts& counts_;
  Rates rates_;
  std::vector<double> now_;
  double matrix_free_ = 0, softmax_free_ = 0, matrix_busy_ = 0;
};

}  // namespace onepass::ladder
