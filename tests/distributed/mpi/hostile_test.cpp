// Lengths below the number of ranks, keys that are NaN, ranks that disagree, fail, come late or end.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cases.hpp"
#include "support/sentence.hpp"
#include "tests.hpp"

namespace onepass::test {
namespace {

using namespace std::chrono_literals;

int rank_of_world() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

bool near(Results& a, Results& b, const char* name) {
  bool right = true;
  Results::each([&](const char* what, Array Results::* x) {
    for (std::size_t i = 0; i < (a.*x).count(); ++i) {
      const float here = (a.*x).at(i), there = (b.*x).at(i);
      if (here == there || std::abs(here - there) <= 1e-5f * std::max(1.0f, std::abs(there))) continue;
      if (right) std::printf("%s, %s[%zu]: %g in place of %g\n", name, what, i, double(here), double(there));
      right = false;
    }
  });
  return right;
}

bool is(const std::string& got, const std::string& wanted) {
  if (got == wanted) return true;
  std::printf("rank %d: '%s' in place of '%s'\n", rank_of_world(), got.c_str(), wanted.c_str());
  return false;
}

Case small() { return {.name = "small", .length = 40, .options = {.band = {.causal = true}}}; }

// Throws after some loops, or ends the process: a call is under way, and other ranks wait for this one.
class Failing final : public Executor {
 public:
  explicit Failing(bool ends, int after = 1) : ends_(ends), after_(after) {}
  int workers() const override { return 1; }
  void parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) override {
    if (++loops_ > after_ && ends_) std::_Exit(3);
    if (loops_ > after_) throw Error(ErrorCode::internal, "this executor does not work");
    serial_executor().parallel_for(tasks, body, context);
  }

 private:
  const bool ends_;
  const int after_;
  int loops_ = 0;
};

}  // namespace

bool few_rows() {
  MpiTransport transport(MPI_COMM_WORLD);
  bool right = true;
  for (const Index length : {Index{0}, Index{1}, Index{transport.ranks()} - 1, Index{transport.ranks()} + 1}) {
    for (const bool sinks : {false, true}) {
      const Case c{.name = "few",
                   .length = length,
                   .options = {.band = {.causal = true}},
                   .sinks = sinks,
                   .bias = sinks && length != 1};
      Results one = one_device(c, c.dtype, "");
      for (const auto& [name, layout] : layouts_of(length, transport.ranks(), {})) {
        for (const Scheme scheme : {Scheme::gather, Scheme::ring, Scheme::ulysses}) {
          if (scheme == Scheme::ulysses && c.bias) continue;  // it has rows
          Mine mine(c, layout, transport.rank());
          for (Array* x : {&mine.results.dsinks, &mine.results.dbias}) {  // a rank without rows has zeros to write
            for (std::size_t i = 0; i < x->count(); ++i) x->set(i, NAN);
          }
          mine.run(transport, {.layout = layout, .scheme = scheme}, c);
          Results all = together(mine.results, c, layout, transport.rank(), MPI_COMM_WORLD);
          right &= near(
              all, one,
              (name + ", " + std::string(name_of(scheme)) + " of " + std::to_string(length) + (sinks ? ", sinks" : ""))
                  .c_str());
        }
      }
    }
  }
  return right;
}

// Under a window on contiguous shards, the last shard's keys are NaN: rows of the first ranks, and their gradients, are
// as without.
bool unseen_nan() {
  MpiTransport transport(MPI_COMM_WORLD);
  const Case c{.name = "nan", .options = {.band = {.causal = true, .left = 4}}};
  const Layout layout = Layout::contiguous(c.length, transport.ranks());
  const auto run = [&](Scheme scheme, bool poisoned) {
    Mine mine(c, layout, transport.rank());
    if (poisoned && transport.rank() == transport.ranks() - 1) {
      for (Array* x : {&mine.in.k, &mine.in.v}) {
        for (std::size_t i = 0; i < x->count(); ++i) x->set(i, std::numeric_limits<float>::quiet_NaN());
      }
    }
    mine.run(transport, {.layout = layout, .scheme = scheme}, c);
    return std::move(mine.results);
  };
  const int from_the_last = transport.ranks() - 1 - transport.rank();
  bool right = true;
  for (const Scheme scheme : {Scheme::gather, Scheme::ring, Scheme::ulysses}) {
    Results clean = run(scheme, false), poisoned = run(scheme, true);
    if (from_the_last == 0) {
      right &= std::isnan(poisoned.out.at(0)) && std::isnan(poisoned.row_max.at(0));
      continue;
    }
    if (from_the_last == 1) poisoned.dk = clean.dk, poisoned.dv = clean.dv;  // rows of the last rank see these keys
    right &= near(poisoned, clean, (std::string(name_of(scheme)) + " with NaN elsewhere").c_str());
  }
  return right;
}

