// Normal numbers as torch draws them on a CPU: uniform ones by the Mersenne twister (Matsumoto and Nishimura 1998), and of 16 at a
// time the first eight and the last made normal by Box and Muller's formula, with Cephes' polynomials for logarithm, sine and cosine.
#include <math.h>
#include <stdint.h>
#include <string.h>

#define WORDS 624
#define MIDDLE 397
#define SMALLEST 1.17549435e-38f
#define BLOCK 256

static inline float real(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits(float x) { uint32_t found; memcpy(&found, &x, 4); return found; }

static inline uint32_t twisted(uint32_t word, uint32_t next) {
  uint32_t both = (word & 0x80000000u) | (next & 0x7fffffffu);
  return (both >> 1) ^ (-(next & 1u) & 0x9908b0dfu);
}

static void renew(uint32_t *words) {
  for (int k = 0; k < WORDS - MIDDLE; k++) words[k] = words[k + MIDDLE] ^ twisted(words[k], words[k + 1]);
  for (int k = WORDS - MIDDLE; k < WORDS - 1; k++) words[k] = words[k + MIDDLE - WORDS] ^ twisted(words[k], words[k + 1]);
  words[WORDS - 1] = words[MIDDLE - 1] ^ twisted(words[WORDS - 1], words[0]);
}

// Draws n numbers from [0, 1), multiples of 2^-24. `left` is one more than the words that are left, `at` the next one.
static void uniform(uint32_t *words, int32_t *left, uint64_t *at, float *to, long n) {
  while (n) {
    if (*left == 1) { renew(words); *left = WORDS + 1; *at = 0; }
    long now = *left - 1 < n ? *left - 1 : n;
    for (long i = 0; i < now; i++) {
      uint32_t word = words[*at + i];
      word ^= word >> 11;
      word ^= (word << 7) & 0x9d2c5680u;
      word ^= (word << 15) & 0xefc60000u;
      word ^= word >> 18;
      to[i] = (float)(int32_t)(word & 0xffffffu) * 0x1p-24f;
    }
    to += now; n -= now; *left -= now; *at += now;
  }
}

static inline float logarithm(float x) {
  x = x < SMALLEST ? SMALLEST : x;
  float exponent = (float)((int32_t)(bits(x) >> 23) - 127) + 1.0f;
  x = real((bits(x) & 0x807fffffu) | 0x3f000000u);
  int low = x < 0.707106781186547524f;
  exponent = exponent - (low ? 1.0f : 0.0f);
  x = (x - 1.0f) + (low ? x : 0.0f);
  float square = x * x, y = 7.0376836292e-2f;
  y = y * x - 1.1514610310e-1f;
  y = y * x + 1.1676998740e-1f;
  y = y * x - 1.2420140846e-1f;
  y = y * x + 1.4249322787e-1f;
  y = y * x - 1.6668057665e-1f;
  y = y * x + 2.0000714765e-1f;
  y = y * x - 2.4999993993e-1f;
  y = y * x + 3.3333331174e-1f;
  y = y * x;
  y = y * square;
  y = y + exponent * -2.12194440e-4f;
  y = y - square * 0.5f;
  return (x + y) + exponent * 0.693359375f;
}

// Makes of uniform a and b normal ones: sqrt(-2 log(1 - a)) times the cosine and the sine of 2 pi b.
static void normal(float *a, float *b) {
  for (int k = 0; k < BLOCK; k++) {
    float radius = sqrtf(-2.0f * logarithm(1.0f - a[k])), x = 6.283185307179586f * b[k];
    int32_t octant = ((int32_t)(x * 1.27323954473516f) + 1) & ~1;
    float turn = (float)octant;
    x = x + turn * -0.78515625f;
    x = x + turn * -2.4187564849853515625e-4f;
    x = x + turn * -3.77489497744594108e-8f;
    float square = x * x, c = 2.443315711809948e-5f, s = -1.9515295891e-4f;
    c = c * square - 1.388731625493765e-3f;
    c = c * square + 4.166664568298827e-2f;
    c = c * square;
    c = c * square;
    c = c - square * 0.5f;
    c = c + 1.0f;
    s = s * square + 8.3321608736e-3f;
    s = s * square - 1.6666654611e-1f;
    s = s * square;
    s = s * x;
    s = s + x;
    float sine = octant & 2 ? c : s, cosine = octant & 2 ? s : c;
    a[k] = radius * real(bits(cosine) ^ (uint32_t)(~(octant - 2) & 4) << 29);
    b[k] = radius * real(bits(sine) ^ (uint32_t)(octant & 4) << 29);
  }
}

static void all_normal(float *x, long n) {
  float a[BLOCK] = {0}, b[BLOCK] = {0};
  for (long i = 0; i < n; i += 2 * BLOCK) {
    long now = n - i < 2 * BLOCK ? n - i : 2 * BLOCK;
    for (long j = 0; j < now; j += 16) { memcpy(a + j / 2, x + i + j, 32); memcpy(b + j / 2, x + i + j + 8, 32); }
    normal(a, b);
    for (long j = 0; j < now; j += 16) { memcpy(x + i + j, a + j / 2, 32); memcpy(x + i + j + 8, b + j / 2, 32); }
  }
}

// Draws n >= 16 normal numbers by a generator's state, and leaves the state behind them. What is left over of whole groups of 16 is drawn
// with the last 16 once more.
void draw(char *state, float *to, long n) {
  int32_t *left = (int32_t *)(state + 8);
  uint64_t *at = (uint64_t *)(state + 16), *stored = (uint64_t *)(state + 24);
  uint32_t words[WORDS];
  for (int k = 0; k < WORDS; k++) words[k] = (uint32_t)stored[k];
  uniform(words, left, at, to, n);
  all_normal(to, n & ~15L);
  if (n & 15) { uniform(words, left, at, to + n - 16, 16); all_normal(to + n - 16, 16); }
  for (int k = 0; k < WORDS; k++) stored[k] = words[k];
}
