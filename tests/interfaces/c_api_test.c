/* Results of the C ABI, against a softmax written out here. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "c_test.h"
#include "onepass/version.h"

static float at(const onepass_tensor* t, int64_t b, int64_t h, int64_t s, int64_t d) {
  return ((const float*)t->data)[b * t->stride[0] + h * t->stride[1] + s * t->stride[2] + d * t->stride[3]];
}

/* Causal, bottom-right: the last query sees the last key. */
static int is_attention(const problem* p, int causal) {
  int64_t b, h, i, j, d;
  for (b = 0; b < B; ++b) {
    for (h = 0; h < HQ; ++h) {
      for (i = 0; i < SQ; ++i) {
        const int64_t hk = h / (HQ / HK), end = causal ? i + SK - SQ + 1 : SK;
        double weight[SK], sum = 0;
        for (j = 0; j < end; ++j) {
          double s = 0;
          for (d = 0; d < DQK; ++d) s += (double)at(&p->tq, b, h, i, d) * at(&p->tk, b, hk, j, d);
          weight[j] = exp(s / sqrt((double)DQK));
          sum += weight[j];
        }
        for (d = 0; d < DV; ++d) {
          double o = 0;
          for (j = 0; j < end; ++j) o += weight[j] / sum * at(&p->tv, b, hk, j, d);
          if (fabs(o - at(&p->tout, b, h, i, d)) > 1e-5) return 0;
        }
        if (p->lse[(b * HQ + h) * SQ + i] != 777 && fabs(log(sum) - p->lse[(b * HQ + h) * SQ + i]) > 1e-5) return 0;
      }
    }
  }
  return 1;
}

/* Keys in two levels, the second one's in two groups of rows: as one call over the keys of each row. */
static void cascades(void) {
  enum { ROWS = 3, HEADS = 2, DIM = 4, SHARED = 3, OWN = 4 };
  static float q[ROWS * HEADS * DIM], k[(SHARED + OWN) * DIM], out[ROWS * HEADS * DIM], lse[HEADS * ROWS], whole[DIM],
      most[HEADS * ROWS], whole_most;
  static int32_t groups[3] = {0, 1, 3}, keys[3] = {0, 1, OWN};
  const int64_t of_q[3] = {ROWS, HEADS, DIM}, of_shared[3] = {SHARED, 1, DIM}, of_own[3] = {OWN, 1, DIM}, three = 3,
                of_lse[2] = {HEADS, ROWS}, one[4] = {1, 1, 1, DIM}, six[4] = {1, 1, SHARED + OWN - 1, DIM};
  onepass_tensor tq, tout, tlse, tmost, tshared, town, tgroups, tkeys, tone, tsix, twhole, twhole_most;
  onepass_options own, of_whole;
  onepass_level levels[2];
  size_t i;
  for (i = 0; i < sizeof q / sizeof *q; ++i) q[i] = (float)(i % 7) - 3;
  for (i = 0; i < sizeof k / sizeof *k; ++i) k[i] = (float)(i % 5) - 2;
  CHECK(onepass_tensor_init(&tq, q, ONEPASS_F32, 3, of_q) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tout, out, ONEPASS_F32, 3, of_q) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tlse, lse, ONEPASS_F32, 2, of_lse) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tmost, most, ONEPASS_F32, 2, of_lse) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tshared, k, ONEPASS_F32, 3, of_shared) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&town, k + SHARED * DIM, ONEPASS_F32, 3, of_own) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tgroups, groups, ONEPASS_I32, 1, &three) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tkeys, keys, ONEPASS_I32, 1, &three) == ONEPASS_OK);
  onepass_options_init(&own, sizeof own);
  own.cu_seqlens_q = &tgroups, own.cu_seqlens_k = &tkeys;
  levels[0].k = levels[0].v = &tshared, levels[0].options = NULL;
  levels[1].k = levels[1].v = &town, levels[1].options = &own;
  CHECK(onepass_cascade(&tq, 2, levels, &tout, &tlse, NULL, NULL, NULL) == ONEPASS_OK);
  CHECK(onepass_cascade_with_max(&tq, 2, levels, &tout, &tlse, &tmost, NULL, NULL, NULL) == ONEPASS_OK);
  /* The last row sees all keys but the fourth: those before it move up. */
  CHECK(onepass_tensor_init(&tone, q + sizeof q / sizeof *q - DIM, ONEPASS_F32, 4, one) == ONEPASS_OK);
  for (i = SHARED * DIM; i-- > 0;) k[i + DIM] = k[i];
  CHECK(onepass_tensor_init(&tsix, k + DIM, ONEPASS_F32, 4, six) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&twhole, whole, ONEPASS_F32, 4, one) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&twhole_most, &whole_most, ONEPASS_F32, 3, one) == ONEPASS_OK);
  onepass_options_init(&of_whole, sizeof of_whole);
  of_whole.row_max = &twhole_most;
  CHECK(onepass_attention(&tone, &tsix, &tsix, &twhole, &of_whole) == ONEPASS_OK);
  CHECK(fabs(whole_most - most[HEADS * ROWS - 1]) < 1e-6);
  for (i = 0; i < DIM; ++i) CHECK(fabs(whole[i] - out[sizeof out / sizeof *out - DIM + i]) < 1e-5);
  out[0] = 777;
  CHECK(onepass_cascade(&tq, 0, levels, &tout, NULL, NULL, NULL, NULL) == ONEPASS_BAD_VALUE);
  levels[0].v = NULL;
  CHECK(onepass_cascade(&tq, 2, levels, &tout, NULL, NULL, NULL, NULL) == ONEPASS_BAD_VALUE);
  CHECK(out[0] == 777);
}

