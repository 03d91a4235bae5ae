/* onepass_append_kv: two sequences in pages of 2, rotated by quarter turns, whose results are exact. */
#include "c_test.h"

enum { PAGES = 5, PAGE = 2, DIM = 4 };

typedef struct append_case {
  float k_new[3 * DIM], v_new[3 * DIM], k[PAGES * PAGE * DIM], v[PAGES * PAGE * DIM], q[3 * DIM], cos[4], sin[4];
  int32_t used[2], table[4], cu[3];
  onepass_tensor tk_new, tv_new, tk, tv, tq, tcos, tsin, tused, ttable, tcu;
  onepass_append append;
} append_case;

static void fill_append(append_case* c) {
  const int64_t fresh[3] = {3, 1, DIM}, pages[4] = {PAGES, PAGE, 1, DIM}, turns[2] = {4, 1}, two[1] = {2},
                table[2] = {2, 2}, three[1] = {3};
  const float cos[4] = {1, 0, -1, 0}, sin[4] = {0, 1, 0, -1}; /* position p turns by p * 90 degrees */
  const int32_t used[2] = {1, 0}, entries[4] = {4, 2, 0, -9}, cu[3] = {0, 2, 3};
  int i;
  for (i = 0; i < 3 * DIM; ++i) c->k_new[i] = c->q[i] = (float)(i + 1), c->v_new[i] = (float)(-i - 1);
  for (i = 0; i < PAGES * PAGE * DIM; ++i) c->k[i] = c->v[i] = 777;
  memcpy(c->cos, cos, sizeof cos);
  memcpy(c->sin, sin, sizeof sin);
  memcpy(c->used, used, sizeof used);
  memcpy(c->table, entries, sizeof entries);
  memcpy(c->cu, cu, sizeof cu);
  CHECK(onepass_tensor_init(&c->tk_new, c->k_new, ONEPASS_F32, 3, fresh) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tv_new, c->v_new, ONEPASS_F32, 3, fresh) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tq, c->q, ONEPASS_F32, 3, fresh) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tk, c->k, ONEPASS_F32, 4, pages) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tv, c->v, ONEPASS_F32, 4, pages) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tcos, c->cos, ONEPASS_F32, 2, turns) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tsin, c->sin, ONEPASS_F32, 2, turns) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tused, c->used, ONEPASS_I32, 1, two) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->ttable, c->table, ONEPASS_I32, 2, table) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&c->tcu, c->cu, ONEPASS_I32, 1, three) == ONEPASS_OK);
  CHECK(onepass_append_init(&c->append, sizeof c->append) == ONEPASS_OK);
  c->append.k_new = &c->tk_new, c->append.v_new = &c->tv_new;
  c->append.k = &c->tk, c->append.v = &c->tv;
  c->append.q = c->append.q_out = &c->tq;
  c->append.cache_seqlens = &c->tused, c->append.page_table = &c->ttable, c->append.cu_seqlens_q = &c->tcu;
  c->append.cos = &c->tcos, c->append.sin = &c->tsin;
}

/* Which row of k and v is row `row` of k_new and v_new, turned `turns` times; elements 0 and 1 are the pair. */
static int row_is(const append_case* c, int page, int token, int row, int turns) {
  const float* k = c->k + (page * PAGE + token) * DIM;
  const float* v = c->v + (page * PAGE + token) * DIM;
  const float x = (float)(row * DIM + 1), y = x + 1;
  const float turned[4][2] = {{x, y}, {-y, x}, {-x, -y}, {y, -x}};
  return k[0] == turned[turns][0] && k[1] == turned[turns][1] && k[2] == x + 2 && k[3] == x + 3 && v[0] == -x &&
         v[3] == -x - 3 && c->q[row * DIM] == turned[turns][0] && c->q[row * DIM + 3] == x + 3;
}

static int untouched_append(const append_case* c) {
  int i;
  for (i = 0; i < PAGES * PAGE * DIM; ++i)
    if (c->k[i] != 777 || c->v[i] != 777) return 0;
  return c->q[0] == 1 && c->q[2 * DIM] == 2 * DIM + 1;
}

void test_append(void) {
  append_case c;
  int i, written = 0;
  fill_append(&c);
  CHECK(onepass_append_kv(&c.append) == ONEPASS_OK);
  CHECK(row_is(&c, 4, 1, 0, 1)); /* sequence 0: keys 1 and 2, in pages 4 and 2 */
  CHECK(row_is(&c, 2, 0, 1, 2));
  CHECK(row_is(&c, 0, 0, 2, 0)); /* sequence 1: key 0 in page 0 */
  for (i = 0; i < PAGES * PAGE; ++i) written += c.k[i * DIM] != 777;
  CHECK(written == 3);

  {
    const int64_t slots[3] = {8, -1, 1}, three[1] = {3}, both_shape[2] = {4, 2};
    const int32_t positions[3] = {1, 2, 0};
    const float both[8] = {1, 0, 0, 1, -1, 0, 0, -1}; /* cos and sin of each position */
    onepass_tensor tslots, tpositions, tboth;
    fill_append(&c);
    CHECK(onepass_tensor_init(&tslots, (void*)slots, ONEPASS_I64, 1, three) == ONEPASS_OK);
    CHECK(onepass_tensor_init(&tpositions, (void*)positions, ONEPASS_I32, 1, three) == ONEPASS_OK);
    CHECK(onepass_tensor_init(&tboth, (void*)both, ONEPASS_F32, 2, both_shape) == ONEPASS_OK);
    c.append.cache_seqlens = c.append.page_table = c.append.cu_seqlens_q = c.append.cos = c.append.sin = NULL;
    c.append.slot_mapping = &tslots, c.append.positions = &tpositions, c.append.cos_sin_cache = &tboth;
    CHECK(onepass_append_kv(&c.append) == ONEPASS_OK);
    CHECK(row_is(&c, 4, 0, 0, 1));
    CHECK(row_is(&c, 0, 1, 2, 0));
    CHECK(c.q[DIM] == -(DIM + 1)); /* a half turn of the token without a slot */
    for (i = 0, written = 0; i < PAGES * PAGE; ++i) written += c.k[i * DIM] != 777;
    CHECK(written == 2);
  }
  fill_append(&c);
  c.append.cache_seqlens = NULL;
  c.append.seqused_k = &c.tused; /* its old name */
  CHECK(onepass_append_kv(&c.append) == ONEPASS_OK);
  CHECK(row_is(&c, 4, 1, 0, 1));
  fill_append(&c);
  c.append.cos = NULL;
  FAILS(onepass_append_kv(&c.append), ONEPASS_BAD_SHAPE, "cos must be given");
  fill_append(&c);
  c.append.v = NULL;
  FAILS(onepass_append_kv(&c.append), ONEPASS_BAD_VALUE, "v must not be NULL");
  fill_append(&c);
  c.used[1] = 4;
  FAILS(onepass_append_kv(&c.append), ONEPASS_BAD_VALUE, "(got 4)");
  CHECK(untouched_append(&c));
  fill_append(&c);
  c.append.size = 1;
  FAILS(onepass_append_kv(&c.append), ONEPASS_BAD_VALUE, "append.size must be as onepass_append_init sets it (got 1)");
  FAILS(onepass_append_kv(NULL), ONEPASS_BAD_VALUE, "append must not be NULL");
  FAILS(onepass_append_init(NULL, sizeof c.append), ONEPASS_BAD_VALUE, "append must not be NULL");
  FAILS(onepass_append_init(&c.append, 4), ONEPASS_BAD_VALUE, "size must be sizeof(onepass_append) (got 4)");
}
