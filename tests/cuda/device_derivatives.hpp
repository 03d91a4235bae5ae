// Derivatives on a device: of every line of a file of tests/shapes, and of random problems.
#pragma once
#include <rapidcheck.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device.hpp"
#include "support/cpu_kernels.hpp"
#include "support/property.hpp"

namespace onepass::check {

// By every implementation that takes them.
inline void judge_problems(const std::vector<Problem>& problems) {
  Findings findings;
  in_parallel(problems.size(), [&](std::size_t n) {
    const Problem there = on_device(problems[n]);
    const Distribution scores = test::kDerivativeScores[n % 3];
    const std::string what = test::command_of(there, n, scores);
    try {
      if (takers_of(there).empty()) return;
      Inputs inputs = make_inputs(problems[n], n, scores);
      findings.judge(inputs, what);
    } catch (const std::exception& e) {
      findings.wrong(what + ": " + e.what());
    }
  });
  findings.report();
}

// of(forward, n): the problem of line n.
template <class Of>
void judge_shapes(const std::string& file, const Of& of) {
  std::vector<Problem> problems;
  for (const std::string& line : test::shapes(file)) problems.push_back(of(parse_problem(line), problems.size()));
  judge_problems(problems);
}

// draw: makes a problem inside of a generator.
template <class Draw>
void judge_random(std::uint64_t seed, const Draw& draw) {
  const rc::Gen<Problem> gen = rc::gen::exec(draw);
  std::vector<Problem> problems;
  rc::Random random(seed);
  for (std::size_t drawn = 0; problems.size() < 150 && drawn < 1000; ++drawn) {
    Problem p = gen(random.split(), rc::kNominalSize).value();
    if (!takers_of(on_device(p)).empty()) problems.push_back(std::move(p));
  }
  judge_problems(problems);
}

}  // namespace onepass::check
