/* onepass from C: exact attention in one pass.
 *
 * Every call returns a code; after anything but ONEPASS_OK, onepass_last_error() is one sentence that names the tensor,
 * the value and what would be accepted, and no output has been touched (but see onepass_executor_wrap). Nothing is
 * printed, no C++ exception leaves.
 * All calls may be made from any thread. What the words mean stands in docs/reference/conventions.md.
 *
 * ABI: values and fields are only ever added. Structs that may grow carry their size; the others are final. */
#ifndef ONEPASS_ONEPASS_H
#define ONEPASS_ONEPASS_H

#include <stddef.h>
#include <stdint.h>

#include "onepass/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0.2.0": of the library that is linked. */
ONEPASS_API const char* onepass_version(void);

/* ------------------------------------------------------------------------------------------------------- errors */
typedef enum onepass_code {
  ONEPASS_OK = 0,
  ONEPASS_BAD_SHAPE = 1,      /* sizes that do not fit together */
  ONEPASS_BAD_STRIDE = 2,     /* a layout that no kernel can read */
  ONEPASS_BAD_DTYPE = 3,      /* an element type that is not accepted here */
  ONEPASS_BAD_DEVICE = 4,     /* tensors on different or unknown devices */
  ONEPASS_BAD_VALUE = 5,      /* an option, a pointer or an element of an index tensor out of range */
  ONEPASS_BAD_TEXT = 6,       /* a problem line that does not parse */
  ONEPASS_BAD_FILE = 7,       /* for programs that read tensors from files; no call here returns it */
  ONEPASS_UNSUPPORTED = 8,    /* a valid problem that no implementation accepts */
  ONEPASS_OUT_OF_MEMORY = 9,  /* of the host or of a device */
  ONEPASS_INTERNAL = 10,      /* a fault of the library, or of a callback */
  ONEPASS_DEVICE_FAILURE = 11 /* a driver's call or a launch that failed */
} onepass_code;

/* The sentence of this thread's last call that failed; "" if none has. Valid until the next call that fails. */
ONEPASS_API const char* onepass_last_error(void);
/* "bad_shape"; "unknown" for anything else. */
ONEPASS_API const char* onepass_code_name(int32_t code);

/* ------------------------------------------------------------------------------------------------------ tensors */
enum { ONEPASS_MAX_RANK = 4 };
typedef enum onepass_dtype {
  ONEPASS_F32 = 0,
  ONEPASS_F16 = 1,
  ONEPASS_BF16 = 2,
  ONEPASS_F8E4M3 = 3,
  ONEPASS_BOOL = 4, /* one byte, 0 or 1 */
  ONEPASS_I32 = 5,
  ONEPASS_I64 = 6
} onepass_dtype;
typedef enum onepass_device_kind { ONEPASS_CPU = 0, ONEPASS_CUDA = 1 } onepass_device_kind;

/* A view: the library owns no tensor and writes only to outputs. Strides are in elements. */
typedef struct onepass_tensor {
  void* data;
  int32_t dtype; /* onepass_dtype */
  int32_t rank;  /* 1 to 4 */
  int64_t shape[ONEPASS_MAX_RANK];
  int64_t stride[ONEPASS_MAX_RANK];
  int32_t device_kind; /* onepass_device_kind */
  int32_t device_index;
} onepass_tensor;

/* Row-major over shape[0..rank), on the CPU. */
ONEPASS_API onepass_code onepass_tensor_init(onepass_tensor* tensor, const void* data, int32_t dtype, int32_t rank,
                                             const int64_t* shape);

/* ------------------------------------------------------------------------------------------------------ threads */
typedef struct onepass_executor onepass_executor;

/* A pool of `threads` workers (0: as many as the process may use). */
ONEPASS_API onepass_code onepass_executor_create(int32_t threads, onepass_executor** executor);

typedef void (*onepass_task)(void* context, int64_t task, int32_t worker);
/* Runs task(context, i, worker) for every i in [0, tasks) and returns when all are done. 0 <= worker < workers; two
 * calls that run at the same time never share a worker number. */
