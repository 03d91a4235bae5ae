/* A test program's three words: CHECK, FAILS and the tensors of a small problem. */
#ifndef ONEPASS_TESTS_C_TEST_H
#define ONEPASS_TESTS_C_TEST_H

#include <stdio.h>
#include <string.h>

#include "onepass/onepass.h"

extern int failures;

#define CHECK(condition)                                                                                      \
  do {                                                                                                        \
    if (!(condition)) {                                                                                       \
      ++failures;                                                                                             \
      printf("%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, onepass_last_error()); \
    }                                                                                                         \
  } while (0)

/* The call returns the code, and its sentence contains the words. */
#define FAILS(call, expected, words)                                                                                  \
  do {                                                                                                                \
    const onepass_code got = (call);                                                                                  \
    if (got != (expected) || strstr(onepass_last_error(), (words)) == NULL) {                                         \
      ++failures;                                                                                                     \
      printf("%s:%d: %s gave %s, \"%s\"\n", __FILE__, __LINE__, #call, onepass_code_name(got), onepass_last_error()); \
    }                                                                                                                 \
  } while (0)

/* fp32, batch 2, 4 query heads on 2 K/V heads, 5 queries, 7 keys, dims 8 and 6. */
enum { B = 2, HQ = 4, HK = 2, SQ = 5, SK = 7, DQK = 8, DV = 6 };
typedef struct problem {
  float q[B * HQ * SQ * DQK], k[B * HK * SK * DQK], v[B * HK * SK * DV], out[B * HQ * SQ * DV], lse[B * HQ * SQ];
  onepass_tensor tq, tk, tv, tout, tlse;
} problem;
void fill(problem* p); /* repeatable numbers; out and lse get 777 */
int untouched(const problem* p);

void test_success(void);
void test_errors(void);
void test_append(void);
void test_softmax(void);
void test_quantize(void);
void test_flat_gemm(void);

#endif
