/* Two keys of equal score: the output is the mean of their values. A call that fails has its sentence. */
#include <onepass/onepass.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[4] = {1, 2, 3, 4}, k[8] = {1, 1, 1, 1, 1, 1, 1, 1}, v[4] = {1, 10, 3, 30};
  float out[2] = {0, 0};
  const int64_t q_shape[] = {1, 1, 1, 4}, k_shape[] = {1, 1, 2, 4}, v_shape[] = {1, 1, 2, 2},
                out_shape[] = {1, 1, 1, 2};
  onepass_tensor tq, tk, tv, tout;
  onepass_tensor_init(&tq, q, ONEPASS_F32, 4, q_shape);
  onepass_tensor_init(&tk, k, ONEPASS_F32, 4, k_shape);
  onepass_tensor_init(&tv, v, ONEPASS_F32, 4, v_shape);
  onepass_tensor_init(&tout, out, ONEPASS_F32, 4, out_shape);
  if (onepass_attention(&tq, &tk, &tv, &tout, NULL) != ONEPASS_OK) return 1;
  printf("out = [%g, %g], onepass %s\n", out[0], out[1], onepass_version());
  if (onepass_attention(&tq, &tv, &tv, &tout, NULL) != ONEPASS_BAD_SHAPE) return 2;
  printf("%s\n", onepass_last_error());
  return out[0] == 2 && out[1] == 20 && strstr(onepass_last_error(), "k") ? 0 : 3;
}