typedef void (*onepass_parallel_for)(void* user, int64_t tasks, onepass_task task, void* context);
/* The host's own threads; 1 to 65536 workers. A task or worker number out of range reaches no kernel: the task is left
 * out, and the call fails with ONEPASS_BAD_VALUE when parallel_for has returned. Its output may then be written in
 * part, as when parallel_for leaves tasks out. */
ONEPASS_API onepass_code onepass_executor_wrap(int32_t workers, onepass_parallel_for parallel_for, void* user,
                                               onepass_executor** executor);
ONEPASS_API int32_t onepass_executor_workers(const onepass_executor* executor); /* 0 for NULL */
ONEPASS_API void onepass_executor_destroy(onepass_executor* executor);          /* NULL is fine */

/* ------------------------------------------------------------------------------------------------------ options */
typedef enum onepass_mask {
  ONEPASS_NO_MASK = 0,             /* a window alone is aligned bottom-right */
  ONEPASS_CAUSAL_BOTTOM_RIGHT = 1, /* the last query sees the last key (flash-attn) */
  ONEPASS_CAUSAL_TOP_LEFT = 2,     /* query i sees keys 0..i (PyTorch is_causal) */
  ONEPASS_ALIGNED_TOP_LEFT = 3,    /* not causal; a window is aligned top-left */
  ONEPASS_CAUSAL_OFFSET = 4,       /* query i sees keys 0..i + align_offset (ONNX is_causal with past_key) */
  ONEPASS_ALIGNED_OFFSET = 5       /* not causal; a window is aligned at i + align_offset */
} onepass_mask;

