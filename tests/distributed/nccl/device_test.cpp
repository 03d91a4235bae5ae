// Context-parallel attention over NCCL on all GPUs of this machine, a thread for each, beside one GPU. Ends with 77
// where there are fewer than two. LENGTH: also times a causal call of this length.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "algebra/numerics.hpp"
#include "onepass/context_parallel_attention.hpp"
#include "onepass/transport_nccl.hpp"

namespace {

using namespace onepass;
using context_parallel::Layout;
using context_parallel::Scheme;
using Index = std::int64_t;

void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess)
    throw Error(ErrorCode::device_failure, std::string(call) + ": " + cudaGetErrorString(result));
}

// A tensor on the current device.
class OnDevice {
 public:
  OnDevice(DType dtype, std::vector<Index> shape, int device) : tensor(nullptr, dtype, {}, {DeviceKind::cuda, device}) {
    tensor.rank = static_cast<int>(shape.size());
    Index step = 1;
    for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) tensor.shape[i] = shape[i], tensor.stride[i] = step;
    count = static_cast<std::size_t>(step);
    check(cudaMalloc(&tensor.data, std::max<std::size_t>(1, count * size_of(dtype))), "cudaMalloc");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(tensor.data); }

  void set(const std::vector<float>& values) {
    std::vector<std::byte> bytes(count * size_of(tensor.dtype));
    for (std::size_t i = 0; i < count; ++i) store_element(bytes.data(), tensor.dtype, static_cast<Index>(i), values[i]);
    check(cudaMemcpy(tensor.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<float> get() const {
    std::vector<std::byte> bytes(count * size_of(tensor.dtype));
    check(cudaMemcpy(bytes.data(), tensor.data, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = load_element(bytes.data(), tensor.dtype, static_cast<Index>(i));
    return values;
  }

  Tensor tensor;
  std::size_t count = 0;
};

constexpr Index kHeads = 32, kHeadsKv = 8, kDim = 128;

// Rows of whole [heads, length, dim] numbers.
std::vector<float> rows_of(const std::vector<float>& whole, Index heads, Index dim, const Layout& layout, Index rank) {
  std::vector<float> mine;
  for (Index h = 0; h < heads; ++h) {
    for (const auto& piece : layout.runs(rank)) {
      const auto* const from = whole.data() + (h * layout.length() + piece.positions.begin) * dim;
      mine.insert(mine.end(), from, from + piece.positions.size() * dim);
    }
  }
  return mine;
}

struct Call {
  OnDevice q, k, v, out, lse, dout, dq, dk, dv;
  AttentionTensors forward, backward;

  Call(Index rows, DType dtype, int device)
      : q(dtype, {1, kHeads, rows, kDim}, device),
        k(dtype, {1, kHeadsKv, rows, kDim}, device),
        v(dtype, {1, kHeadsKv, rows, kDim}, device),
        out(dtype, {1, kHeads, rows, kDim}, device),
        lse(DType::f32, {1, kHeads, rows}, device),
        dout(dtype, {1, kHeads, rows, kDim}, device),
        dq(dtype, {1, kHeads, rows, kDim}, device),
        dk(dtype, {1, kHeadsKv, rows, kDim}, device),
        dv(dtype, {1, kHeadsKv, rows, kDim}, device) {
    forward.q = q.tensor, forward.k = k.tensor, forward.v = v.tensor;
    forward.out = out.tensor, forward.lse = lse.tensor;
    backward = forward;
    backward.dout = dout.tensor;
    backward.dq = dq.tensor, backward.dk = dk.tensor, backward.dv = dv.tensor;
  }
};

// Normal numbers of bf16; from the millionth on they come again.
std::vector<float> draw(Index count, unsigned seed) {
  constexpr std::size_t kPeriod = 1000003;
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < kPeriod ? to_float(from_float<bf16>(normal(generator))) : values[i - kPeriod];
  return values;
}

// RMS difference by the RMS of the numbers.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += double(a[i] - b[i]) * double(a[i] - b[i]);
    all += double(b[i]) * double(b[i]);
  }
  return std::sqrt(squares / all);
}

double milliseconds(NcclTransport& transport, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  transport.wait(nullptr);
  std::vector<double> found;
  for (int row = 0; row < 3; ++row) {
    constexpr int kCalls = 5;
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) run();
    transport.wait(nullptr);
    found.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count() / kCalls);
  }
  std::sort(found.begin(), found.end());
  return found[1];
}