/* dV of a loss that is the sum of out: the columns' sums of weights, from a second call on unit vectors. */
static void gradients(void) {
  problem p;
  onepass_options o;
  onepass_tensor tdout, tdq, tdk, tdv;
  static float dout[B * HQ * SQ * DV], dq[B * HQ * SQ * DQK], dk[B * HK * SK * DQK], dv[B * HK * SK * DV];
  const int64_t of_out[4] = {B, HQ, SQ, DV}, of_q[4] = {B, HQ, SQ, DQK}, of_k[4] = {B, HK, SK, DQK},
                of_v[4] = {B, HK, SK, DV};
  double sum = 0;
  size_t i;
  fill(&p);
  for (i = 0; i < sizeof dout / sizeof *dout; ++i) dout[i] = 1;
  CHECK(onepass_tensor_init(&tdout, dout, ONEPASS_F32, 4, of_out) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdq, dq, ONEPASS_F32, 4, of_q) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdk, dk, ONEPASS_F32, 4, of_k) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tdv, dv, ONEPASS_F32, 4, of_v) == ONEPASS_OK);
  onepass_options_init(&o, sizeof o);
  o.lse = &p.tlse;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(onepass_attention_backward(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_BAD_SHAPE); /* no dout */
  o.dout = &tdout, o.dq = &tdq, o.dk = &tdk, o.dv = &tdv;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_BAD_VALUE); /* it is a backward */
  dv[0] = 777;
  o.lse = NULL;
  CHECK(onepass_attention_backward(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_BAD_VALUE);
  CHECK(dv[0] == 777);
  o.lse = &p.tlse;
  o.deterministic = 1;
  CHECK(onepass_attention_backward(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  for (i = 0; i < sizeof dv / sizeof *dv; ++i) sum += dv[i];
  CHECK(fabs(sum - (double)(B * HQ * SQ * DV)) < 1e-3); /* the weights of a row add up to 1 */
  for (i = 0, sum = 0; i < sizeof dk / sizeof *dk; ++i) sum += fabs(dk[i]);
  CHECK(sum > 1e-3);
  { /* the same through a plan */
    onepass_problem* made = NULL;
    onepass_plan* plan = NULL;
    char line[200];
    char *memory, *workspace;
    static float again[B * HK * SK * DV];
    onepass_tensor tagain;
    CHECK(onepass_tensor_init(&tagain, again, ONEPASS_F32, 4, of_v) == ONEPASS_OK);
    o.dv = &tagain;
    CHECK(onepass_problem_make(&p.tq, &p.tk, &p.tv, &p.tout, &o, &made) == ONEPASS_OK);
    CHECK(onepass_problem_print(made, line, sizeof line, NULL) == ONEPASS_OK);
    CHECK(line[0] == 'b' && line[1] == 'w' && line[2] == 'd');
    CHECK(onepass_plan_create(made, NULL, NULL, &plan) == ONEPASS_OK);
    memory = malloc(onepass_plan_workspace_bytes(plan) + 64);
    workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
    CHECK(onepass_plan_run(plan, &p.tq, &p.tk, &p.tv, &p.tout, &o, workspace, onepass_plan_workspace_bytes(plan)) ==
          ONEPASS_OK);
    for (i = 0; i < sizeof dv / sizeof *dv; ++i) CHECK(again[i] == dv[i]);
    free(memory);
    onepass_plan_destroy(plan);
    onepass_problem_destroy(made);
  }
}

static void one_call(void) {
  problem p;
  onepass_options o;
  fill(&p);
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, NULL) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
  fill(&p);
  CHECK(onepass_options_init(&o, sizeof o) == ONEPASS_OK);
  o.implementation = "reference";
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
  CHECK(!is_attention(&p, 1)); /* the comparison can fail */
  CHECK(p.lse[0] == 777);      /* not asked for */
  o.mask = ONEPASS_CAUSAL_BOTTOM_RIGHT;
  o.lse = &p.tlse;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 1));
  CHECK(p.lse[0] != 777);
  o.mask = ONEPASS_CAUSAL_OFFSET; /* the same keys, counted from the first */
  o.align_offset = SK - SQ;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 1));
  o.align_offset = SK;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
  o.mask = ONEPASS_ALIGNED_OFFSET;
  o.align_offset = SK - SQ;
  o.window_right = 0;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 1));
}

