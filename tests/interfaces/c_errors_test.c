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
  FAILS(onepass_attention(NULL, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "q must not be NULL");
  FAILS(onepass_attention(&p.tq, NULL, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "k must not be NULL");
  FAILS(onepass_attention(&p.tq, &p.tk, NULL, &p.tout, &o), ONEPASS_BAD_VALUE, "v must not be NULL");
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, NULL, &o), ONEPASS_BAD_VALUE, "out must not be NULL");
  REFUSED(p.tq.rank = 0, ONEPASS_BAD_SHAPE, "q must have 1 to 4 dimensions (got 0)");
  REFUSED(p.tq.rank = 5, ONEPASS_BAD_SHAPE, "q must have 1 to 4 dimensions (got 5)");
  REFUSED(p.tq.rank = -1, ONEPASS_BAD_SHAPE, "q must have 1 to 4 dimensions (got -1)");
  REFUSED(p.tv.dtype = 7, ONEPASS_BAD_DTYPE, "the dtype of v must be a value of onepass_dtype (got 7)");
  REFUSED(p.tv.dtype = -1, ONEPASS_BAD_DTYPE, "(got -1)");
  REFUSED(p.tv.dtype = ONEPASS_F16, ONEPASS_BAD_DTYPE, "v must be fp32, as k (got fp16)");
  REFUSED(p.tk.device_kind = 2, ONEPASS_BAD_DEVICE, "the device_kind of k must be ONEPASS_CPU or ONEPASS_CUDA (got 2)");
  REFUSED(p.tk.device_kind = ONEPASS_CUDA, ONEPASS_BAD_DEVICE, "k must be on cpu, as q (got cuda:0)");
  REFUSED(p.tk.shape[1] = 3, ONEPASS_BAD_SHAPE, "must be 3, as in k");
  REFUSED(p.tk.shape[3] = 7, ONEPASS_BAD_SHAPE, "(got shape [2, 2, 7, 7])");
  REFUSED(p.tout.shape[2] = -1, ONEPASS_BAD_SHAPE, "the sizes of out must be 0 or more");
  REFUSED(p.tq.stride[3] = 2, ONEPASS_BAD_STRIDE, "the last dimension of q must have stride 1 (got 2)");
  REFUSED(p.tout.stride[0] = 0, ONEPASS_BAD_STRIDE, "out has stride 0");
  REFUSED(p.tq.data = NULL, ONEPASS_BAD_VALUE, "null pointer");

  FAILS(onepass_tensor_init(NULL, p.q, ONEPASS_F32, 4, fine), ONEPASS_BAD_VALUE, "tensor must not be NULL");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 4, NULL), ONEPASS_BAD_VALUE, "shape must not be NULL");
  FAILS(onepass_tensor_init(&t, p.q, 77, 4, fine), ONEPASS_BAD_DTYPE, "(got 77)");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 7, fine), ONEPASS_BAD_SHAPE, "dimensions (got 7)");
  FAILS(onepass_tensor_init(&t, p.q, ONEPASS_F32, 4, huge), ONEPASS_BAD_SHAPE, "2^63");
}

