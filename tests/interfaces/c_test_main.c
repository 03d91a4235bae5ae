#include "c_test.h"

int failures = 0;

static float next_number(unsigned* state) { /* in [-2, 2) */
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 4194304.0f - 2.0f;
}

void fill(problem* p) {
  const int64_t q[4] = {B, HQ, SQ, DQK}, k[4] = {B, HK, SK, DQK}, v[4] = {B, HK, SK, DV}, out[4] = {B, HQ, SQ, DV},
                lse[3] = {B, HQ, SQ};
  unsigned state = 1;
  size_t i;
  for (i = 0; i < sizeof p->q / sizeof(float); ++i) p->q[i] = next_number(&state);
  for (i = 0; i < sizeof p->k / sizeof(float); ++i) p->k[i] = next_number(&state);
  for (i = 0; i < sizeof p->v / sizeof(float); ++i) p->v[i] = next_number(&state);
  for (i = 0; i < sizeof p->out / sizeof(float); ++i) p->out[i] = 777;
  for (i = 0; i < sizeof p->lse / sizeof(float); ++i) p->lse[i] = 777;
  CHECK(onepass_tensor_init(&p->tq, p->q, ONEPASS_F32, 4, q) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&p->tk, p->k, ONEPASS_F32, 4, k) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&p->tv, p->v, ONEPASS_F32, 4, v) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&p->tout, p->out, ONEPASS_F32, 4, out) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&p->tlse, p->lse, ONEPASS_F32, 3, lse) == ONEPASS_OK);
}

int untouched(const problem* p) {
  size_t i;
  for (i = 0; i < sizeof p->out / sizeof(float); ++i)
    if (p->out[i] != 777) return 0;
  for (i = 0; i < sizeof p->lse / sizeof(float); ++i)
    if (p->lse[i] != 777) return 0;
  return 1;
}

int main(void) {
  test_success();
  test_errors();
  test_append();
  test_softmax();
  test_quantize();
  test_flat_gemm();
  printf("%d failures\n", failures);
  return failures != 0;
}
