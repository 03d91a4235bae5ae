// The scheme ulysses: heads are dealt out, and each rank computes its heads as one device would.
#include <initializer_list>
#include <vector>

#include "distributed/attention/schemes/dealt.hpp"
#include "distributed/attention/schemes/schemes.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

// Parts may share keys. The first of them, which finds zeros, needs no sum.
void add_gradients(const Job& job, const Part& part, bool first, const Keys& keys, const Tensor& dq,
                   const KeyGradients& sums) {
  KeyGradients into;
  std::vector<Owned> more;
  for (std::size_t x = 0; x < 2; ++x) {
    into[x] = rows_of(sums[x], part.keys);
    if (first || !into[x].given()) continue;
    const auto& shape = into[x].shape;
    into[x] = more.emplace_back(DType::f32, std::initializer_list<Index>{shape[0], shape[1], shape[2], shape[3]},
                                job.device(), job.launch)
                  .tensor();
  }
  attend_backward(job, part, keys, rows_of(dq, part.rows), into);
  if (more.empty()) return;
  for (std::size_t x = 0; x < 2; ++x)
    if (into[x].given()) add(into[x], rows_of(sums[x], part.keys), job.launch);
}

OfHeads alone(const Job& job) {
  // One rank that has the whole sequence.
  const std::vector<Part> parts =
      gather_parts(Layout::contiguous(job.how.layout.length(), 1), job.visibility, 0, job.needs);
  return {.forward =
              [parts](const Job& heads, const Keys& keys, const RowResults& into) {
                for (const Part& part : parts) attend(heads, part, keys, into);
              },
          .backward =
              [parts](const Job& heads, const Keys& keys, const Tensor& dq, const KeyGradients& into) {
                for (const Part& part : parts) add_gradients(heads, part, &part == &parts.front(), keys, dq, into);
              }};
}

}  // namespace

void ulysses_forward(const Job& job) { dealt_forward(job, alone(job)); }

void ulysses_backward(const Job& job) { dealt_backward(job, alone(job)); }

}  // namespace onepass::inline v0::context_parallel
