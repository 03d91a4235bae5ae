/* onepass_softmax_forward and _backward: two entries of equal weight beside a hidden one, whose results are exact. */
#include "c_test.h"

void test_flat_gemm(void) {
  float x[4] = {1, 2, 3, 4}, w[6] = {1, 0, 0, 1, 1, 1}, bias[3] = {0, 0, 100}, y[6];
  const int64_t two[2] = {2, 2}, three[2] = {3, 2}, out[2] = {2, 3}, columns[1] = {3};
  const float expected[6] = {1, 2, 103, 3, 4, 107};
  onepass_tensor tx, tw, tbias, ty;
  CHECK(onepass_tensor_init(&tx, x, ONEPASS_F32, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tw, w, ONEPASS_F32, 2, three) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tbias, bias, ONEPASS_F32, 1, columns) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&ty, y, ONEPASS_F32, 2, out) == ONEPASS_OK);
  CHECK(onepass_flat_gemm(&tx, &tw, &ty, &tbias, NULL, NULL) == ONEPASS_OK);
  CHECK(memcmp(y, expected, sizeof y) == 0);
  memset(y, 0, sizeof y);
  CHECK(onepass_linear(&tx, &tw, &ty, &tbias, NULL, NULL) == ONEPASS_OK);
  CHECK(memcmp(y, expected, sizeof y) == 0);
  FAILS(onepass_linear(&tx, &tx, &ty, NULL, NULL, NULL), ONEPASS_BAD_SHAPE, "the number of columns of y must be 2");
  FAILS(onepass_flat_gemm(&tx, NULL, &ty, NULL, NULL, NULL), ONEPASS_BAD_VALUE, "w must not be NULL");
  FAILS(onepass_flat_gemm(&tx, &tx, &ty, NULL, NULL, NULL), ONEPASS_BAD_SHAPE, "the number of columns of y must be 2");
}

void test_softmax(void) {
  float x[6] = {3, 3, 9, -5, 100, -5}, y[6], lse[2], halves[2], dy[6] = {1, 0, 7, 2, 7, 4}, dx[6];
  uint8_t mask[6] = {1, 1, 0, 1, 0, 1};
  const int64_t two[2] = {2, 3}, rows[1] = {2};
  onepass_tensor tx, ty, tlse, tmask, tdy, tdx, parts[2], joint;
  onepass_softmax s;
  int i;
  CHECK(onepass_tensor_init(&tx, x, ONEPASS_F32, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&ty, y, ONEPASS_F32, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdy, dy, ONEPASS_F32, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdx, dx, ONEPASS_F32, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tmask, mask, ONEPASS_BOOL, 2, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tlse, lse, ONEPASS_F32, 1, rows) == ONEPASS_OK);
  CHECK(onepass_softmax_init(&s, sizeof s) == ONEPASS_OK);
  CHECK(s.scale == 1);
  s.x = &tx, s.y = &ty, s.lse = &tlse, s.bool_mask = &tmask;
  CHECK(onepass_softmax_forward(&s) == ONEPASS_OK);
  for (i = 0; i < 6; ++i) CHECK(y[i] == (mask[i] ? 0.5f : 0.0f));
  CHECK(lse[0] > 3.6931f && lse[0] < 3.6932f && lse[1] > -4.3069f && lse[1] < -4.3068f); /* log 2 more */

  parts[0] = parts[1] = tlse;
  CHECK(onepass_tensor_init(&joint, halves, ONEPASS_F32, 1, rows) == ONEPASS_OK);
  CHECK(onepass_merge_lse(2, parts, &joint, NULL, NULL) == ONEPASS_OK);
  CHECK(halves[0] > 4.3862f && halves[0] < 4.3863f); /* as if each entry stood there twice */
  s.lse = NULL, s.row_lse = &joint;
  CHECK(onepass_softmax_forward(&s) == ONEPASS_OK);
  CHECK(y[0] > 0.24999f && y[0] < 0.25001f && y[2] == 0);
  FAILS((s.lse = &tlse, onepass_softmax_forward(&s)), ONEPASS_BAD_VALUE, "row_lse requires y and does not support lse");

  for (i = 0; i < 6; ++i) y[i] = mask[i] ? 0.5f : 0.0f;
  CHECK(onepass_softmax_init(&s, sizeof s) == ONEPASS_OK);
  s.y = &ty, s.dy = &tdy, s.dx = &tdx;
  CHECK(onepass_softmax_backward(&s) == ONEPASS_OK);
  CHECK(dx[0] == 0.25f && dx[1] == -0.25f && dx[2] == 0 && dx[3] == -0.5f && dx[4] == 0 && dx[5] == 0.5f);
  s.x = &tx;
  FAILS(onepass_softmax_backward(&s), ONEPASS_BAD_VALUE,
        "onepass_softmax_backward does not accept x, lse, row_lse or bool_mask");
  FAILS(onepass_softmax_forward(NULL), ONEPASS_BAD_VALUE, "softmax must not be NULL");
}