/* onepass_options_init fills in the defaults; tensors and pointers that stay NULL are absent. */
typedef struct onepass_options {
  size_t size;       /* set by onepass_options_init; says which fields the caller knows */
  int32_t mask;      /* onepass_mask */
  int32_t has_scale; /* 0: the scale is 1/sqrt(dim) */
  double scale;
  /* Keys around the diagonal; -1 (the default) is unbounded. window_right must be -1 or 0 with a causal mask. */
  int64_t window_left, window_right;
  float softcap;              /* > 0: s = softcap tanh(s / softcap) */
  float dropout_p;            /* in [0, 1] */
  uint64_t seed;              /* of the dropout */
  const onepass_tensor* lse;  /* out (of a backward, in): fp32 [batch, heads_q, seq_q]; packed: [heads_q, total_q] */
  const onepass_tensor* bias; /* [batch|1, heads_q|1, seq_q|1, seq_k|1] */
  const onepass_tensor* bool_mask;    /* the same shapes; 1 = may attend */
  const onepass_tensor* alibi_slopes; /* fp32 [heads_q] or [batch, heads_q] */
  const onepass_tensor* sinks;        /* fp32 [heads_q] */
  const onepass_tensor* cu_seqlens_q; /* int32 [batch + 1] prefix sums; q, k, v, out are then [total, heads, dim] */
  const onepass_tensor* cu_seqlens_k;
  const char* implementation; /* by name; NULL: the first that accepts */
  onepass_executor* executor; /* NULL: a pool shared by all such calls */
  void* stream;               /* CUDA stream */
  const char* score_mod;      /* C++ expressions over score, batch, head, q_index, k_index and the buffers below */
  const char* mask_mod;       /* (docs/features/score_mod.md); NULL or "": none */
  size_t mod_buffer_count;
  const char* const* mod_buffer_names; /* [mod_buffer_count], as are the tensors */
  const onepass_tensor* mod_buffers;
  int64_t align_offset; /* -2^60 to 2^60; 0 unless mask is one of the two that read it */
  /* Packed sequences: upper bounds of their lengths, 0: the longest. A plan serves all lengths within them. Lengths
   * beyond are refused on the CPU and must not occur on a device, which alone knows them. */
  int64_t max_seqlen_q, max_seqlen_k;
  /* For a backward, which `dout` makes the call; it reads `lse`. A gradient that stays NULL is not computed. */
  const onepass_tensor* dout;         /* of out's shape and dtype: the gradient of the loss by out */
  const onepass_tensor* dlse;         /* fp32 of lse's shape: by lse, where that was used too */
  const onepass_tensor *dq, *dk, *dv; /* out: of the shapes of q, k and v, all of their dtype or all fp32 */
  const onepass_tensor *dbias, *dsinks, *dalibi_slopes; /* out: fp32 of the shapes of bias, sinks, alibi_slopes */
  int32_t deterministic;                                /* 1: the same bits every time; on the CPU it always is so */
  int32_t batch_invariant; /* 1: a sequence's results do not depend on what else is in the batch */
  /* K and V as a cache, of a forward; cu_seqlens_q packs q and out beside them, cu_seqlens_k stays NULL. page_table
   * needs seqused_k. */
  const onepass_tensor* seqused_k;  /* int32 [batch]: how many keys of each sequence count */
  const onepass_tensor* page_table; /* int32 [batch, pages]: k and v are then [pages, page_size, heads_kv, dim] */
  /* Of a forward: fp32 factors of ONEPASS_F8E4M3 tensors, [batch|1, heads|1, blocks of 128 rows|1]; dimensions at the
   * end may be left out. NULL: 1. */
  const onepass_tensor *q_descale, *k_descale, *v_descale;
  int32_t fast_accumulation;    /* 1: products of an ONEPASS_F8E4M3 q, k and v may lose up to 18 % of V's mean (docs) */
  const onepass_tensor* v_mean; /* fp32 [batch|1, heads_kv|1, dim_v|1]: what was taken out of an ONEPASS_F8E4M3 v */
  /* Of a forward of few rows: weights e^(s - unified_max) in place of the rows' maxima; rows whose largest score is
   * farther than 40 from it are computed again with their own, and are 1 in recomputed, int32 of lse's shape, which may
   * stay NULL. */
  int32_t has_unified_max;
  float unified_max;
  const onepass_tensor* recomputed;
  uint32_t
      dropout_start[4]; /* the batch entry, head, row and key (a multiple of 4) of the call's first ones, in draws */
  /* int32 [batch, n], n from 1 to 64: the last n tokens of a sequence are drafts. tree[b, i] is the index of draft i's
   * parent among them, -1 if it has none. A draft sees the keys before all drafts, its ancestors and itself. Requires
   * ONEPASS_CAUSAL_BOTTOM_RIGHT. */
  const onepass_tensor* tree;
  /* int32 [batch|1, heads_q|1, tiles of rows|1, tiles of keys|1]: 0 is an empty tile, which hides all of its elements,
   * 2 a full one, in which mask_mod counts as true, and any other number a mixed one. */
  const onepass_tensor* block_mask;
  int64_t mask_tile_q, mask_tile_k; /* rows and keys of its tiles; 0: 128 */
  /* Out, of a forward: fp32 of lse's shape, the rows' largest scores, -inf where a row sees no key. A sink does not
   * count; NaN or infinity where a score that the row sees is NaN or +infinity. */
  const onepass_tensor* row_max;
  /* Tangents of q, k and v for onepass_jvp, of their shapes and dtypes; those of bias and sinks, or NULL for 0. Out:
   * the derivative of out, of its shape and dtype, and of lse (may be NULL). */
  const onepass_tensor *tq, *tk, *tv, *tbias, *tsinks, *tout, *tlse;
  /* Tangents of dout and dlse for onepass_backward_jvp, or NULL for 0. Out: the derivatives of dq, dk, dv, dbias,
   * dsinks and dalibi_slopes, of their shapes and dtypes; at least one is given. */
  const onepass_tensor *tdout, *tdlse, *tdq, *tdk, *tdv, *tdbias, *tdsinks, *tdalibi_slopes;
  /* int64 [1] on q's device: the dropout's seed in place of `seed`, which is then 0. Kernels read it when they run. */
  const onepass_tensor* dropout_seed;
  /* fp32 of lse's shape. Out, of a forward: the entropy of each row's weights in nats, 0 where a row sees no key. A
   * sink counts as a key. In, of a backward: that entropy, and its gradient; both or neither. */
  const onepass_tensor *entropy, *dentropy;
  /* 1: out is a part of a result that onepass_merge completes. An fp32 out of 16-bit inputs divides by the sum of the
   * unrounded weights then, else by the sum of the rounded ones. Of a forward. */
  int32_t partial;
  int32_t tf32; /* 1: products of an fp32 q, k and v may round their operands to TF32's 11 significant bits (docs) */
} onepass_options;