/* The same masks, said as expressions. */
static void expressions(void) {
  problem p;
  onepass_options o;
  const int32_t last[SQ] = {2, 3, 4, 5, 6};
  const int64_t length = SQ;
  const char* const names[] = {"last"};
  onepass_tensor buffer;
  fill(&p);
  CHECK(onepass_tensor_init(&buffer, last, ONEPASS_I32, 1, &length) == ONEPASS_OK);
  CHECK(onepass_options_init(&o, sizeof o) == ONEPASS_OK);
  o.mask_mod = "k_index <= last[q_index]";
  o.mod_buffer_count = 1;
  o.mod_buffer_names = names;
  o.mod_buffers = &buffer;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 1) && !is_attention(&p, 0));
  o.mask_mod = "";
  o.score_mod = "q_index == 0 || last[q_index] > 2 ? score : 0";
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
}

/* o: of a jvp whose v has a constant tangent, which moves no gradient. That of dout moves them like dout itself. */
static void second_derivatives(const problem* p, onepass_options* o, const onepass_tensor* jvp_out) {
  static float ones[B * HQ * SQ * DV], dk[B * HK * SK * DQK], tdk[B * HK * SK * DQK];
  const int64_t of_k[] = {B, HK, SK, DQK}, of_out[] = {B, HQ, SQ, DV};
  onepass_options backward;
  onepass_tensor dout, gradient, derivative;
  size_t i;
  for (i = 0; i < sizeof ones / sizeof *ones; ++i) ones[i] = (float)(i % 5);
  CHECK(onepass_tensor_init(&dout, ones, ONEPASS_F32, 4, of_out) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&gradient, dk, ONEPASS_F32, 4, of_k) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&derivative, tdk, ONEPASS_F32, 4, of_k) == ONEPASS_OK);
  onepass_options_init(&backward, sizeof backward);
  backward.lse = o->lse, backward.dout = &dout, backward.dk = &gradient;
  CHECK(onepass_attention_backward(&p->tq, &p->tk, &p->tv, &p->tout, &backward) == ONEPASS_OK);
  o->dout = o->tdout = &dout, o->tout = jvp_out;
  FAILS(onepass_backward_jvp(&p->tq, &p->tk, &p->tv, &p->tout, o), ONEPASS_BAD_VALUE, "at least one of tdq, tdk");
  o->tdk = &derivative;
  CHECK(onepass_backward_jvp(&p->tq, &p->tk, &p->tv, &p->tout, o) == ONEPASS_OK);
  for (i = 0; i < sizeof dk / sizeof *dk; ++i) CHECK(fabs(dk[i] - tdk[i]) < 1e-4);
  CHECK(fabs(dk[0]) > 1e-3);
}