// A rank that does not come: the other one ends after the deadline, and does not hang.
bool late(ncclComm_t comm) {
  NcclTransport transport(comm, std::chrono::seconds(2));
  if (transport.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    transport.fail("it comes too late");
    return true;
  }
  std::vector<std::byte> mine(8), all(8 * static_cast<std::size_t>(transport.ranks()));
  std::string sentence = "nothing was thrown";
  const auto start = std::chrono::steady_clock::now();
  try {
    transport.all_gather(mine, all);
  } catch (const Error& error) {
    sentence = error.what();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("rank %d, with a rank that does not come: '%s' after %.1f s\n", transport.rank(), sentence.c_str(),
              seconds);
  return sentence == "another rank has not answered for 2000 ms" && seconds < 10;
}

// A communicator of this device alone.
class Alone {
 public:
  explicit Alone(int device) {
    if (ncclCommInitAll(&comm_, 1, &device) != ncclSuccess)
      throw Error(ErrorCode::device_failure, "ncclCommInitAll has failed");
    transport.emplace(comm_);
  }
  ~Alone() { ncclCommDestroy(comm_); }
  std::optional<NcclTransport> transport{};

 private:
  ncclComm_t comm_ = nullptr;
};

bool work(ncclComm_t comm, int device, Index timed) {
  check(cudaSetDevice(device), "cudaSetDevice");
  NcclTransport transport(comm, std::chrono::seconds(30));
  Alone alone(device);
  bool right = true;
  struct Kind {
    const char* name;
    DType dtype;
    Attention options;
    ContextParallel how;
    enum { flat, one_node, a_node_each } ranks = flat;
  };
  constexpr Index kLength = 2048;
  const Layout zigzag = Layout::zigzag(kLength, transport.ranks()),
               units = Layout::zigzag(kLength, transport.ranks(), 8);
  const std::vector<float> q = draw(kHeads * kLength * kDim, 1), k = draw(kHeadsKv * kLength * kDim, 2),
                           v = draw(kHeadsKv * kLength * kDim, 3), dout = draw(kHeads * kLength * kDim, 4);
  for (const Kind& kind :
       {Kind{"causal", DType::bf16, {.band = {.causal = true}}, {zigzag}},
        Kind{"causal, ring", DType::bf16, {.band = {.causal = true}}, {.layout = zigzag, .scheme = Scheme::ring}},
        Kind{"causal, ulysses", DType::bf16, {.band = {.causal = true}}, {.layout = zigzag, .scheme = Scheme::ulysses}},
        Kind{"causal, 4 groups", DType::bf16, {.band = {.causal = true}}, {.layout = zigzag, .head_groups = 4}},
        Kind{"causal, reproducible", DType::bf16, {.band = {.causal = true}}, {units, {}, true}},
        Kind{"causal, mesh of one node", DType::bf16, {.band = {.causal = true}}, {zigzag}, Kind::one_node},
        Kind{"causal, mesh of a node for each", DType::bf16, {.band = {.causal = true}}, {zigzag}, Kind::a_node_each},
        Kind{"window, fp16", DType::f16, {.band = {.causal = true, .left = 300}}, {zigzag}}}) {
    Call one(kLength, kind.dtype, device), mine(zigzag.count(transport.rank()), kind.dtype, device);
    one.q.set(q), one.k.set(k), one.v.set(v), one.dout.set(dout);
    const auto mine_of = [&](const std::vector<float>& whole, Index heads) {
      return rows_of(whole, heads, kDim, kind.how.layout, transport.rank());
    };
    mine.q.set(mine_of(q, kHeads)), mine.k.set(mine_of(k, kHeadsKv)), mine.v.set(mine_of(v, kHeadsKv));
    mine.dout.set(mine_of(dout, kHeads));
    attention(one.forward, kind.options);
    attention_backward(one.backward, kind.options);
    const auto both = [&](auto& ranks) {
      context_parallel_attention(ranks, kind.how, mine.forward, kind.options);
      context_parallel_attention_backward(ranks, kind.how, mine.backward, kind.options);
    };
    const MeshTransport one_node{transport, *alone.transport}, a_node_each{*alone.transport, transport};
    if (kind.ranks == Kind::flat)
      both(transport);
    else
      both(kind.ranks == Kind::one_node ? one_node : a_node_each);
    transport.wait(nullptr);
    for (const auto& [name, here, there, heads] : {std::tuple{"out", &mine.out, &one.out, kHeads},
                                                   {"dq", &mine.dq, &one.dq, kHeads},
                                                   {"dk", &mine.dk, &one.dk, kHeadsKv},
                                                   {"dv", &mine.dv, &one.dv, kHeadsKv}}) {
      const double error = difference(here->get(), mine_of(there->get(), heads));
      std::printf("rank %d, %s, %s: %.2e from one GPU\n", transport.rank(), kind.name, name, error);
      right &= error < 6e-3;  // both are rounded to 16 bits
    }
  }
  if (timed > 0) {
    const Layout layout = Layout::zigzag(timed, transport.ranks());
    Call one(timed, DType::bf16, device), mine(layout.count(transport.rank()), DType::bf16, device);
    for (Call* c : {&one, &mine}) {
      for (OnDevice* x : {&c->q, &c->k, &c->v, &c->dout}) x->set(draw(static_cast<Index>(x->count), 5));
    }
    const Attention causal{.band = {.causal = true}};
    const double single = milliseconds(transport, [&] { attention(one.forward, causal); }),
                 single_both = milliseconds(
                     transport, [&] { attention(one.forward, causal), attention_backward(one.backward, causal); });
    const auto forward = [&] { context_parallel_attention(transport, {layout}, mine.forward, causal); };
    const double many = milliseconds(transport, forward),
                 both = milliseconds(transport, [&] {
                   forward();
                   context_parallel_attention_backward(transport, {layout}, mine.backward, causal);
                 });
    std::printf(
        "rank %d, length %ld: one GPU %.2f, both %.2f ms; %d GPUs %.2f, both %.2f ms; share of linear %.1f, %.1f %%\n",
        transport.rank(), long(timed), single, single_both, transport.ranks(), many, both,
        100 * single / (transport.ranks() * many), 100 * single_both / (transport.ranks() * both));
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    std::puts("skipped: fewer than two CUDA devices");
    return 77;
  }
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(devices));
  if (ncclCommInitAll(comms.data(), devices, nullptr) != ncclSuccess) return 1;
  std::atomic<bool> right = true;
  std::vector<std::thread> threads;
  for (int d = 0; d < devices; ++d) {
    threads.emplace_back([&, d] {
      try {
        const ncclComm_t comm = comms[static_cast<std::size_t>(d)];
        if (!work(comm, d, argc > 1 ? std::atol(argv[1]) : 0) || !late(comm)) right = false;
      } catch (const std::exception& error) {
        std::printf("rank %d: %s\n", d, error.what());
        right = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return right ? 0 : 1;
}