/* onepass_options o; onepass_options_init(&o, sizeof o); */
ONEPASS_API onepass_code onepass_options_init(onepass_options* options, size_t size);

/* ----------------------------------------------------------------------------------------------------- one call */
/* out = softmax(scale q k^T ...) v on tensors [batch, heads, seq, dim]. options may be NULL. out and lse share no
 * memory with an input or each other. */
ONEPASS_API onepass_code onepass_attention(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                           const onepass_tensor* out, const onepass_options* options);

/* The gradients of onepass_attention, from the out and lse that it wrote: those of options->dq, dk, dv, dbias, dsinks
 * and dalibi_slopes that are given, from options->dout and options->lse. They share no memory with an input or each
 * other. */
ONEPASS_API onepass_code onepass_attention_backward(const onepass_tensor* q, const onepass_tensor* k,
                                                    const onepass_tensor* v, const onepass_tensor* out,
                                                    const onepass_options* options);

/* onepass_attention and its derivative along the tangents options->tq, tk and tv, and tbias and tsinks where they are
 * given, into options->tout and, with lse, tlse. The outputs share no memory with an input or each other. */
ONEPASS_API onepass_code onepass_jvp(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                     const onepass_tensor* out, const onepass_options* options);

/* The derivatives of onepass_attention_backward's results along the tangents options->tq, tk and tv, and tbias, tsinks,
 * tdout and tdlse where they are given. It reads out, options->lse, tout and tlse, results of onepass_jvp along these
 * tangents, and options->dout and dlse. */
ONEPASS_API onepass_code onepass_backward_jvp(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                              const onepass_tensor* out, const onepass_options* options);

/* Joins `count` partial results over disjoint key sets: outs[i] [.., rows, dim] with outs' natural-log lses[i]
 * [.., rows] in fp32. lse (out) and executor may be NULL. out may be one of outs, and lse one of lses. */
ONEPASS_API onepass_code onepass_merge(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                                       const onepass_tensor* out, const onepass_tensor* lse,
                                       onepass_executor* executor);
/* The same on a CUDA stream, with up to 256 partial results on its device; returns at once. */
ONEPASS_API onepass_code onepass_merge_on_stream(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                                                 const onepass_tensor* out, const onepass_tensor* lse,
                                                 onepass_executor* executor, void* stream);

/* Attention of packed rows q [total, heads_q, dim] to keys in levels, which are disjoint: what groups of rows share is
 * read once. A level's options hold its groups of rows (cu_seqlens_q; NULL: all rows are one), the lengths or pages of
 * its keys, and its mask; no lse, row_max, sinks, recomputed, executor and stream. out [total, heads_q, dim_v]; lse
 * (out, fp32 [heads_q, total]), sinks (fp32 [heads_q]) and executor may be NULL. */
typedef struct onepass_level {
  const onepass_tensor *k, *v;
  const onepass_options* options; /* NULL: the defaults */
} onepass_level;
ONEPASS_API onepass_code onepass_cascade(const onepass_tensor* q, size_t count, const onepass_level* levels,
                                         const onepass_tensor* out, const onepass_tensor* lse,
                                         const onepass_tensor* sinks, onepass_executor* executor, void* stream);