bool differ() {
  MpiTransport transport(MPI_COMM_WORLD);
  const Case c = small();
  const Layout layout = Layout::zigzag(c.length, transport.ranks());
  const int last = transport.ranks() - 1;
  const std::string who = "rank " + std::to_string(last);
  const bool me = transport.rank() == last;
  bool right = true;
  const auto expect = [&](const std::string& wanted, const auto& change, Scheme scheme = Scheme::gather) {
    Mine mine(c, layout, transport.rank());
    for (std::size_t i = 0; i < mine.results.out.count(); ++i) mine.results.out.set(i, 7);
    ContextParallel how{.layout = layout, .scheme = scheme};
    Attention options = c.options;
    AttentionTensors tensors = without_gradients(mine.tensors);
    if (me) change(tensors, options, how);
    right &= is(sentence_of([&] { context_parallel_attention(transport, how, tensors, options); }), wanted);
    for (std::size_t i = 0; i < mine.results.out.count(); ++i) right &= mine.results.out.at(i) == 7;
  };
  const std::string rows = std::to_string(layout.count(last)), fewer = std::to_string(layout.count(last) - 1);
  expect(who + ": q must have " + rows + " rows, as layout gives this rank (got " + fewer + ")",
         [](auto& t, auto&, auto&) { --t.q.shape[2]; });
  expect(
      "shapes of q, k and v must be the same on all ranks (rank 0 has [1, 4, rows, 16], [1, 2, rows, 16], [1, 2, rows, "
      "24], " +
          who + " has [1, 2, rows, 16], [1, 2, rows, 16], [1, 2, rows, 24])",
      [](auto& t, auto&, auto&) { t.q.shape[1] = t.out.shape[1] = t.lse.shape[1] = t.row_max.shape[1] = 2; });
  expect("band must be the same on all ranks (rank 0 has -1:0, " + who + " has -1:-1)",
         [](auto&, auto& options, auto&) { options.band.causal = false; });
  const std::string before = "scale default, softcap 0, dropout_p 0, seed 0",
                    behind = ", score_mod '', mask_mod '', reproducible 0";
  const auto expect_options = [&](const std::string& words, const auto& change) {
    expect("options must be the same on all ranks (rank 0 has " + before + behind + ", " + who + " has " + before +
               words + behind + ")",
           [&](auto&, auto& options, auto&) { change(options); });
  };
  expect_options(", precision tf32", [](Attention& options) { options.precision = Precision::tf32; });
  expect_options(", deterministic", [](Attention& options) { options.deterministic = true; });
  expect(who + ": layout must be for " + std::to_string(transport.ranks()) + " ranks, as the transport has (got " +
             std::to_string(transport.ranks() + 1) + ")",
         [&](auto&, auto&, auto& how) { how.layout = Layout::zigzag(c.length, transport.ranks() + 1); });
  expect(who + ": out must not share memory with q",
         [](auto& t, auto&, auto&) { t.out.data = const_cast<void*>(t.q.data); });
  expect(who + ": an output must not overlap itself (out has stride 0 in dimension 2 of [1, 4, " + rows + ", 24])",
         [](auto& t, auto&, auto&) { t.out.stride[2] = 0; });
  expect("scheme must be the same on all ranks (rank 0 has gather, " + who + " has ring)",
         [](auto&, auto&, auto& how) { how.scheme = Scheme::ring; });
  expect(who + ": the scheme ring does not support reproducible", [](auto&, auto&, auto& how) {
    how.scheme = Scheme::ring;
    how.reproducible = true;
  });
  // Ranks compute the outputs of others.
  const std::string
      dtypes = "dtypes of out, lse, row_max, dout, dlse, dq, dk and dv must be the same on all ranks (rank 0 has ",
      forward = "none, none, none, none, none", all = "fp32, fp32, fp32, ";
  expect(
      dtypes + all + forward + ", " + who + " has fp32, none, fp32, " + forward + ")",
      [](auto& t, auto&, auto&) { t.lse = {}; }, Scheme::ulysses);
  expect(
      dtypes + all + forward + ", " + who + " has fp32, fp32, none, " + forward + ")",
      [](auto& t, auto&, auto&) { t.row_max = {}; }, Scheme::ulysses);
  expect(who + ": row_max must have " + rows + " rows, as layout gives this rank (got " + fewer + ")",
         [](auto& t, auto&, auto&) { --t.row_max.shape[2]; });
  expect(
      who + ": the scheme ulysses does not support a bias with rows; give [batch|1, heads|1, 1, length] (got [1, 1, " +
          rows + ", " + std::to_string(c.length) + "])",
      [&](auto& t, auto&, auto&) {
        static const std::vector<float> bias(static_cast<std::size_t>(c.length * c.length));
        t.bias = ConstTensor(bias.data(), DType::f32, {1, 1, layout.count(last), c.length});
      },
      Scheme::ulysses);
  expect(who + ": head_groups must be 1 or more (got 0)", [](auto&, auto&, auto& how) { how.head_groups = 0; });
  expect("scheme must be the same on all ranks (rank 0 has gather, " + who + " has gather of 2 head_groups)",
         [](auto&, auto&, auto& how) { how.head_groups = 2; });
  expect(
      who + ": the scheme ulysses does not support head_groups (got 2)",
      [](auto&, auto&, auto& how) { how.head_groups = 2; }, Scheme::ulysses);
  expect(who + ": context_parallel_attention does not support seqused_k", [](auto& t, auto&, auto&) {
    static const std::int32_t used = 3;
    t.seqused_k = ConstTensor(&used, DType::i32, {1});
  });
  Mine mine(c, layout, transport.rank());
  right &= is(sentence_of([&] {
                if (me)
                  context_parallel_attention_backward(transport, {layout}, of_backward(mine.tensors), c.options);
                else
                  context_parallel_attention(transport, {layout}, without_gradients(mine.tensors), c.options);
              }),
              "pass must be the same on all ranks (rank 0 has forward, " + who + " has gradients of k, v)");
  return right;
}

