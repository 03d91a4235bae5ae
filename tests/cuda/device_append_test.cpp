// append_kv on a device: against a plain loop in float64 and, bit for bit, against the CPU. Needs a GPU.
#include "device_append.hpp"
#include "device.hpp"
#include "support/append_specs.hpp"

namespace onepass::check {
namespace {

using DeviceAppends = OnDevice<testing::Test>;

TEST_F(DeviceAppends, AreThePlainLoopAndTheCpusBits) {
  for (const AppendSpec& spec : append_specs()) {
    AppendCase c(spec), on_cpu(spec);
    DeviceAppend device(c);
    append_kv(device.tensors, spec.interleaved);
    device.fetch();
    append_kv(on_cpu.tensors, spec.interleaved);
    EXPECT_EQ(c.output_bytes(), on_cpu.output_bytes()) << spec.name;
    c.expect_right();
  }
}

// A token that the CPU refuses is known only to the device: it is left out, and all others are written.
TEST_F(DeviceAppends, LeaveOutWhatIsOutOfRange) {
  for (const bool odd : {false, true}) {
    AppendCase c(out_of_range_spec(odd));
    put_out_of_range(c);
    DeviceAppend device(c);
    append_kv(device.tensors);
    device.fetch();
    c.expect_right();
  }
}

TEST_F(DeviceAppends, LeaveOutSlotsOutOfRange) {
  for (const bool odd : {false, true}) {
    AppendCase c(slots_out_of_range_spec(odd));
    put_slots_out_of_range(c);
    DeviceAppend device(c);
    append_kv(device.tensors, true);
    device.fetch();
    c.expect_right();
  }
}

TEST_F(DeviceAppends, RefuseTensorsOfTheHost) {
  AppendCase c(append_specs().front());
  DeviceAppend device(c);
  device.tensors.cache_seqlens.device = {};
  EXPECT_THROW(append_kv(device.tensors), Error);
  device.fetch();
  c.expect_untouched();
}

}  // namespace
}  // namespace onepass::check