/* The same with the largest score of each row over all levels: row_max (out, fp32 [heads_q, total]). */
ONEPASS_API onepass_code onepass_cascade_with_max(const onepass_tensor* q, size_t count, const onepass_level* levels,
                                                  const onepass_tensor* out, const onepass_tensor* lse,
                                                  const onepass_tensor* row_max, const onepass_tensor* sinks,
                                                  onepass_executor* executor, void* stream);

/* ------------------------------------------------------------------------------------------------- writing a cache */
/* onepass_append_init fills in the defaults; tensors that stay NULL are absent. k_new, v_new, k, v, q and q_out are all
 * fp32, all fp16 or all bf16, but k and v may be ONEPASS_F8E4M3, and fp16 or bf16 beside fp32. */
typedef struct onepass_append {
  size_t size;                 /* set by onepass_append_init; says which fields the caller knows */
  const onepass_tensor* k_new; /* [batch, heads_kv, seq_new, dim]; with cu_seqlens_q [total, heads_kv, dim] */
  const onepass_tensor* v_new;
  const onepass_tensor* k; /* out, the cache: [batch, heads_kv, capacity, dim], or the pages [pages, page_size, */
  const onepass_tensor* v; /* heads_kv, dim] of a page_table */
  const onepass_tensor* seqused_k;    /* the old name of cache_seqlens, for either of the two */
  const onepass_tensor* page_table;   /* int32 [batch, pages of a sequence] */
  const onepass_tensor* cu_seqlens_q; /* int32 [batch + 1] prefix sums */
  const onepass_tensor* cos;          /* [positions, rotary_dim / 2], fp32 or of k's dtype; NULL: no rotation */
  const onepass_tensor* sin;
  const onepass_tensor* q;     /* [batch, heads_q, seq_new, dim], packed as k_new is: rotated as the keys are */
  const onepass_tensor* q_out; /* out; may be q */
  int32_t interleaved;         /* 1: pairs are elements (2i, 2i + 1); 0: (i, i + rotary_dim / 2) */
  onepass_executor* executor;  /* NULL: a pool shared by all such calls */
  void* stream;                /* CUDA stream */
  /* fp32 factors of an ONEPASS_F8E4M3 k and v, [batch|1, heads_kv|1, blocks of 128 keys|1]; NULL: 1 */
  const onepass_tensor *k_descale, *v_descale;
  /* int32 [batch]: how many keys each sequence has before the call, which does not change them */
  const onepass_tensor* cache_seqlens;
  /* In place of cache_seqlens, page_table and cu_seqlens_q: ONEPASS_I64 or ONEPASS_I32 [tokens], the slot
   * page_size * page + offset of each token. k_new, v_new and q are [tokens, heads, dim], k and v pages. */
  const onepass_tensor* slot_mapping;
  const onepass_tensor* positions;     /* with slot_mapping and cos: ONEPASS_I32 or ONEPASS_I64 [tokens], rows of cos */
  const onepass_tensor* cos_sin_cache; /* in place of cos and sin: [positions, rotary_dim], cos, then sin */
} onepass_append;

/* onepass_append a; onepass_append_init(&a, sizeof a); */
ONEPASS_API onepass_code onepass_append_init(onepass_append* append, size_t size);

/* Token t of sequence b becomes key p = cache_seqlens[b] + t of the cache, in page page_table[b, p / page_size] at
 * p % page_size, rotated (but for v) by row p of cos and sin: RoPE, arXiv:2104.09864. A length, page or row out of
 * range is an error on the CPU; on a device such a token is left out. With slot_mapping token t goes to page
 * slot / page_size at slot % page_size, rotated by row positions[t]; k and v of a negative slot are skipped, q is not.
 * Outputs share no memory with an input or each
 * other, but for a q_out that is q. */
ONEPASS_API onepass_code onepass_append_kv(const onepass_append* append);