// A rank that MPI refuses: rank 1 has too little memory for what comes.
static bool refused_by_mpi() {
  MpiTransport transport(MPI_COMM_WORLD);
  const bool me = transport.rank() == 1;
  std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(transport.ranks()));
  const auto call = [&] {
    if (me) transport.all_gather(std::span(mine).first(4), std::span(all).first(all.size() / 2));
    for (int i = 0; i < 100; ++i) transport.all_gather(mine, all);
  };
  const std::string refusal = "an exchange of MPI failed: ", failed = "rank 1 has failed: " + refusal;
  const std::string first = sentence_of(call), second = sentence_of(call);
  const bool right = first.starts_with(me ? refusal : failed) &&
                     second.starts_with("the transport cannot be used any more: " + failed);
  if (!right) std::printf("rank %d: '%s', then '%s'\n", transport.rank(), first.c_str(), second.c_str());
  return right;
}

// It throws while the next shard is on its way.
static bool throws_in_a_ring() {
  MpiTransport transport(MPI_COMM_WORLD);
  Case c = small();
  c.length = 40000;  // more than MPI sends before the other rank asks for it
  const Layout layout = Layout::zigzag(c.length, transport.ranks());
  const bool me = transport.rank() == 1;
  Failing failing(false, 3);  // two copies into a message, which is under way, and a loop of attention
  c.options.band.left = 16;
  Mine mine(c, layout, transport.rank());
  const auto start = std::chrono::steady_clock::now();
  const std::string got = sentence_of([&] {
    for (int i = 0; i < 100; ++i)
      mine.run(transport, {.layout = layout, .scheme = Scheme::ring}, c,
               me ? static_cast<Executor&>(failing) : serial_executor());
  });
  return is(got, me ? "this executor does not work" : "rank 1 has failed: this executor does not work") &&
         std::chrono::steady_clock::now() - start < 10s;
}

bool throws() {
  MpiTransport transport(MPI_COMM_WORLD);
  const Case c = small();
  const Layout layout = Layout::zigzag(c.length, transport.ranks());
  Mine mine(c, layout, transport.rank());
  Failing failing(false);
  const bool me = transport.rank() == 1;
  const auto start = std::chrono::steady_clock::now();
  const auto call = [&] {
    for (int i = 0; i < 100; ++i)
      mine.run(transport, {layout}, c, me ? static_cast<Executor&>(failing) : serial_executor());
  };
  bool right =
      is(sentence_of(call), me ? "this executor does not work" : "rank 1 has failed: this executor does not work");
  right &= std::chrono::steady_clock::now() - start < 5s;
  right &= throws_in_a_ring();
  right &= refused_by_mpi();
  return right &
         is(sentence_of(call), "the transport cannot be used any more: rank 1 has failed: this executor does not work");
}

