// Launches from CUDA graphs, from several threads and on several devices give the bits of a launch alone. Needs a GPU.
#include <dlfcn.h>

#include <algorithm>
#include <latch>
#include <memory>

#include "base/text.hpp"
#include "device.hpp"
#include "device_append.hpp"
#include "support/sentence.hpp"

namespace onepass::check {
namespace {

using cuda::check_cuda, cuda::Result, cuda::Stream;

// Entry points of the driver that only these tests need; types as in cuda.h.
struct Graphs {
  using Graph = struct GraphHandle*;
  using Exec = struct ExecHandle*;
  template <class Call>
  static void find(Call*& call, const char* name) {
    call = reinterpret_cast<Call*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
    if (!call) throw Error(ErrorCode::unsupported, text("the driver has no ", name));
  }
  Graphs() {
    find(begin_capture, "cuStreamBeginCapture_v2");
    find(end_capture, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
    find(destroy_exec, "cuGraphExecDestroy");
    find(destroy, "cuGraphDestroy");
  }
  Result (*begin_capture)(Stream stream, int mode);
  Result (*end_capture)(Stream stream, Graph* graph);
  Result (*instantiate)(Exec* exec, Graph graph, unsigned long long flags);
  Result (*launch)(Exec exec, Stream stream);
  Result (*destroy_exec)(Exec exec);
  Result (*destroy)(Graph graph);
};
constexpr int kGlobal = 0;  // capture mode: no call that might synchronise is let through

// The graph of the work that launch() puts into a stream.
class Captured {
 public:
  template <class Launch>
  Captured(const Graphs& graphs, Stream stream, const Launch& launch) : graphs_(graphs) {
    check_cuda(graphs_.begin_capture(stream, kGlobal), "cuStreamBeginCapture");
    launch();
    check_cuda(graphs_.end_capture(stream, &graph_), "cuStreamEndCapture");
    check_cuda(graphs_.instantiate(&exec_, graph_, 0), "cuGraphInstantiateWithFlags");
  }
  ~Captured() {
    graphs_.destroy_exec(exec_);
    graphs_.destroy(graph_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay(Stream stream) const { check_cuda(graphs_.launch(exec_, stream), "cuGraphLaunch"); }

 private:
  const Graphs& graphs_;
  Graphs::Graph graph_ = nullptr;
  Graphs::Exec exec_ = nullptr;
};

// A problem on a device with memory and a stream of its own; the device's context is current while it lives.
class Launcher {
 public:
  Launcher(const std::string& line, const Implementation& row, int device = 0)
      : facts_(cuda::device_facts(device)),
        scope_(facts_),
        inputs_(make_inputs(parse_problem(line), 5, Distribution::rising)),
        mirror_(inputs_, device),
        plan_(decide(row, mirror_.problem())),
        workspace_(facts_, plan_.state->workspace_bytes, nullptr) {
    constexpr unsigned kNonBlocking = 1;  // not ordered with the default stream
    check_cuda(cuda::driver()->stream_create(&stream, kNonBlocking), "cuStreamCreate");
    poison();
  }
  ~Launcher() { cuda::driver()->stream_destroy(stream); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  void poison() {  // outputs and workspace
    mirror_.poison_outputs();
    check_cuda(cuda::driver()->memset8(reinterpret_cast<cuda::DevicePtr>(workspace_.data()), Buffer::kPoison,
                                       plan_.state->workspace_bytes, nullptr),
               "cuMemsetD8Async");
    wait(nullptr);
  }
  void reseed(std::int64_t seed) {  // of dropout, in the tensor that kernels read
    *Inputs::writable<std::int64_t>(inputs_.tensors.dropout_seed) = seed;
    inputs_.changed();
    check_cuda(cuda::driver()->copy_to_device(reinterpret_cast<cuda::DevicePtr>(mirror_.tensors().dropout_seed.data),
                                              &seed, sizeof seed, nullptr),
               "cuMemcpyHtoDAsync");
    wait(nullptr);
  }
  void launch() { launch(stream); }
  void launch(Stream on) { plan_.state->run(mirror_.tensors(), workspace_.data(), serial_executor(), on); }
  void prepare() { plan_.state->prepare(); }
  static void wait(Stream on) { check_cuda(cuda::driver()->stream_synchronize(on), "cuStreamSynchronize"); }
  std::string bytes() {
    wait(stream);
    return output_bytes(mirror_, inputs_);
  }
  std::string bytes_alone() {
    poison();
    launch();
    return bytes();
  }
  Verdict judged() { return judge(inputs_, serial_executor()); }

  Stream stream = nullptr;

 private:
  const cuda::DeviceFacts& facts_;
  cuda::ContextScope scope_;
  Inputs inputs_;
  DeviceMirror mirror_;
  Decision plan_;
  cuda::DeviceScratch workspace_;
};

std::vector<std::string> lines_of(std::initializer_list<const char*> shapes) {
  std::vector<std::string> lines;
  for (const char* line : shapes) test::expand(line, lines);
  return lines;
}

using DeviceGraphs = OnDevice<testing::Test>;

TEST_F(DeviceGraphs, ReplayGivesTheBitsOfALaunch) {
  const Graphs graphs;
  int replayed = 0;
  for (const std::string& line : lines_of({"b2 h4/2 s257x300 d64 {fp32|bf16} causal_bottom_right lse",
                                           "b2 h4/2 s200x500 d128 bf16 mask=11qk dropout=0.1 seed=3 lse",
                                           "h4/2 d64 {fp32|bf16} varlen=1,200,0,65,1/300,200,7,0,500 lse",
                                           "bwd b2 h4/2 s257x300 d{64|128|256} bf16 causal_bottom_right deterministic",
                                           "bwd b2 h4/2 s700x900 d{64|128} bf16 block_mask=1hqk deterministic",
                                           "bwd b2 h4/2 s257x300 d64 fp32 sinks grads=dq,dk,dv,dsinks deterministic",
                                           "bwd h4/2 d64 bf16 varlen=1,200,0,65,1/300,200,7,0,500 deterministic",
                                           "bwd_jvp b2 h4/2 s257x300 d64 {fp32|bf16} mask=11qk tdout",
                                           "merge n{2|100} b2 h4 s257 d128 bf16 lse"})) {
    for (const Implementation* row : takers_of(on_device(line))) {
      Launcher launcher(line, *row);
      const std::string alone = launcher.bytes_alone();
      const Captured captured(graphs, launcher.stream, [&] { launcher.launch(); });
      const Launcher elsewhere(line, *row);  // a graph may be launched on any stream
      for (int replay = 0; replay < 3; ++replay, ++replayed) {
        launcher.poison();
        captured.replay(elsewhere.stream);
        Launcher::wait(elsewhere.stream);
        EXPECT_TRUE(launcher.bytes() == alone) << row->name << " \"" << line << "\" replay " << replay;
      }
    }
  }
  EXPECT_GT(replayed, 0);
}

// A graph drops what the seed in its tensor says by then.
TEST_F(DeviceGraphs, AReplayReadsItsSeed) {
  const Graphs graphs;
  int replayed = 0;
  for (const std::string& line : lines_of({"b2 h4/2 s{1|257}x300 d{64|128} {fp32|bf16} dropout=0.3 dropout_seed lse",
                                           "jvp b2 h4/2 s257x300 d64 {fp32|bf16} dropout=0.3 dropout_seed"})) {
    for (const Implementation* row : takers_of(on_device(line))) {
      Launcher launcher(line, *row);
      std::string last = launcher.bytes_alone();
      const Captured captured(graphs, launcher.stream, [&] { launcher.launch(); });
      for (const std::int64_t seed : {1, -7}) {
        launcher.reseed(seed);
        launcher.poison();
        captured.replay(launcher.stream);
        const std::string bytes = launcher.bytes();
        EXPECT_FALSE(bytes == last) << row->name << " \"" << line << "\" has the masks of another seed than " << seed;
        const Verdict verdict = launcher.judged();
        EXPECT_TRUE(verdict.right) << row->name << " seed " << seed << ": " << verdict.sentence;
        last = bytes;
        ++replayed;
      }
    }
  }
  EXPECT_GT(replayed, 0);
}

// Lengths and slots are read on the device: a graph appends to where they say by then.
TEST_F(DeviceGraphs, AppendToThePlacesThatAReplayFinds) {
  const Graphs graphs;
  AppendSpec lengths{.name = "captured",
                     .dtype = DType::bf16,
                     .table = DType::bf16,
                     .heads_q = 4,
                     .dim_qk = 64,
                     .dim_v = 64,
                     .rotary_dim = 64,
                     .used = {3, 30},
                     .lengths = {1, 1},
                     .page_size = 8};
  AppendSpec slots = lengths;
  slots.used = {0}, slots.lengths = {9}, slots.slots = slots.joined = true;
  for (const AppendSpec& spec : {lengths, slots}) {
    AppendCase first(spec);
    DeviceAppend device(first);
    const cuda::ContextScope scope(cuda::device_facts(0));
    Stream stream = nullptr;
    check_cuda(cuda::driver()->stream_create(&stream, 1), "cuStreamCreate");
    append_kv(device.tensors, false, {.stream = stream});  // loads the kernel
    Launcher::wait(stream);
    const Captured captured(graphs, stream, [&] { append_kv(device.tensors, false, {.stream = stream}); });
    for (const std::int32_t used : {4, 15, 39}) {
      if (spec.slots) {
        auto* const of = static_cast<std::int64_t*>(const_cast<void*>(first.tensors.slot_mapping.data));
        std::rotate(of, of + 1, of + 9);
      } else {
        static_cast<std::int32_t*>(const_cast<void*>(first.tensors.cache_seqlens.data))[0] = used;
        first.spec.used[0] = used;
      }
      for (AppendCase::Memory& m : first.memory) (m.output ? m.bytes : m.before) = m.output ? m.before : m.bytes;
      device.upload();
      captured.replay(stream);
      Launcher::wait(stream);
      device.fetch();
      first.expect_right();
    }
    cuda::driver()->stream_destroy(stream);
  }
}

TEST_F(DeviceGraphs, CompilingInsideACaptureIsAnErrorThatBreaksNothing) {
  const Graphs graphs;
  for (const std::string& line :
       lines_of({"h2 s70x100 d168/200 {bf16|fp32} alibi sinks softcap=7 lse"})) {  // unused elsewhere
    for (const Implementation* row : takers_of(on_device(line))) {
      Launcher launcher(line, *row);
      check_cuda(graphs.begin_capture(launcher.stream, kGlobal), "cuStreamBeginCapture");
      const std::string sentence = test::sentence_of([&] { launcher.launch(); });
      EXPECT_NE(sentence.find("before capturing"), std::string::npos) << row->name << ": " << sentence;
      Graphs::Graph graph = nullptr;
      EXPECT_EQ(graphs.end_capture(launcher.stream, &graph), 0) << row->name;
      graphs.destroy(graph);
      launcher.bytes_alone();
      const Verdict verdict = launcher.judged();
      EXPECT_TRUE(verdict.right) << row->name << ": " << verdict.sentence;
    }
  }
}

// A prepared plan has nothing left to load: its first run may be captured.
TEST_F(DeviceGraphs, PreparedPlansAreCapturedAtOnce) {
  const Graphs graphs;
  for (const std::string& line :
       lines_of({"h2 s70x100 d152/184 {bf16|fp32} mask=11qk softcap=7 lse",
                 "bwd h2 s70x100 d152/184 {bf16|fp32} mask=11qk softcap=7", "b2 h24/1 s1x3000 d576/512 fp16 v_in_k lse",
                 "merge n3 h2 s70 d152 {bf16|fp32} lse"})) {  // unused elsewhere
    for (const Implementation* row : takers_of(on_device(line))) {
      Launcher launcher(line, *row);
      launcher.prepare();
      const Captured captured(graphs, launcher.stream, [&] { launcher.launch(); });
      launcher.poison();
      captured.replay(launcher.stream);
      launcher.bytes();
      const Verdict verdict = launcher.judged();
      EXPECT_TRUE(verdict.right) << row->name << ": " << verdict.sentence;
    }
  }
}

using DeviceThreads = OnDevice<testing::Test>;

// Two threads for each problem, so that some also compile the same kernel at once.
TEST_F(DeviceThreads, WithStreamsOfTheirOwnGetTheBitsOfALaunchAlone) {
  struct Task {
    std::string line;
    const Implementation* row;
  };
  std::vector<Task> tasks;
  for (const std::string& line :
       lines_of({"b2 h8/2 s{700|1}x900 d{48|112} {fp32|bf16} causal_bottom_right lse",
                 "b2 h4 s300x700 d128 fp16 mask=b1qk window=200:30 lse", "h4 s1000 d256 bf16 bias=bf16:11qk sinks lse",
                 "h4/2 d80 {fp32|bf16} varlen=1,200,0,65,1/300,200,7,0,500 dropout=0.2 seed=9 lse",
                 "b3 h8/2 s1x9000 d128 bf16 {|kv=paged:16 }seqused lse",
                 "b2 h80/1 s1x3000 d576/512 bf16 v_in_k {|kv=paged:1 }seqused lse"})) {  // parts that others merge
    for (const Implementation* row : takers_of(on_device(line))) tasks.insert(tasks.end(), 2, {line, row});
  }
  ASSERT_FALSE(tasks.empty());
  std::vector<std::unique_ptr<std::string[]>> found(tasks.size());
  constexpr int kRounds = 3, kLaunches = 20;
  std::latch ready(static_cast<std::ptrdiff_t>(tasks.size()));
  Findings findings;
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    threads.emplace_back([&, n] {
      const auto& [line, row] = tasks[n];
      found[n] = std::make_unique<std::string[]>(kRounds);
      bool waits = true;
      try {
        Launcher launcher(line, *row);
        waits = false;
        ready.arrive_and_wait();
        for (int round = 0; round < kRounds; ++round) {
          for (int i = 0; i < kLaunches; ++i) launcher.launch();
          found[n][round] = launcher.bytes();
          launcher.poison();
        }
      } catch (const Error& e) {
        findings.wrong(text(row->name, " \"", line, "\": ", e.what()));
        if (waits) ready.count_down();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t n = 0; n < tasks.size(); n += 2) {
    const auto& [line, row] = tasks[n];
    const std::string alone = Launcher(line, *row).bytes_alone();
    for (int i = 0; i < 2 * kRounds; ++i) {
      if (found[n + static_cast<std::size_t>(i % 2)][i / 2] == alone)
        findings.right(row->name);
      else
        findings.wrong(text(row->name, " \"", line, "\": other bits among other threads"));
    }
  }
  findings.report();
}

using Devices = OnDevice<testing::Test>;

TEST_F(Devices, TwoAtOnceGiveTheSameBits) {
  int count = 0;
  check_cuda(cuda::driver()->device_count(&count), "cuDeviceGetCount");
  if (count < 2) GTEST_SKIP() << "there is one CUDA device";
  if (cuda::device_facts(0).name != cuda::device_facts(1).name) GTEST_SKIP() << "the first two devices differ";
  Findings findings;
  for (const std::string& line : lines_of({"b2 h8/2 s700x900 d{64|128} {fp32|bf16} causal_bottom_right lse",
                                           "h4/2 s300x700 d64 bf16 mask=11qk dropout=0.1 seed=3 lse"})) {
    for (const Implementation* row : takers_of(on_device(line))) {
      std::string bytes[2];
      std::thread threads[2];
      for (int device = 0; device < 2; ++device)
        threads[device] = std::thread([&, device] {
          try {
            Launcher launcher(line, *row, device);
            for (int i = 0; i < 20; ++i) launcher.launch();
            bytes[device] = launcher.bytes();
            const Verdict verdict = launcher.judged();
            verdict.right ? findings.right(row->name) : findings.wrong(text("cuda:", device, ": ", verdict.sentence));
          } catch (const Error& e) {
            findings.wrong(text("cuda:", device, ": ", e.what()));
          }
        });
      for (std::thread& t : threads) t.join();
      if (bytes[0] != bytes[1]) findings.wrong(text(row->name, " \"", line, "\": the two devices differ"));
    }
  }
  findings.report();
}

}  // namespace
}  // namespace onepass::check
