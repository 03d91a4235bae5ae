// The words about a call's sequences: packed ones, their lengths, caches in pages (docs/reference/problem.md).
#include <string>
#include <tuple>

#include "problem/grammar/words.hpp"

namespace onepass {
namespace {

std::string lengths_text(const Lengths& v) {  // 3,7,128x4
  std::string out;
  for (std::size_t i = 0, n; i < v.size(); i += n) {
    for (n = 1; i + n < v.size() && v[i + n] == v[i];) ++n;
    out += (i ? "," : "") + number(v[i]) + (n > 1 ? "x" + number(n) : "");
  }
  return out;
}

}  // namespace

bool read_varlen(Reading& r, const Word& w) {
  const auto value = w.value();
  if (!value) return false;
  const auto [q, k] = w.halves(*value, '/', false, "");
  r.p.varlen = true;
  r.own_lengths_k = k.data() != q.data();
  r.p.lengths_q = w.lengths(q);
  r.p.lengths_k = w.lengths(k);
  if (r.p.lengths_q.size() != r.p.lengths_k.size()) w.fail("varlen=q/k with one length of k for each length of q");
  return true;
}
std::string varlen_text(const Problem& p) {
  if (!p.varlen || p.lengths_q.empty()) return "";
  return "=" + lengths_text(p.lengths_q) +
         (p.packed_k() && p.lengths_k != p.lengths_q ? "/" + lengths_text(p.lengths_k) : "");
}

bool read_packed(Reading& r, const Word& w) {
  const auto value = w.value();
  if (!value) return false;
  r.p.varlen = true;
  std::tie(r.p.total_q, r.p.total_k) = w.pair(*value, ':', true, "packed=total_q:total_k");
  return true;
}
std::string packed_text(const Problem& p) {
  const bool follows =
      !p.lengths_q.empty() && sum(p.lengths_q) == p.total_q && (p.packed_k() ? sum(p.lengths_k) : 0) == p.total_k;
  return p.varlen && !follows ? "=" + number(p.total_q) + ":" + number(p.total_k) : "";
}

bool read_pages(Reading& r, const Word& w) {  // paged:16[:pages:pages of a sequence]
  constexpr const char* kForm = "kv=paged:page_size[:pages:pages of a sequence]";
  const auto value = w.value();
  if (!value) return false;
  const auto items = w.list(*value, ':');
  if ((items.size() != 2 && items.size() != 4) || items[0] != "paged") w.fail(kForm);
  r.p.page_size = w.number<std::int64_t>(items[1], kForm);
  if (r.p.page_size < 1) w.fail(kForm);
  if (r.own_pages = items.size() == 4; r.own_pages) {
    r.p.pages = w.number<std::int64_t>(items[2], kForm);
    r.p.max_pages = w.number<std::int64_t>(items[3], kForm);
  }
  return true;
}
std::string pages_text(const Problem& p) {
  if (!p.paged()) return "";
  const std::int64_t needed = pages_for(p.seq_k, p.page_size);
  const bool plain = p.max_pages == needed && p.pages == p.batch * needed;
  return "=paged:" + number(p.page_size) + (plain ? "" : ":" + number(p.pages) + ":" + number(p.max_pages));
}

bool read_used(Reading& r, const Word& w) {
  const auto value = w.value();
  r.p.seqused = true;
  if (value) r.used = w.lengths(*value);
  return true;
}

std::string used_text(const Problem& p) {
  return !p.seqused ? "" : p.lengths_k.empty() ? kAlone : "=" + lengths_text(p.lengths_k);
}

}  // namespace onepass
