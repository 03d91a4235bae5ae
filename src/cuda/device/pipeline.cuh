// A pipeline of stages in shared memory between one producer and its consumers. A stage goes round: the producer
// acquires it (empty), fills it by TMA, consumers wait for it (full), read it and release it.
#pragma once
#include "cuda/device/barrier.cuh"

#include "cuda/device/pipeline.hpp"

namespace onepass {

// A warp arrives at a barrier once, by one lane, behind what all of its lanes have done. compute-sanitizer's racecheck
// takes a lane's access for done only where that lane has arrived itself: for it, all do (tests/cuda/sanitize.sh).
#ifdef ONEPASS_EVERY_LANE_ARRIVES
constexpr u32 kWarpArrivals = 32;
#else
constexpr u32 kWarpArrivals = 1;
#endif
DEV void warp_arrive(u32 bar, bool arrives) {
  if (kWarpArrivals == 32 || arrives) mbar_arrive(bar);
}

// Position in a ring of kStages stages: the stage's index and its barriers' parity.
template <int kStages>
struct PipelineState {
  u32 slot = 0, parity = 0;
  DEV void advance() {
    if (kStages <= 1)
      parity ^= 1;
    else if (++slot == kStages)
      slot = 0, parity ^= 1;
  }
};

// One side's view of the pipeline. `base`: the address of shared memory; `part`: where a stage has a part for each of
// several consumers, which one this is.
template <PipelineLayout layout>
struct Pipeline {
  u32 base, part = 0;
  PipelineState<layout.stages> state{};
  bool tested = false;

  DEV u32 index() const { return layout.parts == 1 ? state.slot : state.slot * layout.parts + part; }
  DEV u32 stage() const { return base + layout.data + index() * layout.bytes; }
  DEV u32 full() const { return base + layout.full + kBarrierBytes * index(); }
  DEV u32 empty() const { return base + layout.empty + kBarrierBytes * index(); }

  // The stage for iteration i, for callers that keep their own counter.
  DEV Pipeline at(u32 i) const {
    Pipeline use = *this;
    use.state = {i % layout.stages, i / layout.stages % 2};
    return use;
  }

  // By one thread, before anyone uses it. consumers: warps that release a stage; producers: that fill it, 0: one
  // thread.
  DEV void init(u32 consumers, u32 producers = 0) const {
    for (i32 i = 0; i < layout.count(); ++i) {
      mbar_init(base + layout.full + kBarrierBytes * i, producers == 0 ? 1 : producers * kWarpArrivals);
      mbar_init(base + layout.empty + kBarrierBytes * i, consumers * kWarpArrivals);
    }
  }

  // Producer: the stage may be written. It fills it, with arrivals at full(), and goes on with advance().
  DEV void acquire() const { mbar_wait(empty(), state.parity ^ 1); }
  DEV void wait_released() const { mbar_wait(empty(), state.parity); }  // by the consumers, at this use
  DEV bool try_acquire() const { return mbar_try(empty(), state.parity ^ 1); }
  DEV bool try_wait_released() const { return mbar_try(empty(), state.parity); }
  DEV void advance() { state.advance(); }

  // Consumer: the stage's data has come. test_wait() asks ahead of time; wait_tested() waits only where that was too
  // early.
  DEV void wait() const { mbar_wait(full(), state.parity); }
  DEV bool try_wait() const { return mbar_try(full(), state.parity); }
  DEV void test_wait() { tested = mbar_try(full(), state.parity); }
  DEV void wait_tested() const {
    if (!tested) wait();
  }
  // One lane of a warp arrives for all of them, which have read the stage. Goes on to the next stage.
  DEV void release(bool arrives) {
    warp_arrive(empty(), arrives);
    advance();
  }
};

}  // namespace onepass
