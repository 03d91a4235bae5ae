/* Every way a call of the C ABI can fail: its code, words of its sentence, and outputs that stay as they were. */
#include "c_test.h"

static problem p;
static onepass_options o;

static void fresh(void) {
  fill(&p);
  CHECK(onepass_options_init(&o, sizeof o) == ONEPASS_OK);
  o.implementation = "reference";
  o.lse = &p.tlse;
}

/* After a change of p or o, attention must fail so. */
#define REFUSED(change, code, words)                                         \
  do {                                                                       \
    change;                                                                  \
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), code, words); \
    CHECK(untouched(&p));                                                    \
    fresh();                                                                 \
  } while (0)

static void tensors(void) {
  onepass_tensor t;
  const int64_t huge[4] = {INT64_MAX, INT64_MAX, 2, 2}, fine[4] = {1, 2, 3, 4};
  fresh();
  FAILS(onepass_attention(NULL, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "q is a null pointer");
  FAILS(onepass_attention(&p.tq, NULL, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "k is a null pointer");
  FAILS(onepass_attention(&p.tq, &p.tk, NULL, &p.tout, &o), ONEPASS_BAD_VALUE, "v is a null pointer");
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, NULL, &o), ONEPASS_BAD_VALUE, "out is a null pointer");
  REFUSED(p.tq.rank = 0, ONEPASS_BAD_SHAPE, "q has 0 dimensions");
  REFUSED(p.tq.rank = 5, ONEPASS_BAD_SHAPE, "q has 5 dimensions");
  REFUSED(p.tq.rank = -1, ONEPASS_BAD_SHAPE, "q has -1 dimensions");
  REFUSED(p.tv.dtype = 6, ONEPASS_BAD_DTYPE, "v has dtype 6");
  REFUSED(p.tv.dtype = -1, ONEPASS_BAD_DTYPE, "v has dtype -1");
  REFUSED(p.tv.dtype = ONEPASS_F16, ONEPASS_BAD_DTYPE, "v is fp16");
  REFUSED(p.tk.device_kind = 2, ONEPASS_BAD_DEVICE, "k has device_kind 2");
  REFUSED(p.tk.device_kind = ONEPASS_CUDA, ONEPASS_BAD_DEVICE, "k is on cuda:0 but q is on cpu");
  REFUSED(p.tk.shape[1] = 3, ONEPASS_BAD_SHAPE, "v has shape");
  REFUSED(p.tk.shape[3] = 7, ONEPASS_BAD_SHAPE, "k has shape [2, 2, 7, 7]");
  REFUSED(p.tout.shape[2] = -1, ONEPASS_BAD_SHAPE, "out has a negative size");
  REFUSED(p.tq.stride[3] = 2, ONEPASS_BAD_STRIDE, "q has stride 2");
  REFUSED(p.tout.stride[0] = 0, ONEPASS_BAD_STRIDE, "out has stride 0");
  REFUSED(p.tq.data = NULL, ONEPASS_BAD_VALUE, "null pointer");

  FAILS(onepass_tensor_init(NULL, p.q, ONEPASS_F32, 4, fine), ONEPASS_BAD_VALUE, "tensor is a null pointer");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 4, NULL), ONEPASS_BAD_VALUE, "shape is a null pointer");
  FAILS(onepass_tensor_init(&t, p.q, 77, 4, fine), ONEPASS_BAD_DTYPE, "dtype 77");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 7, fine), ONEPASS_BAD_SHAPE, "7 dimensions");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 4, huge), ONEPASS_BAD_SHAPE, "2^63");
}

