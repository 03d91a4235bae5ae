// Errors of the library, and how it reports them.
#pragma once
#include <stdexcept>
#include <string>

#include "onepass/export.h"

namespace onepass::inline v0 {

enum class ErrorCode {
  ok = 0,
  bad_shape,       // sizes that do not fit together
  bad_stride,      // a layout that no kernel can read
  bad_dtype,       // an element type that is not accepted here
  bad_device,      // tensors on different or unknown devices
  bad_value,       // an option or an element of an index tensor out of range
  bad_text,        // a problem line that does not parse
  bad_file,        // a file that is truncated, damaged or of an unknown kind
  unsupported,     // a valid problem that no implementation accepts
  out_of_memory,   // of the host or of a device
  internal,        // a fault of the library, or of a callback
  device_failure,  // a driver's call or a launch that failed
};

// One sentence: which tensor, which value, what would be accepted. Thrown before any output is touched.
class ONEPASS_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace onepass::inline v0
