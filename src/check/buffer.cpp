#include "check/buffer.hpp"
#include "base/text.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "algebra/ceil_div.hpp"
#include "onepass/error.hpp"

namespace onepass::check {
namespace {

constexpr std::size_t kGuard = 256;  // bytes on both sides of a buffer in the middle of its pages

std::size_t page() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool is_poison(const std::byte* from, const std::byte* to) {
  return std::all_of(from, to, [](std::byte b) { return b == std::byte{Buffer::kPoison}; });
}

}  // namespace

Buffer::Buffer(std::size_t bytes, Placement placement) : bytes_(bytes) {
  const std::size_t slack = placement == Placement::middle ? 2 * kGuard : 0;
  const std::size_t inner = std::max(page(), round_up(bytes + slack, page()));
  map_bytes_ = inner + 2 * page();
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    throw Error(ErrorCode::out_of_memory, text("cannot map ", map_bytes_, " bytes for a test buffer"));
  map_ = static_cast<std::byte*>(map);
  mprotect(map_, page(), PROT_NONE);
  mprotect(map_ + page() + inner, page(), PROT_NONE);
  const std::size_t lead = placement == Placement::middle     ? kGuard
                           : placement == Placement::page_end ? inner - bytes
                                                              : 0;
  data_ = map_ + page() + lead;
  poison();
}

Buffer::~Buffer() {
  if (map_) munmap(map_, map_bytes_);
}

void Buffer::poison() {
  if (map_ && !sparse()) std::memset(map_ + page(), kPoison, map_bytes_ - 2 * page());
}

bool Buffer::guards_untouched() const {
  if (!map_ || sparse()) return true;
  return is_poison(map_ + page(), data_) && is_poison(data_ + bytes_, map_ + map_bytes_ - page());
}

bool Buffer::all_poison() const { return !map_ || sparse() || is_poison(map_ + page(), map_ + map_bytes_ - page()); }

void Buffer::make_read_only() {
  if (map_) mprotect(map_ + page(), map_bytes_ - 2 * page(), PROT_READ);
}

Buffer Buffer::copy() const {
  Buffer other(bytes_);
  if (bytes_ > 0) std::memcpy(other.data_, data_, bytes_);
  return other;
}

}  // namespace onepass::check