static void options(void) {
  struct {
    onepass_options known;
    char newer[16];
  } grown;
  const char* names[1];
  fresh();
  REFUSED(o.mask = 6, ONEPASS_BAD_VALUE, "options.mask is 6");
  REFUSED(o.mask = -1, ONEPASS_BAD_VALUE, "options.mask is -1");
  REFUSED(o.align_offset = 3, ONEPASS_BAD_VALUE, "options.align_offset is 3 but options.mask is 0");
  REFUSED((o.mask = ONEPASS_CAUSAL_TOP_LEFT, o.align_offset = -1), ONEPASS_BAD_VALUE, "options.align_offset is -1");
  REFUSED((o.mask = ONEPASS_CAUSAL_OFFSET, o.align_offset = INT64_MAX), ONEPASS_BAD_VALUE,
          "the band's offset is 9223372036854775807");
  REFUSED(o.window_left = -2, ONEPASS_BAD_VALUE, "window's left side is -2");
  REFUSED(o.softcap = -1, ONEPASS_BAD_VALUE, "softcap is -1");
  REFUSED(o.dropout_p = 1.5f, ONEPASS_BAD_VALUE, "dropout_p is 1.5");
  REFUSED((o.has_scale = 1, o.scale = 1e308 * 10), ONEPASS_BAD_VALUE, "scale is inf");
  REFUSED(o.implementation = "cpu.none", ONEPASS_BAD_VALUE, "'cpu.none' is unknown");
  REFUSED(o.bias = &p.tq, ONEPASS_BAD_SHAPE, "bias has shape");
  REFUSED(o.bool_mask = &p.tq, ONEPASS_BAD_DTYPE, "bool_mask is fp32");
  REFUSED(o.sinks = &p.tq, ONEPASS_BAD_SHAPE, "sinks has shape");
  REFUSED(o.alibi_slopes = &p.tq, ONEPASS_BAD_SHAPE, "alibi_slopes has shape");
  REFUSED(o.cu_seqlens_q = &p.tq, ONEPASS_BAD_SHAPE, "q has shape");
  REFUSED(p.tlse.rank = 9, ONEPASS_BAD_SHAPE, "lse has 9 dimensions");
  REFUSED(p.tlse.shape[2] = 3, ONEPASS_BAD_SHAPE, "lse has shape");
  REFUSED(p.tout.data = p.q, ONEPASS_BAD_VALUE, "out shares memory with q");
  REFUSED(p.tout.data = p.v + B * HK * SK * DV - 1, ONEPASS_BAD_VALUE, "out shares memory with v");
  REFUSED(p.tlse.data = p.k, ONEPASS_BAD_VALUE, "lse shares memory with k");
  REFUSED(p.tlse.data = p.out, ONEPASS_BAD_VALUE, "lse shares memory with out");

  REFUSED(o.score_mod = "score + x", ONEPASS_BAD_TEXT, "score_mod, column 9: 'x'");
  REFUSED(o.mask_mod = "score > 0", ONEPASS_BAD_TEXT, "mask_mod, column 1: 'score'");
  REFUSED(o.mod_buffer_count = 9, ONEPASS_BAD_VALUE, "options.mod_buffer_count is 9");
  REFUSED(o.mod_buffer_count = 1, ONEPASS_BAD_VALUE, "options.mod_buffer_names is a null pointer");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, names[0] = NULL), ONEPASS_BAD_VALUE,
          "mod_buffers[0]'s name is a null pointer");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, names[0] = "x"), ONEPASS_BAD_VALUE,
          "options.mod_buffers is a null pointer");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, o.mod_buffers = &p.tlse), ONEPASS_BAD_VALUE,
          "neither a score_mod nor a mask_mod");

  /* The size says what the caller knows. */
  REFUSED(o.size = 0, ONEPASS_BAD_VALUE, "options.size is 0");
  REFUSED(o.size = (size_t)-1, ONEPASS_BAD_VALUE, "onepass_options_init sets it");
  FAILS(onepass_options_init(&o, 1), ONEPASS_BAD_VALUE, "size is 1");
  FAILS(onepass_options_init(NULL, sizeof o), ONEPASS_BAD_VALUE, "options is a null pointer");
  CHECK(onepass_options_init(&grown.known, sizeof grown) == ONEPASS_OK);
  grown.known.implementation = "reference";
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &grown.known) == ONEPASS_OK);
  fresh();
  grown.newer[3] = 1;
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &grown.known), ONEPASS_UNSUPPORTED, "does not know");
  CHECK(untouched(&p));
  CHECK(onepass_options_init(&o, offsetof(onepass_options, lse)) == ONEPASS_OK); /* an older caller */
  o.mask = 6;
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "options.mask");
}

