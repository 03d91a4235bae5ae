// The words about where tensors lie: layout, strides and alignment (docs/reference/problem.md).
#include "problem/grammar/subject.hpp"
#include "problem/grammar/words.hpp"

namespace onepass {
namespace {

std::string strides_of(const Dims& s) { return number(s[0]) + "," + number(s[1]) + "," + number(s[2]); }

bool in_strides_word(const RoleRow& row, Op op) {  // q, k, v, out
  return row.unit_last && row.role <= Role::out && (strides_in_one(op) || row.role == Role::out);
}

// Tensors whose strides are not those that a line has without a word about them, as in `plain`, and addresses that
// are not multiples of 16.
std::string side_text(const Problem& p, const Problem& plain) {
  std::string out, align;
  for (const RoleRow& row : kRoleTable) {
    const Dims& s = p.layout.*row.layout;
    if (!in_strides_word(row, p.op) && s != plain.layout.*row.layout) {
      out += std::string(" ") + row.name + "_strides=";
      const int rank = rank_of(axes_of(row, p.op->matrices ? Form::matrix : Form::batched)) - (row.unit_last ? 1 : 0);
      for (int i = 0; i < rank; ++i) out += (i ? "," : "") + number(s[i]);
    }
    const std::uint8_t bytes = p.alignment[static_cast<std::size_t>(row.role)];
    if (bytes != 16) align += (align.empty() ? " align=" : ",") + std::string(row.name) + ":" + number(int{bytes});
  }
  return out + align;
}

}  // namespace

std::string layout_text(const Problem& p) {
  Problem plain = p, bshd = p;
  set_contiguous(plain);
  set_bshd(bshd);
  if (p.op->parts) plain.layout.out = row_major(p, row_of(Role::out));  // of no columns too
  if (has_axis(p.op, Axis::seq_k) && !strides_in_one(p.op))             // each by its name
    return p.layout == bshd.layout && p.layout != plain.layout ? " layout=bshd" + side_text(p, bshd)
                                                               : side_text(p, plain);
  const Layout& l = p.layout;
  const auto same = [&](const Layout& x) { return x.q == l.q && x.k == l.k && x.v == l.v && x.out == l.out; };
  if (same(plain.layout)) return side_text(p, plain);
  if (same(bshd.layout)) return " layout=bshd" + side_text(p, bshd);
  if (p.op->parts) return " out_strides=" + strides_of(l.out) + side_text(p, plain);
  return " strides=q:" + strides_of(l.q) + ";k:" + strides_of(l.k) + ";v:" + strides_of(l.v) +
         ";o:" + strides_of(l.out) + side_text(p, plain);
}

bool read_layout(Reading& r, const Word& w) {
  const auto value = w.value();
  if (w.word.starts_with("layout=") && (value == "bshd" || value == "bhsd")) {
    r.bshd = value == "bshd";
    return true;
  }
  if (!w.word.starts_with("strides=")) return false;
  r.has_strides = true;
  const auto items = w.list(*value, ';');
  Dims* const into[] = {&r.p.layout.q, &r.p.layout.k, &r.p.layout.v, &r.p.layout.out};
  for (std::size_t i = 0; i < 4; ++i) {
    if (items.size() != 4 || items[i].size() < 2 || items[i][0] != "qkvo"[i] || items[i][1] != ':')
      w.fail("strides=q:batch,head,token;k:..;v:..;o:..");
    *into[i] = w.strides(items[i].substr(2));
  }
  return true;
}

bool read_side_strides(Reading& r, const Word& w, const RoleRow& row) {
  const auto items = w.list(w.value().value_or(""), ',');
  Dims strides{0, 0, 0, row.unit_last ? 1 : 0};
  const Axes& axes = r.p.op->matrices ? row.packed : row.axes;  // that word comes first
  if (static_cast<int>(items.size()) != rank_of(axes) - (row.unit_last ? 1 : 0)) w.fail("a stride for each dimension");
  for (std::size_t i = 0; i < items.size(); ++i) strides[i] = w.number<std::int64_t>(items[i], "integers");
  r.side_strides.emplace_back(&row, strides);
  return true;
}

bool read_align(Reading& r, const Word& w) {
  const auto value = w.value();
  if (!value) return false;
  for (const std::string_view item : w.list(*value, ',')) {
    const auto [name, bytes] = w.halves(item, ':', true, "align=name:bytes, such as align=q:8");
    const RoleRow* row = role_named(name, r.p.op);
    const int n = w.number<int>(bytes, "1, 2, 4, 8 or 16 bytes");
    if (!row || n < 1 || n > 16 || (n & (n - 1)) != 0) w.fail("align=name:bytes, such as align=q:8");
    r.p.alignment[static_cast<std::size_t>(row->role)] = static_cast<std::uint8_t>(n);
  }
  return true;
}

}  // namespace onepass
