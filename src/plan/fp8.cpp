// FP8 attention: a row for each row of attention, which then reads what is quantized for it.
#include <string>
#include <string_view>
#include <vector>

#include "base/make_once.hpp"
#include "cpu/quantize/quantize.hpp"
#include "cuda/quantize/quantize.hpp"
#include "plan/implementations.hpp"

namespace onepass {
namespace {

// "cuda.sm90" is "cuda.quantize+sm90", and "reference", which has no dot, "cpu.quantize+reference".
std::string with_quantize(const std::string& attention) {
  const std::size_t dot = attention.find('.');
  return (dot == attention.npos ? "cpu" : attention.substr(0, dot)) + ".quantize+" + attention.substr(dot + 1);
}

struct Rows {
  std::vector<std::string> names;
  std::vector<Implementation> rows;
};

}  // namespace

namespace plan {

std::vector<const Implementation*> quantizing(const std::vector<const Implementation*>& attentions) {
  static constinit MakeOnce<const Rows> once;
  const Rows& known = once.get([&] {
    Rows made;
    for (const Implementation* row : attentions) made.names.push_back(with_quantize(row->name));
    for (std::size_t i = 0; i < attentions.size(); ++i)
      made.rows.push_back(
          {.name = made.names[i].c_str(),
           .plan = nullptr,
           .unified_max = attentions[i]->unified_max,
           .attention = attentions[i],
           .quantized = made.names[i].starts_with("cuda.") ? cuda::quantized_first : cpu::quantized_first});
    return made;
  });
  std::vector<const Implementation*> all;
  for (const Implementation& row : known.rows) all.push_back(&row);
  return all;
}

}  // namespace plan

}  // namespace onepass