/* A pool that loses a task must not go unnoticed. */
static void lazy(void* user, int64_t tasks, onepass_task task, void* context) {
  (void)user;
  while (tasks-- > 1) task(context, tasks, 0);
}

/* Pools that hand out what they have not got, or a task too many. */
static void stranger(void* user, int64_t tasks, onepass_task task, void* context) {
  while (tasks-- > 0) task(context, tasks, *(const int32_t*)user);
}
static void eager(void* user, int64_t tasks, onepass_task task, void* context) {
  const int64_t last = tasks;
  while (tasks-- > 0) task(context, tasks, 0);
  task(context, user ? -1 : last, 0);
}

static void executors(void) {
  static int32_t strangers[4] = {2, 100000, -1, INT32_MIN};
  static problem other;
  onepass_executor* e = NULL;
  int i;
  fill(&other);
  fresh();
  FAILS(onepass_executor_create(-1, &e), ONEPASS_BAD_VALUE, "threads is -1");
  FAILS(onepass_executor_create(1 << 30, &e), ONEPASS_BAD_VALUE, "threads is 1073741824");
  FAILS(onepass_executor_create(1, NULL), ONEPASS_BAD_VALUE, "executor is a null pointer");
  FAILS(onepass_executor_wrap(0, lazy, NULL, &e), ONEPASS_BAD_VALUE, "the executor has 0 workers; 1 to 65536");
  FAILS(onepass_executor_wrap(-7, lazy, NULL, &e), ONEPASS_BAD_VALUE, "the executor has -7 workers");
  FAILS(onepass_executor_wrap(65537, lazy, NULL, &e), ONEPASS_BAD_VALUE, "the executor has 65537 workers");
  FAILS(onepass_executor_wrap(1, NULL, NULL, &e), ONEPASS_BAD_VALUE, "parallel_for is a null pointer");
  CHECK(e == NULL && onepass_executor_workers(NULL) == 0);
  CHECK(onepass_executor_wrap(1, lazy, NULL, &e) == ONEPASS_OK);
  o.executor = e;
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_INTERNAL, "ran 7 of 8 tasks");
  onepass_executor_destroy(e);
  for (i = 0; i < 4; ++i) {
    CHECK(onepass_executor_wrap(2, stranger, &strangers[i], &e) == ONEPASS_OK);
    fresh();
    o.executor = e;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "it has 2 workers, from 0 on");
    CHECK(untouched(&p));
    o.implementation = NULL;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "it has 2 workers, from 0 on");
    FAILS(onepass_merge(1, &p.tout, &p.tlse, &other.tout, NULL, e), ONEPASS_BAD_VALUE, "2 workers");
    onepass_executor_destroy(e);
  }
  for (i = 0; i < 2; ++i) {
    CHECK(onepass_executor_wrap(1, eager, i ? strangers : NULL, &e) == ONEPASS_OK);
    fresh();
    o.executor = e;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE,
          i ? "ran task -1; 0 to 7 were asked for" : "ran task 8; 0 to 7 were asked for");
    onepass_executor_destroy(e);
  }
  onepass_executor_destroy(NULL);
}