/* With v's tangent alone the derivative is the attention to it; with a constant one, that constant. */
static void forward_mode(void) {
  static float zq[B * HQ * SQ * DQK], zk[B * HK * SK * DQK], one[B * HK * SK * DV], moved[B * HQ * SQ * DV],
      moved_lse[B * HQ * SQ];
  const int64_t of_q[] = {B, HQ, SQ, DQK}, of_k[] = {B, HK, SK, DQK}, of_v[] = {B, HK, SK, DV},
                of_out[] = {B, HQ, SQ, DV}, of_lse[] = {B, HQ, SQ};
  problem p;
  onepass_options o;
  onepass_tensor tq, tk, tv, tout, tlse;
  size_t i;
  fill(&p);
  for (i = 0; i < sizeof one / sizeof *one; ++i) one[i] = 2;
  CHECK(onepass_tensor_init(&tq, zq, ONEPASS_F32, 4, of_q) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tk, zk, ONEPASS_F32, 4, of_k) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tv, one, ONEPASS_F32, 4, of_v) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tout, moved, ONEPASS_F32, 4, of_out) == ONEPASS_OK);
  CHECK(onepass_tensor_init(&tlse, moved_lse, ONEPASS_F32, 3, of_lse) == ONEPASS_OK);
  onepass_options_init(&o, sizeof o);
  o.lse = &p.tlse, o.tlse = &tlse;
  FAILS(onepass_jvp(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_SHAPE, "tq must be given");
  o.tq = &tq, o.tk = &tk, o.tout = &tout;
  FAILS(onepass_jvp(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "tv must not be NULL");
  o.tv = &tv;
  moved_lse[0] = 777;
  CHECK(onepass_jvp(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
  for (i = 0; i < sizeof moved / sizeof *moved; ++i) CHECK(fabs(moved[i] - 2) < 1e-5);
  for (i = 0; i < sizeof moved_lse / sizeof *moved_lse; ++i) CHECK(moved_lse[i] == 0);

  second_derivatives(&p, &o, &tout);
}

/* Runs the tasks backwards on this thread, as a host's pool may. */
static int calls = 0;
static void backwards(void* user, int64_t tasks, onepass_task task, void* context) {
  ++*(int*)user;
  while (tasks-- > 0) task(context, tasks, 0);
}

/* A program built against a header whose options ended earlier: what lies behind its size is not read. */
static void older_options(void) {
  problem p;
  onepass_options o;
  onepass_tensor nothing;
  memset(&nothing, 0xff, sizeof nothing); /* refused if it is looked at */

  /* Without align_offset, the last field. */
  onepass_options_init(&o, sizeof o);
  o.align_offset = 77;
  fill(&p);
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "align_offset must be 0 unless");
  o.size = offsetof(onepass_options, align_offset);
  o.mask = ONEPASS_CAUSAL_BOTTOM_RIGHT;
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 1));

  /* Up to the scale: every tensor, name and pointer behind it keeps its default. */
  memset(&o, 0xff, sizeof o);
  o.size = offsetof(onepass_options, scale);
  o.mask = ONEPASS_NO_MASK;
  o.has_scale = 0;
  fill(&p);
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  CHECK(is_attention(&p, 0) && p.lse[0] == 777);

  /* Just before and just behind the bias. */
  onepass_options_init(&o, sizeof o);
  o.bias = &nothing;
  o.size = offsetof(onepass_options, bias);
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) == ONEPASS_OK);
  o.size = offsetof(onepass_options, bool_mask);
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o) != ONEPASS_OK);

  /* onepass_options_init of such a program writes nothing behind its size. */
  memset(&o, 0x5a, sizeof o);
  CHECK(onepass_options_init(&o, offsetof(onepass_options, align_offset)) == ONEPASS_OK);
  CHECK(o.size == offsetof(onepass_options, align_offset));
  CHECK(o.align_offset == 0x5a5a5a5a5a5a5a5a && o.mod_buffer_count == 0);
}