// One rank of four with another call, and one that throws in mid-call: all ranks throw.
bool mesh_differs() {
  MpiMesh mesh(2);
  const MeshTransport transport = mesh.transport();
  const Case c = small();
  const Layout layout = Layout::zigzag(c.length, 4);
  const bool me = mesh.rank() == 2;
  Mine mine(c, layout, mesh.rank());
  bool right = true;
  const auto expect = [&](const std::string& wanted, const auto& change) {
    ContextParallel how{.layout = layout};
    AttentionTensors tensors = without_gradients(mine.tensors);
    if (me) change(tensors, how);
    right &= is(sentence_of([&] { context_parallel_attention(transport, how, tensors, c.options); }), wanted);
  };
  const std::string rows = std::to_string(layout.count(2)), fewer = std::to_string(layout.count(2) - 1);
  expect("rank 2: q must have " + rows + " rows, as layout gives this rank (got " + fewer + ")",
         [](auto& t, auto&) { --t.q.shape[2]; });
  expect("rank 2: layout must be for 4 ranks, as the transport has (got 2)",
         [&](auto&, auto& how) { how.layout = Layout::zigzag(c.length, 2); });
  expect("rank 2: a mesh does not support the scheme ring", [](auto&, auto& how) { how.scheme = Scheme::ring; });
  expect("rank 2: a mesh does not support head_groups (got 2)", [](auto&, auto& how) { how.head_groups = 2; });
  expect("rank 2: a mesh does not support reproducible", [](auto&, auto& how) { how.reproducible = true; });
  Failing failing(false);
  const std::string got = sentence_of([&] {
    for (int i = 0; i < 100; ++i)
      mine.run(transport, {layout}, c, me ? static_cast<Executor&>(failing) : serial_executor());
  });
  if (!got.ends_with("this executor does not work")) right &= is(got, "... this executor does not work");
  return right;
}

bool late() {
  const Case c = small();
  const auto start = std::chrono::steady_clock::now();
  MpiTransport transport(MPI_COMM_WORLD, 500ms);
  if (transport.rank() == 1) {
    std::this_thread::sleep_for(1500ms);
    return true;
  }
  const Layout layout = Layout::zigzag(c.length, transport.ranks());
  Mine mine(c, layout, transport.rank());
  const std::string got = sentence_of([&] { mine.run(transport, {layout}, c); });
  return is(got, "rank 1 has not answered for 0.500 seconds") && std::chrono::steady_clock::now() - start < 5s;
}

bool exits() {
  MpiTransport transport(MPI_COMM_WORLD);
  const Case c = small();
  const Layout layout = Layout::zigzag(c.length, transport.ranks());
  Mine mine(c, layout, transport.rank());
  Failing failing(true);
  for (int i = 0; i < 100; ++i)
    mine.run(transport, {layout}, c, transport.rank() == 1 ? static_cast<Executor&>(failing) : serial_executor());
  return false;  // mpirun ends this process
}

bool two_at_once() {
  MpiTransport first(MPI_COMM_WORLD), second(MPI_COMM_WORLD);
  bool right[2] = {true, true};
  const auto work = [&](MpiTransport& transport, bool& fine, unsigned seed) {
    const Case c{.name = "thread", .length = 30 + 20 * seed, .options = {.band = {.causal = seed > 0}}};
    const Layout layout = Layout::zigzag(c.length, transport.ranks());
    Results one = one_device(c, c.dtype, "");
    for (int i = 0; i < 5; ++i) {
      Mine mine(c, layout, transport.rank());
      mine.run(transport, {layout}, c);
      each_element(one.out.shape(), 2, layout.runs(transport.rank()), [&](std::size_t whole, std::size_t here) {
        fine &= std::abs(one.out.at(whole) - mine.results.out.at(here)) < 1e-5f;
      });
    }
  };
  std::thread other([&] { work(second, right[1], 1); });
  work(first, right[0], 0);
  other.join();
  return right[0] && right[1];
}

bool groups() {
  const int rank = rank_of_world();
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);  // the highest rank of each is its rank 0
  bool right = true;
  {
    MpiTransport everybody(MPI_COMM_WORLD), transport(half);
    for (int i = 0; i < 3; ++i) {
      for (MpiTransport* of : {&transport, &everybody}) {
        const Case c{
            .name = "group", .length = of == &everybody ? 40 : 50 + 9 * (rank % 2), .options = {.band = {.left = 9}}};
        const Layout layout = Layout::contiguous(c.length, of->ranks());
        Results one = one_device(c, c.dtype, "");
        Mine mine(c, layout, of->rank());
        mine.run(*of, {layout}, c);
        each_element(one.dk.shape(), 2, layout.runs(of->rank()), [&](std::size_t whole, std::size_t here) {
          right &= std::abs(one.dk.at(whole) - mine.results.dk.at(here)) < 1e-4f;
        });
      }
    }
  }
  MPI_Comm_free(&half);
  return right;
}

}  // namespace onepass::test
