/* onepass_quantize_rows and onepass_attention_fp8: numbers that fp8_e4m3 holds exactly. */
#include "c_test.h"

void test_quantize(void) {
  float x[4] = {224, -3, 8, 0}, descale[1], mean[2], out[4], keys[4] = {0, 0, 0, 0};
  uint8_t y[4];
  const int64_t rows[2] = {2, 2}, one[3] = {1, 1, 1}, means[3] = {1, 1, 2}, four[4] = {1, 1, 2, 2};
  onepass_tensor tx, ty, tdescale, tmean, tq, tk, tv, tout;
  onepass_quantize q;
  int i;
  CHECK(onepass_tensor_init(&tx, x, ONEPASS_F32, 2, rows) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&ty, y, ONEPASS_F8E4M3, 2, rows) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdescale, descale, ONEPASS_F32, 3, one) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tmean, mean, ONEPASS_F32, 3, means) == ONEPASS_OK);
  CHECK(onepass_quantize_init(&q, sizeof q) == ONEPASS_OK);
  q.x = &tx, q.y = &ty, q.descale = &tdescale;
  CHECK(onepass_quantize_rows(&q) == ONEPASS_OK);
  CHECK(descale[0] == 0.5f);
  CHECK(y[0] == 0x7e && y[1] == 0xcc && y[2] == 0x58 && y[3] == 0); /* 448, -6, 16, 0 */
  q.mean = &tmean;
  CHECK(onepass_quantize_rows(&q) == ONEPASS_OK);
  CHECK(mean[0] == 116 && mean[1] == -1.5f);
  FAILS((q.descale = NULL, onepass_quantize_rows(&q)), ONEPASS_BAD_VALUE, "descale must not be NULL");
  FAILS(onepass_quantize_rows(NULL), ONEPASS_BAD_VALUE, "quantize must not be NULL");

  /* Keys of 0: each result is the mean of the values. */
  CHECK(onepass_tensor_init(&tq, keys, ONEPASS_F32, 4, four) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tk, keys, ONEPASS_F32, 4, four) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tv, x, ONEPASS_F32, 4, four) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tout, out, ONEPASS_F32, 4, four) == ONEPASS_OK);
  CHECK(onepass_attention_fp8(&tq, &tk, &tv, &tout, NULL, ONEPASS_FP8_CENTER, 0) == ONEPASS_OK);
  for (i = 0; i < 4; ++i) CHECK(out[i] == (i % 2 == 0 ? 116 : -1.5f));
  FAILS(onepass_attention_fp8(&tq, &tk, &tv, &tout, NULL, 64, 0), ONEPASS_BAD_VALUE,
        "flags must be a sum of ONEPASS_FP8_ values (got 64)");
}