static void plan_and_run(void) {
  problem p;
  onepass_options o;
  onepass_problem* made = NULL;
  onepass_problem* parsed = NULL;
  onepass_plan* plan = NULL;
  onepass_executor* executor = NULL;
  char line[200], other[200], report[4000], small[8];
  size_t length = 0, bytes;
  void *memory, *aligned;
  fill(&p);
  onepass_options_init(&o, sizeof o);
  o.lse = &p.tlse;
  CHECK(onepass_executor_wrap(1, backwards, &calls, &executor) == ONEPASS_OK);
  CHECK(onepass_executor_workers(executor) == 1);
  o.executor = executor;

  CHECK(onepass_problem_make(&p.tq, &p.tk, &p.tv, &p.tout, &o, &made) == ONEPASS_OK);
  CHECK(onepass_problem_print(made, line, sizeof line, &length) == ONEPASS_OK);
  CHECK(strcmp(line, "fwd b2 h4/2 s5x7 d8/6 fp32 lse") == 0 && length == strlen(line));
  CHECK(onepass_problem_parse(line, &parsed) == ONEPASS_OK);
  CHECK(onepass_problem_print(parsed, other, sizeof other, NULL) == ONEPASS_OK);
  CHECK(strcmp(line, other) == 0);
  CHECK(onepass_problem_print(made, small, sizeof small, &length) == ONEPASS_OK);
  CHECK(strcmp(small, "fwd b2 ") == 0 && length == strlen(line)); /* cut, ended, and the whole length told */
  CHECK(onepass_problem_print(made, NULL, 0, &length) == ONEPASS_OK && length == strlen(line));
  CHECK(onepass_explain(made, report, sizeof report, &length) == ONEPASS_OK);
  CHECK(strstr(report, line) == report && strstr(report, "reference: ") != NULL);

  CHECK(onepass_plan_create(parsed, "reference", executor, &plan) == ONEPASS_OK);
  CHECK(strcmp(onepass_plan_implementation(plan), "reference") == 0);
  bytes = onepass_plan_workspace_bytes(plan);
  memory = malloc(bytes + 64);
  aligned = (char*)memory + (64 - (uintptr_t)memory % 64);
  CHECK(onepass_plan_run(plan, &p.tq, &p.tk, &p.tv, &p.tout, &o, aligned, bytes) == ONEPASS_OK);
  CHECK(is_attention(&p, 0));
  CHECK(calls > 0); /* it ran on the host's threads */
  free(memory);
  onepass_plan_destroy(plan);
  onepass_problem_destroy(made);
  onepass_problem_destroy(parsed);
  onepass_executor_destroy(executor);
}

/* Keys 0..2 and 3..6 apart, then merged. */
static void merging(void) {
  problem p;
  onepass_options o;
  onepass_tensor k[2], v[2], outs[2], lses[2];
  float out[2][B * HQ * SQ * DV], lse[2][B * HQ * SQ];
  int i;
  fill(&p);
  onepass_options_init(&o, sizeof o);
  o.implementation = "reference";
  for (i = 0; i < 2; ++i) {
    k[i] = p.tk;
    v[i] = p.tv;
    k[i].shape[2] = v[i].shape[2] = i == 0 ? 3 : SK - 3;
    if (i == 1) {
      k[i].data = p.k + 3 * DQK;
      v[i].data = p.v + 3 * DV;
    }
    outs[i] = p.tout;
    outs[i].data = out[i];
    lses[i] = p.tlse;
    lses[i].data = lse[i];
    o.lse = &lses[i];
    CHECK(onepass_attention(&p.tq, &k[i], &v[i], &outs[i], &o) == ONEPASS_OK);
  }
  CHECK(onepass_merge(2, outs, lses, &p.tout, &p.tlse, NULL) == ONEPASS_OK);
  CHECK(p.lse[0] != 777 && is_attention(&p, 0));
  p.lse[0] = 777;
  CHECK(onepass_merge_on_stream(2, outs, lses, &p.tout, &p.tlse, NULL, NULL) == ONEPASS_OK);
  CHECK(p.lse[0] != 777 && is_attention(&p, 0));
}

void test_success(void) {
  char numbers[32];
  snprintf(numbers, sizeof numbers, "%d.%d.%d", ONEPASS_VERSION_MAJOR, ONEPASS_VERSION_MINOR, ONEPASS_VERSION_PATCH);
  CHECK(strcmp(onepass_version(), ONEPASS_VERSION) == 0);
  CHECK(strcmp(onepass_version(), numbers) == 0);
  CHECK(strcmp(onepass_last_error(), "") == 0);
  CHECK(strcmp(onepass_code_name(ONEPASS_BAD_TEXT), "bad_text") == 0);
  CHECK(strcmp(onepass_code_name(99), "unknown") == 0);
  one_call();
  gradients();
  cascades();
  expressions();
  forward_mode();
  older_options();
  plan_and_run();
  merging();
}
