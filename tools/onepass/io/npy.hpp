// NumPy's .npy format, versions 1.0, 2.0 and 3.0: little-endian, C order, fp32, fp16, bf16, bool and int32.
//
// NumPy has no bf16. The package ml_dtypes stores it as the void type '<V2', which says nothing but the size, so the
// reader takes '<V2' (or '|V2') only with `void2 = bf16`. The writer writes '<V2'.
#pragma once
#include <optional>
#include <string>

#include "tools/onepass/io/array.hpp"
#include "tools/onepass/io/output_file.hpp"
#include "tools/onepass/io/source.hpp"

namespace onepass::io {

Array read_npy(const Source& source, std::optional<DType> void2 = {});  // throws bad_file, bad_dtype or bad_shape
std::string npy_header(DType dtype, const Shape& shape);                // all bytes before the data
void write_npy(OutputFile& file, const Array& array);

}  // namespace onepass::io