static void options(void) {
  struct {
    onepass_options known;
    char newer[16];
  } grown;
  const char* names[1];
  fresh();
  REFUSED(o.mask = 6, ONEPASS_BAD_VALUE, "options.mask must be a value of onepass_mask (got 6)");
  REFUSED(o.mask = -1, ONEPASS_BAD_VALUE, "(got -1)");
  REFUSED(o.align_offset = 3, ONEPASS_BAD_VALUE,
          "options.align_offset must be 0 unless options.mask is ONEPASS_CAUSAL_OFFSET");
  REFUSED((o.mask = ONEPASS_CAUSAL_TOP_LEFT, o.align_offset = -1), ONEPASS_BAD_VALUE, "(got -1 and mask 2)");
  REFUSED((o.mask = ONEPASS_CAUSAL_OFFSET, o.align_offset = INT64_MAX), ONEPASS_BAD_VALUE,
          "the band's offset must be -2^60 to 2^60");
  REFUSED(o.window_left = -2, ONEPASS_BAD_VALUE, "window's left side must be");
  REFUSED(o.softcap = -1, ONEPASS_BAD_VALUE, "softcap must be");
  REFUSED(o.dropout_p = 1.5f, ONEPASS_BAD_VALUE, "dropout_p must be 0 to 1 (got 1.5)");
  REFUSED((o.has_scale = 1, o.scale = 1e308 * 10), ONEPASS_BAD_VALUE, "(got inf)");
  REFUSED(o.implementation = "cpu.none", ONEPASS_BAD_VALUE, "(got 'cpu.none')");
  REFUSED(o.bias = &p.tq, ONEPASS_BAD_SHAPE, "of bias must be");
  REFUSED(o.bool_mask = &p.tq, ONEPASS_BAD_DTYPE, "bool_mask must be bool (got fp32)");
  REFUSED(o.sinks = &p.tq, ONEPASS_BAD_SHAPE, "sinks must have shape");
  REFUSED(o.alibi_slopes = &p.tq, ONEPASS_BAD_SHAPE, "alibi_slopes must have shape");
  REFUSED(o.cu_seqlens_q = &p.tq, ONEPASS_BAD_SHAPE, "q must have shape");
  REFUSED(p.tlse.rank = 9, ONEPASS_BAD_SHAPE, "lse must have 1 to 4 dimensions (got 9)");
  REFUSED(p.tlse.shape[2] = 3, ONEPASS_BAD_SHAPE, "of lse must be");
  REFUSED(p.tout.data = p.q, ONEPASS_BAD_VALUE, "out must not share memory with q");
  REFUSED(p.tout.data = p.v + B * HK * SK * DV - 1, ONEPASS_BAD_VALUE, "out must not share memory with v");
  REFUSED(p.tlse.data = p.k, ONEPASS_BAD_VALUE, "lse must not share memory with k");
  REFUSED(p.tlse.data = p.out, ONEPASS_BAD_VALUE, "lse must not share memory with out");

  REFUSED(o.score_mod = "score + x", ONEPASS_BAD_TEXT, "score_mod, column 9: 'x'");
  REFUSED(o.mask_mod = "score > 0", ONEPASS_BAD_TEXT, "mask_mod, column 1: 'score'");
  REFUSED(o.mod_buffer_count = 9, ONEPASS_BAD_VALUE, "options.mod_buffer_count must be at most 8 (got 9)");
  REFUSED(o.mod_buffer_count = 1, ONEPASS_BAD_VALUE, "options.mod_buffer_names must not be NULL");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, names[0] = NULL), ONEPASS_BAD_VALUE,
          "mod_buffers[0]'s name must not be NULL");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, names[0] = "x"), ONEPASS_BAD_VALUE,
          "options.mod_buffers must not be NULL");
  REFUSED((o.mod_buffer_count = 1, o.mod_buffer_names = names, o.mod_buffers = &p.tlse), ONEPASS_BAD_VALUE,
          "mod_buffers requires a score_mod or a mask_mod");

  /* The size says what the caller knows. */
  REFUSED(o.size = 0, ONEPASS_BAD_VALUE, "options.size must be as onepass_options_init sets it (got 0)");
  REFUSED(o.size = (size_t)-1, ONEPASS_BAD_VALUE, "onepass_options_init sets it");
  /* In the middle of a pointer, of which the caller would know a half. */
  REFUSED(o.size = offsetof(onepass_options, bias) + sizeof(void*) / 2, ONEPASS_BAD_VALUE,
          "onepass_options_init sets it");
  REFUSED((o.mask = ONEPASS_CAUSAL_BOTTOM_RIGHT, o.window_right = 5), ONEPASS_BAD_VALUE,
          "right side must be -1 or 0 with a causal mask (got 5)");
  FAILS(onepass_options_init(&o, 1), ONEPASS_BAD_VALUE, "(got 1)");
  FAILS(onepass_options_init(NULL, sizeof o), ONEPASS_BAD_VALUE, "options must not be NULL");
  CHECK(onepass_options_init(&grown.known, sizeof grown) == ONEPASS_OK);
  grown.known.implementation = "reference";
  CHECK(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &grown.known) == ONEPASS_OK);
  fresh();
  grown.newer[3] = 1;
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &grown.known), ONEPASS_UNSUPPORTED,
        "does not support all fields that are set in options");
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
  FAILS(onepass_executor_create(-1, &e), ONEPASS_BAD_VALUE, "threads must be 0 (all) to 4096 (got -1)");
  FAILS(onepass_executor_create(1 << 30, &e), ONEPASS_BAD_VALUE, "(got 1073741824)");
  FAILS(onepass_executor_create(1, NULL), ONEPASS_BAD_VALUE, "executor must not be NULL");
  FAILS(onepass_executor_wrap(0, lazy, NULL, &e), ONEPASS_BAD_VALUE,
        "the executor must have 1 to 65536 workers (got 0)");
  FAILS(onepass_executor_wrap(-7, lazy, NULL, &e), ONEPASS_BAD_VALUE, "workers (got -7)");
  FAILS(onepass_executor_wrap(65537, lazy, NULL, &e), ONEPASS_BAD_VALUE, "workers (got 65537)");
  FAILS(onepass_executor_wrap(1, NULL, NULL, &e), ONEPASS_BAD_VALUE, "parallel_for must not be NULL");
  CHECK(e == NULL && onepass_executor_workers(NULL) == 0);
  CHECK(onepass_executor_wrap(1, lazy, NULL, &e) == ONEPASS_OK);
  o.executor = e;
  FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_INTERNAL, "must run all 8 tasks (got 7)");
  onepass_executor_destroy(e);
  for (i = 0; i < 4; ++i) {
    CHECK(onepass_executor_wrap(2, stranger, &strangers[i], &e) == ONEPASS_OK);
    fresh();
    o.executor = e;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "must run tasks as workers 0 to 1");
    CHECK(untouched(&p));
    o.implementation = NULL;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE, "must run tasks as workers 0 to 1");
    FAILS(onepass_merge(1, &p.tout, &p.tlse, &other.tout, NULL, e), ONEPASS_BAD_VALUE, "workers 0 to 1");
    onepass_executor_destroy(e);
  }
  for (i = 0; i < 2; ++i) {
    CHECK(onepass_executor_wrap(1, eager, i ? strangers : NULL, &e) == ONEPASS_OK);
    fresh();
    o.executor = e;
    FAILS(onepass_attention(&p.tq, &p.tk, &p.tv, &p.tout, &o), ONEPASS_BAD_VALUE,
          i ? "must run tasks 0 to 7 (got -1)" : "must run tasks 0 to 7 (got 8)");
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
  FAILS(onepass_problem_parse(NULL, &problem_), ONEPASS_BAD_VALUE, "line must not be NULL");
  FAILS(onepass_problem_parse("fwd", NULL), ONEPASS_BAD_VALUE, "problem must not be NULL");
  FAILS(onepass_problem_parse("fwd h3x", &problem_), ONEPASS_BAD_TEXT, "'h3x'");
  FAILS(onepass_problem_parse("fwd h3/2", &problem_), ONEPASS_BAD_SHAPE, "must be a multiple of");
  FAILS(onepass_problem_make(&p.tq, &p.tk, &p.tv, NULL, &o, &problem_), ONEPASS_BAD_VALUE, "out must not be NULL");
  FAILS(onepass_problem_print(NULL, buffer, sizeof buffer, NULL), ONEPASS_BAD_VALUE, "problem must not be NULL");
  FAILS(onepass_explain(NULL, buffer, sizeof buffer, NULL), ONEPASS_BAD_VALUE, "problem must not be NULL");
  CHECK(problem_ == NULL);

  CHECK(onepass_problem_make(&p.tq, &p.tk, &p.tv, &p.tout, &o, &problem_) == ONEPASS_OK);
  CHECK(onepass_problem_parse("fwd s9", &other) == ONEPASS_OK);
  CHECK(onepass_problem_parse("fwd s9 d576/512 cuda", &cuda) == ONEPASS_OK);
  FAILS(onepass_problem_print(problem_, NULL, 10, NULL), ONEPASS_BAD_VALUE, "buffer must not be NULL");
  FAILS(onepass_plan_create(NULL, NULL, NULL, &plan), ONEPASS_BAD_VALUE, "problem must not be NULL");
  FAILS(onepass_plan_create(problem_, NULL, NULL, NULL), ONEPASS_BAD_VALUE, "plan must not be NULL");
  FAILS(onepass_plan_create(problem_, "cpu.none", NULL, &plan), ONEPASS_BAD_VALUE, "(got 'cpu.none')");
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
  FAILS(onepass_plan_run(NULL, &p.tq, &p.tk, &p.tv, &p.tout, &o, NULL, 0), ONEPASS_BAD_VALUE, "plan must not be NULL");
  FAILS(onepass_plan_run(plan, &p.tq, &p.tk, &p.tv, &p.tout, &o, NULL, 0), ONEPASS_BAD_SHAPE,
        "the call must match the plan: ");
  CHECK(untouched(&p));
  onepass_plan_destroy(plan);

  /* Options of a run that are not the plan's. */
  CHECK(onepass_plan_create(problem_, "reference", serial, &plan) == ONEPASS_OK);
#define OTHER(change, code, sentence)                                                       \
  fresh();                                                                                  \
  o.executor = serial;                                                                      \
  change;                                                                                   \
  FAILS(onepass_plan_run(plan, &p.tq, &p.tk, &p.tv, &p.tout, &o, NULL, 0), code, sentence); \
  CHECK(untouched(&p))
  OTHER(o.batch_invariant = 1, ONEPASS_BAD_SHAPE, "no batch_invariant (got batch_invariant)");
  OTHER((o.has_unified_max = 1, o.unified_max = 3), ONEPASS_BAD_SHAPE, "no unified_max=3 (got unified_max=3)");
  OTHER(o.max_seqlen_k = 9, ONEPASS_BAD_VALUE, "options.max_seqlen_k must be 0 (got 9)");
  OTHER(o.implementation = "cpu.none", ONEPASS_BAD_VALUE,
        "options.implementation must be NULL or the plan's reference");
#undef OTHER
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
  FAILS(onepass_merge(1, NULL, &p.tlse, &p.tout, NULL, NULL), ONEPASS_BAD_VALUE, "outs must not be NULL");
  FAILS(onepass_merge(1, &p.tq, NULL, &p.tout, NULL, NULL), ONEPASS_BAD_VALUE, "lses must not be NULL");
  FAILS(onepass_merge(1, &p.tq, &p.tlse, NULL, NULL, NULL), ONEPASS_BAD_VALUE, "out must not be NULL");
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