/* ----------------------------------------------------------------------------------------------- softmax over rows */
/* onepass_softmax_init fills in the defaults; tensors that stay NULL are absent. All of x, y, dy and dx have one shape
 * [.., n] of rank 1 to 4, any strides, fp32, fp16 or bf16; lse and row_lse are fp32 [..], [1] of a single row. */
typedef struct onepass_softmax {
  size_t size;                     /* set by onepass_softmax_init; says which fields the caller knows */
  const onepass_tensor* x;         /* of a forward */
  const onepass_tensor* y;         /* out (of a backward, in): of x's dtype or fp32 */
  const onepass_tensor* lse;       /* out: the natural logarithms of the rows' sums */
  const onepass_tensor* row_lse;   /* x is a piece of rows with these LSEs: y = e^(scale x - row_lse); no lse then */
  const onepass_tensor* bool_mask; /* x's sizes or 1; 1 = visible */
  const onepass_tensor *dy,
      *dx;                    /* of a backward: of y's dtype, and out: of y's too, or any of the three if y is fp32 */
  double scale;               /* 1 */
  int32_t log;                /* 1: y is the logarithm */
  onepass_executor* executor; /* NULL: a pool shared by all such calls */
  void* stream;               /* CUDA stream */
} onepass_softmax;

/* onepass_softmax s; onepass_softmax_init(&s, sizeof s); */
ONEPASS_API onepass_code onepass_softmax_init(onepass_softmax* softmax, size_t size);

/* y = softmax(scale x) over the last dimension, and its lse; either may be absent. Where an entry is hidden, or x is
 * -inf, y is 0 (log: -inf). */
ONEPASS_API onepass_code onepass_softmax_forward(const onepass_softmax* softmax);

/* dx from y and dy: scale y (dy - sum dy y), log: scale (dy - e^y sum dy). Where y is 0 (log: -inf) dx is 0. */
ONEPASS_API onepass_code onepass_softmax_backward(const onepass_softmax* softmax);

/* The LSEs of rows from those of `count` pieces: lse = log sum_i e^lses[i], all fp32 of one shape of rank 1 to 3. */
ONEPASS_API onepass_code onepass_merge_lse(size_t count, const onepass_tensor* lses, const onepass_tensor* lse,
                                           onepass_executor* executor, void* stream);

/* -------------------------------------------------------------------------------------------------------------- fp8 */
/* onepass_quantize_init fills in the defaults; tensors that stay NULL are absent. */
typedef struct onepass_quantize {
  size_t size;                   /* set by onepass_quantize_init; says which fields the caller knows */
  const onepass_tensor* x;       /* [.., rows, n] of rank 1 to 4, any strides, fp32, fp16 or bf16; n from 1 to 256 */
  const onepass_tensor* y;       /* out: ONEPASS_F8E4M3 of x's shape */
  const onepass_tensor* descale; /* out: fp32 [batch|1, heads|1, blocks of 128 rows|1], its factors, powers of 2 */
  const onepass_tensor* mean;    /* out: fp32 [batch, heads, n], the mean of each column of a head, taken out of y */
  int32_t hadamard;              /* 1: rows are rotated */
  uint64_t seed;                 /* of the rotation's signs */
  onepass_executor* executor;    /* NULL: a pool shared by all such calls */
  void* stream;                  /* CUDA stream */
} onepass_quantize;

/* onepass_quantize q; onepass_quantize_init(&q, sizeof q); */
ONEPASS_API onepass_code onepass_quantize_init(onepass_quantize* quantize, size_t size);
/* Numbers to fp8_e4m3: docs/features/fp8.md. */
ONEPASS_API onepass_code onepass_quantize_rows(const onepass_quantize* quantize);

enum { ONEPASS_FP8_BY_BLOCK = 1, ONEPASS_FP8_NO_HADAMARD = 2, ONEPASS_FP8_CENTER = 4 };
/* onepass_attention of fp32, fp16 or bf16 tensors, which are quantized to fp8_e4m3 first: by factors of heads (or every
 * 128 rows), q and k rotated with signs by `seed` (or not), v's means taken out and given back (or not). */
