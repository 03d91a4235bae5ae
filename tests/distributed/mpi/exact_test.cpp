// Results on any number of ranks beside those of one device, both against float64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "base/text.hpp"
#include "cases.hpp"
#include "tests.hpp"

namespace onepass::test {
namespace {

const std::vector<Index> kDocuments{0, 1, 17, 17, 50, 75};

std::vector<Case> cases() {
  const Band causal{.causal = true}, window{.causal = true, .left = 11}, both{.left = 13, .right = 5};
  std::vector<Case> found;
  for (const auto& [name, band] :
       {std::pair{"full", Band{}}, {"causal", causal}, {"window", window}, {"both sides", both}}) {
    found.push_back({.name = name, .options = {.band = band}});
    found.push_back({.name = std::string(name) + ", documents", .documents = kDocuments, .options = {.band = band}});
  }
  found.push_back({.name = "sinks, dlse", .options = {.band = causal}, .sinks = true, .dlse = true});
  found.push_back({.name = "sinks, documents", .documents = kDocuments, .options = {.band = both}, .sinks = true});
  found.push_back({.name = "alibi", .options = {.band = {.causal = true, .left = 30}}, .slopes = true});
  found.push_back({.name = "alibi, documents", .documents = kDocuments, .slopes = true});
  found.push_back({.name = "softcap", .options = {.band = causal, .scale = 0.3, .softcap = 2.0f}});
  found.push_back({.name = "bias", .bias = true});
  found.push_back({.name = "bias of keys", .options = {.band = causal}, .bias_of_keys = true});
  found.push_back({.name = "mask", .options = {.band = causal}, .mask = true});
  Attention dropout{.band = causal, .dropout_p = 0.3f, .seed = 11};
  found.push_back({.name = "dropout", .options = dropout});
  found.push_back({.name = "dropout, documents", .documents = kDocuments, .options = dropout, .batch = 2});
  Attention mods{.band = causal};
  mods.score_mod = "score - 0.05f * (head + 1) * abs(q_index - k_index)";
  mods.mask_mod = "(q_index + 2 * k_index) % 3 != 0 || q_index == k_index";
  found.push_back({.name = "expressions", .options = mods});
  found.push_back({.name = "expressions, documents", .documents = kDocuments, .options = mods});
  found.push_back({.name = "bf16", .options = {.band = causal}, .dtype = DType::bf16, .batch = 2});
  found.push_back(
      {.name = "bf16, documents", .documents = kDocuments, .options = {.band = causal}, .dtype = DType::bf16});
  found.push_back({.name = "fp16, window", .options = {.band = window}, .sinks = true, .dtype = DType::f16});
  found.push_back({.name = "one K/V head", .options = {.band = causal}, .heads_kv = 1});
  // Groups of 5 heads: two and three ranks share a K/V head, and 7 ranks have one or two heads.
  found.push_back({.name = "10 heads", .options = mods, .sinks = true, .slopes = true, .dlse = true, .heads = 10});
  found.push_back({.name = "6 heads",
                   .options = dropout,
                   .bias_of_keys = true,
                   .dtype = DType::bf16,
                   .batch = 2,
                   .heads = 6,
                   .heads_kv = 3});
  return found;
}

// Sums of squares: of the errors of many ranks and of one device, and of the right numbers.
struct Errors {
  double many = 0, one = 0, right = 0;
  void add(double x, double one_device, double reference) {
    if (std::isinf(reference)) {  // the LSE of a row without keys
      if (x != reference) many = INFINITY;
      return;
    }
    many += (x - reference) * (x - reference);
    one += (one_device - reference) * (one_device - reference);
    right += reference * reference;
  }
  void add(Array& x, Array& one_device, Array& reference) {
    for (std::size_t i = 0; i < x.count(); ++i) add(double(x.at(i)), double(one_device.at(i)), double(reference.at(i)));
  }
  double ratio() const { return one > 0 ? std::sqrt(many / one) : many > 0 ? INFINITY : 1; }
};

using ByName = std::map<std::string, Errors>;

// The errors of a case, by the name of the result. ranks: all, as a Transport or as a MeshTransport.
template <class Ranks>
ByName errors_of(const Case& c, const ContextParallel& how, Ranks& ranks, int rank, Results& one, Results& reference) {
  Mine mine(c, how.layout, rank);
  mine.run(ranks, how, c);
  Results all = together(mine.results, c, how.layout, rank, MPI_COMM_WORLD);
  ByName found;
  Results::each([&](const char* what, Array Results::* x) {
    if ((all.*x).given()) found[what].add(all.*x, one.*x, reference.*x);
  });
  return found;
}

// how: the scheme and layout in words.
bool judged(const Case& c, const std::string& how, const ByName& errors, int rank) {
  bool right = true;
  for (const auto& [what, e] : errors) {
    // In fp32 a case is one draw of few numbers, which round either way. dsinks and dslopes are four numbers, sums of
    // many terms that nearly cancel.
    const bool four = what == "dsinks" || what == "dslopes";
    const bool in_fp32 = c.dtype == DType::f32 || what == "row_max" || what == "lse";
    const bool fine = in_fp32 ? std::sqrt(e.many) <= (four ? 4e-6 : 1e-6) * std::sqrt(e.right) + 1e-6
                              : e.ratio() <= (four ? 1.2 : 1.05);
    right &= fine;
    if (!fine && rank == 0)
      std::printf("%s, %s, %s: error %.3g, one device's %.3g\n", c.name.c_str(), how.c_str(), what.c_str(),
                  std::sqrt(e.many), std::sqrt(e.one));
  }
  return right;
}

}  // namespace

// The layouts on which a scheme computes a case.
static std::vector<std::pair<std::string, Layout>> layouts_for(const Case& c, Index ranks, Scheme scheme) {
  if (scheme == Scheme::ulysses && (c.bias || c.mask)) return {};  // they have rows
  if (scheme != Scheme::ring || c.options.dropout_p == 0) return layouts_of(c.length, ranks, c.documents);
  if (!c.documents.empty()) return {};  // they begin anywhere, and draws come by fours
  return {{"zigzag by fours", Layout::zigzag(c.length, ranks, 0, 4)}};
}

bool features() {
  MpiTransport transport(MPI_COMM_WORLD);
  bool right = true;
  for (const Case& c : cases()) {
    Results one = one_device(c, c.dtype, ""), reference = one_device(c, DType::f32, "reference");
    for (const auto& [scheme, groups] :
         {std::pair{Scheme::gather, 1}, {Scheme::gather, 2}, {Scheme::ring, 1}, {Scheme::ulysses, 1}}) {
      for (const auto& [name, layout] : layouts_for(c, transport.ranks(), scheme)) {
        if (groups > 1 && name != "any") continue;
        const ContextParallel how{.layout = layout, .documents = c.documents, .scheme = scheme, .head_groups = groups};
        right &= judged(c, text(name_of(scheme), " in ", groups, " groups, ", name),
                        errors_of(c, how, transport, transport.rank(), one, reference), transport.rank());
      }
    }
  }
  return right;
}

bool mesh() {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bool right = true;
  for (int within = 1; within <= ranks; ++within) {
    if (ranks % within != 0) continue;
    MpiMesh mesh(within);
    const MeshTransport transport = mesh.transport();
    for (const Case& c : cases()) {
      if ((within == 1 || within == ranks) && c.name != "causal") continue;  // gather or ulysses alone
      Results one = one_device(c, c.dtype, ""), reference = one_device(c, DType::f32, "reference");
      for (const auto& [name, layout] : layouts_for(c, ranks, Scheme::ulysses)) {
        if (name == "contiguous") continue;
        const ContextParallel how{.layout = layout, .documents = c.documents};
        right &= judged(c, text("nodes of ", within, ", ", name),
                        errors_of(c, how, transport, mesh.rank(), one, reference), mesh.rank());
      }
    }
  }
  return right;
}

bool exact() {
  MpiTransport transport(MPI_COMM_WORLD);
  ByName pooled;
  const Band bands[] = {{}, {.causal = true}, {.causal = true, .left = 60}};
  for (unsigned draw = 0; draw < 4; ++draw) {
    for (const Band& band : bands) {
      const Case c{.name = "exact", .length = 300, .options = {.band = band}, .dim = 32, .dim_v = 32, .draw = draw};
      Results one = one_device(c, c.dtype, ""), reference = one_device(c, DType::f32, "reference");
      for (const Scheme scheme : {Scheme::gather, Scheme::ring, Scheme::ulysses}) {
        const Layout layout = Layout::zigzag(c.length, transport.ranks());
        for (const auto& [what, e] :
             errors_of(c, {.layout = layout, .scheme = scheme}, transport, transport.rank(), one, reference)) {
          Errors& all = pooled[std::string(name_of(scheme)) + " " + what];
          all.many += e.many, all.one += e.one;
        }
      }
    }
  }
  bool right = true;
  for (const auto& [what, e] : pooled) {
    if (transport.rank() == 0)
      std::printf("%d ranks, fp32, %s: %.3f of one device's error\n", transport.ranks(), what.c_str(), e.ratio());
    // A ring's O is merged by LSEs that are rounded to fp32: docs/notes/context-parallel.md.
    right &= e.ratio() <= (what == "ring out" ? 1.08 : 1.05);
  }
  return right;
}

bool fp8() {
  MpiTransport transport(MPI_COMM_WORLD);
  bool right = true;
  for (const Case& c :
       {Case{.name = "causal", .options = {.band = {.causal = true}}, .dtype = DType::f8e4m3, .dim = 64, .dim_v = 64},
        Case{.name = "documents", .documents = kDocuments, .dtype = DType::f8e4m3}}) {
    Array q_descale = random_array(DType::f32, {1, c.heads}, 21, 0.1f),
          v_descale = random_array(DType::f32, {1, 1}, 22);
    const auto factors = [&](AttentionTensors t) {
      t.q_descale = q_descale.tensor(), t.v_descale = v_descale.tensor();
      return without_gradients(t);
    };
    const auto run = [&](Transport& by, const Layout& layout, Scheme scheme) {
      Mine mine(c, layout, by.rank());
      mine.results = new_results(c, layout.count(by.rank()), DType::f32, mine.in, 1);
      mine.tensors = factors(tensors_of(mine.in, mine.results));
      context_parallel_attention(by, {.layout = layout, .documents = c.documents, .scheme = scheme}, mine.tensors,
                                 c.options, {.executor = &serial_executor()});
      return std::move(mine.results);
    };
    Inputs in(c, c.dtype);
    Results reference = new_results(c, c.length, DType::f32, in, c.length);
    const std::vector<Index> documents = c.documents.empty() ? std::vector<Index>{0, c.length} : c.documents;
    for (std::size_t d = 0; d + 1 < documents.size(); ++d)
      attention(document_of(factors(tensors_of(in, reference)), {documents[d], documents[d + 1]}), c.options,
                {.executor = &serial_executor()}, "reference");
    MpiTransport alone(MPI_COMM_SELF);
    Results one = run(alone, Layout::contiguous(c.length, 1), Scheme::gather);  // documents in one call, too
    Case whole = c;
    whole.dtype = DType::f32;
    for (const Scheme scheme : {Scheme::gather, Scheme::ring, Scheme::ulysses}) {
      const Layout layout = Layout::zigzag(c.length, transport.ranks());
      Results mine = run(transport, layout, scheme);
      Results all = together(mine, whole, layout, transport.rank(), MPI_COMM_WORLD);
      Errors out, lse, row_max;
      out.add(all.out, one.out, reference.out), lse.add(all.lse, one.lse, reference.lse);
      row_max.add(all.row_max, one.row_max, reference.row_max);
      const bool exact = lse.many <= 1e-12 * lse.right && row_max.many <= 1e-12 * row_max.right;
      const bool fine = out.ratio() <= 1.05 && exact && out.right > 0;
      if (!fine)
        std::printf("%s, %s: out %.3f of one device's error, lse %.3g of %.3g, row_max %.3g of %.3g\n", c.name.c_str(),
                    name_of(scheme).data(), out.ratio(), lse.many, lse.right, row_max.many, row_max.right);
      right &= fine;
    }
  }
  return right;
}

bool reproducible() {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  bool right = true;
  for (Case c :
       {Case{.name = "causal", .options = {.band = {.causal = true}}, .sinks = true, .dlse = true},
        Case{.name = "window", .options = {.band = {.left = 13, .right = 5}}, .dtype = DType::bf16, .batch = 2},
        Case{.name = "documents", .documents = kDocuments, .options = {.band = {.causal = true}}},
        Case{.name = "dropout", .options = {.dropout_p = 0.3f, .seed = 3}}}) {
    std::vector<Results> found;
    std::vector<int> counts;
    for (int n = 1; n <= ranks; ++n) {  // the first n ranks
      MPI_Comm some = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, rank < n ? 0 : MPI_UNDEFINED, rank, &some);
      if (some == MPI_COMM_NULL) continue;
      {
        MpiTransport transport(some);
        const Layout layout = Layout::zigzag(c.length, n, 14);
        Mine mine(c, layout, rank);
        mine.run(transport, {layout, c.documents, true}, c);
        found.push_back(together(mine.results, c, layout, rank, some));
        counts.push_back(n);
      }
      MPI_Comm_free(&some);
    }
    for (std::size_t i = 1; i < found.size(); ++i) {
      Results::each([&](const char* what, Array Results::* x) {
        if (std::string_view(what) == "dsinks") return;  // a sum that the caller adds up
        Array &here = found[i].*x, &there = found[0].*x;
        const bool same = std::equal(here.data(), here.data() + here.bytes(), there.data());
        if (!same)
          std::printf("%s, %s: other bits on %d ranks than on %d\n", c.name.c_str(), what, counts[i], counts[0]);
        right &= same;
      });
    }
  }
  return right;
}

}  // namespace onepass::test