static void problems_and_plans(void) {
  onepass_problem *problem_ = NULL, *other = NULL, *cuda = NULL, *on_device = NULL;
  onepass_plan* plan = NULL;
  onepass_executor* serial = NULL;
  char buffer[100];
  fresh();
  FAILS(onepass_problem_parse(NULL, &problem_), ONEPASS_BAD_VALUE, "line is a null pointer");
  FAILS(onepass_problem_parse("fwd", NULL), ONEPASS_BAD_VALUE, "problem is a null pointer");
  FAILS(onepass_problem_parse("fwd h3x", &problem_), ONEPASS_BAD_TEXT, "'h3x'");
  FAILS(onepass_problem_parse("fwd h3/2", &problem_), ONEPASS_BAD_SHAPE, "no multiple");
  FAILS(onepass_problem_make(&p.tq, &p.tk, &p.tv, NULL, &o, &problem_), ONEPASS_BAD_VALUE, "out is a null pointer");
  FAILS(onepass_problem_print(NULL, buffer, sizeof buffer, NULL), ONEPASS_BAD_VALUE, "problem is a null pointer");
  FAILS(onepass_explain(NULL, buffer, sizeof buffer, NULL), ONEPASS_BAD_VALUE, "problem is a null pointer");
  CHECK(problem_ == NULL);

  CHECK(onepass_problem_make(&p.tq, &p.tk, &p.tv, &p.tout, &o, &problem_) == ONEPASS_OK);
  CHECK(onepass_problem_parse("fwd s9", &other) == ONEPASS_OK);
  CHECK(onepass_problem_parse("fwd s9 d576/512 cuda", &cuda) == ONEPASS_OK);
  FAILS(onepass_problem_print(problem_, NULL, 10, NULL), ONEPASS_BAD_VALUE, "buffer is a null pointer");
  FAILS(onepass_plan_create(NULL, NULL, NULL, &plan), ONEPASS_BAD_VALUE, "problem is a null pointer");
  FAILS(onepass_plan_create(problem_, NULL, NULL, NULL), ONEPASS_BAD_VALUE, "plan is a null pointer");
  FAILS(onepass_plan_create(problem_, "cpu.none", NULL, &plan), ONEPASS_BAD_VALUE, "'cpu.none' is unknown");
  FAILS(onepass_plan_create(cuda, NULL, NULL, &plan), ONEPASS_UNSUPPORTED, "no implementation accepts");
  FAILS(onepass_plan_create(cuda, "reference", NULL, &plan), ONEPASS_UNSUPPORTED, "requires tensors on the CPU");
  CHECK(plan == NULL);
  CHECK(onepass_plan_workspace_bytes(NULL) == 0 && strcmp(onepass_plan_implementation(NULL), "") == 0);

  /* only the views say so; nothing is computed */
  p.tq.device_kind = p.tk.device_kind = p.tv.device_kind = p.tout.device_kind = ONEPASS_CUDA;
  CHECK(onepass_problem_make(&p.tq, &p.tk, &p.tv, &p.tout, NULL, &on_device) == ONEPASS_OK);
  CHECK(onepass_problem_print(on_device, buffer, sizeof buffer, NULL) == ONEPASS_OK && strstr(buffer, " cuda:0"));
  onepass_problem_destroy(on_device);
  fresh();

  CHECK(onepass_executor_create(1, &serial) == ONEPASS_OK);
  CHECK(onepass_plan_create(other, "reference", serial, &plan) == ONEPASS_OK);
  o.executor = serial;
  FAILS(onepass_plan_run(NULL, &p.tq, &p.tk, &p.tv, &p.tout, &o, NULL, 0), ONEPASS_BAD_VALUE, "plan is a null pointer");
  FAILS(onepass_plan_run(plan, &p.tq, &p.tk, &p.tv, &p.tout, &o, NULL, 0), ONEPASS_BAD_SHAPE, "but the plan is for");
  CHECK(untouched(&p));
  onepass_plan_destroy(plan);
  onepass_plan_destroy(NULL);
  onepass_problem_destroy(problem_);
  onepass_problem_destroy(other);
  onepass_problem_destroy(cuda);
  onepass_problem_destroy(NULL);
  onepass_executor_destroy(serial);
}

static void merges(void) {
  fresh();
  FAILS(onepass_merge(1, NULL, &p.tlse, &p.tout, NULL, NULL), ONEPASS_BAD_VALUE, "outs is a null pointer");
  FAILS(onepass_merge(1, &p.tq, NULL, &p.tout, NULL, NULL), ONEPASS_BAD_VALUE, "lses is a null pointer");
  FAILS(onepass_merge(1, &p.tq, &p.tlse, NULL, NULL, NULL), ONEPASS_BAD_VALUE, "out is a null pointer");
  FAILS(onepass_merge(1, &p.tq, &p.tlse, &p.tout, NULL, NULL), ONEPASS_BAD_SHAPE, "out");
  CHECK(untouched(&p));
}

void test_errors(void) {
  tensors();
  options();
  executors();
  problems_and_plans();
  merges();
}