ONEPASS_API onepass_code onepass_attention_fp8(const onepass_tensor* q, const onepass_tensor* k,
                                               const onepass_tensor* v, const onepass_tensor* out,
                                               const onepass_options* options, int32_t flags, uint64_t seed);

/* ------------------------------------------------------------------------------------------------------- flat GEMM */
/* y [m, n] = x [m, k] w [n, k]^T + column_bias [n] (may be NULL), any strides, sums in fp32. x, w and column_bias are
 * all bf16 or fp16, on the CPU also fp32; y is of their dtype or fp32. On CUDA m is up to 64, and stream the CUDA
 * stream; executor may be NULL. */
ONEPASS_API onepass_code onepass_flat_gemm(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                                           const onepass_tensor* column_bias, onepass_executor* executor, void* stream);

/* The same of any number of rows, on CUDA fp32 too, by the kernel that is fastest for it here: a GEMV, the flat GEMM,
 * or cuBLASLt or a BLAS opened at run time, by what `onepass tune` has measured, else by the shape. */
ONEPASS_API onepass_code onepass_linear(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                                        const onepass_tensor* column_bias, onepass_executor* executor, void* stream);

/* ------------------------------------------------------------------------------------------ problem -> plan -> run */
typedef struct onepass_problem onepass_problem;
typedef struct onepass_plan onepass_plan;

/* From a line, "fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right" (docs/reference/problem.md), or from tensors. */
ONEPASS_API onepass_code onepass_problem_parse(const char* line, onepass_problem** problem);
ONEPASS_API onepass_code onepass_problem_make(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v,
                                              const onepass_tensor* out, const onepass_options* options,
                                              onepass_problem** problem);
ONEPASS_API void onepass_problem_destroy(onepass_problem* problem); /* NULL is fine */

/* Text goes into the caller's buffer, cut to capacity - 1 bytes and a terminating 0; *length (may be NULL) becomes its
 * whole length without the 0. buffer may be NULL if capacity is 0. */
ONEPASS_API onepass_code onepass_problem_print(const onepass_problem* problem, char* buffer, size_t capacity,
                                               size_t* length);
/* The ordered list of implementations with each one's decision, a line each. */
ONEPASS_API onepass_code onepass_explain(const onepass_problem* problem, char* buffer, size_t capacity, size_t* length);

/* The first implementation that accepts, or the named one. implementation and executor may be NULL. A plan holds no
 * data and may be used from several threads at once; it outlives problem and executor. */
ONEPASS_API onepass_code onepass_plan_create(const onepass_problem* problem, const char* implementation,
                                             const onepass_executor* executor, onepass_plan** plan);
ONEPASS_API void onepass_plan_destroy(onepass_plan* plan);                     /* NULL is fine */
ONEPASS_API size_t onepass_plan_workspace_bytes(const onepass_plan* plan);     /* 0 for NULL */
ONEPASS_API const char* onepass_plan_implementation(const onepass_plan* plan); /* its name; "" for NULL */

/* Loads what the first onepass_plan_run would load, so that it can be captured into a CUDA graph. */
ONEPASS_API onepass_code onepass_plan_prepare(const onepass_plan* plan);

/* Allocates nothing large: `workspace` has at least onepass_plan_workspace_bytes bytes, aligned to 64, which share no
 * memory with a tensor. Tensors and options must be those of the plan's problem, or ONEPASS_BAD_SHAPE names the words
 * that differ. max_seqlen_q, max_seqlen_k and implementation may stay 0 and NULL here. The executor of the options
 * (NULL: the shared pool) has at most as many workers as the plan's. */
ONEPASS_API onepass_code onepass_plan_run(const onepass_plan* plan, const onepass_tensor* q, const onepass_tensor* k,
                                          const onepass_tensor* v, const onepass_tensor* out,
                                          const onepass_options* options, void* workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
