// 3x3 convolutions of stride 1 with a border of one zero, float32, channels last, by Winograd's F(4x4, 3x3)
// (Lavin and Gray, CVPR 2016): 36 products for 16 outputs, where the definition needs 144.
//
// Each 4x4 tile of outputs depends on a 6x6 tile of inputs. Both are transformed to 36 "frequencies", in which the
// convolution is 36 small matrix products over the channels. Tiles go in blocks whose transforms stay in the cache.
//
// Shapes: images (n, h, w, channels); filters in the transform's space (panels of OUT, 36, C, OUT). C is a multiple of
// WIDTH, K of OUT. Tiles are numbered over (n, ceil(h / 4), ceil(w / 4)); each thread has an even share of them, and its
// own part of `work`.
#include <stddef.h>
#include <string.h>

enum { WIDTH = 8, OUT = 16, BLOCK = 24, ROWS = 6 };  // BLOCK is a multiple of ROWS
typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }

// One dimension of the transforms, for points 0, 1, -1, 2, -2 and infinity. Two dimensions are one after the other.
INLINE void transform_input(vec o[6], vec d0, vec d1, vec d2, vec d3, vec d4, vec d5) {
  vec a = d4 - 4.f * d2, b = d3 - 4.f * d1, c = d4 - d2, d = 2.f * (d3 - d1);
  o[0] = 4.f * d0 - 5.f * d2 + d4;
  o[1] = a + b;
  o[2] = a - b;
  o[3] = c + d;
  o[4] = c - d;
  o[5] = 4.f * d1 - 5.f * d3 + d5;
}

INLINE void transform_output(vec o[4], vec m0, vec m1, vec m2, vec m3, vec m4, vec m5) {
  vec a = m1 + m2, b = m1 - m2, c = m3 + m4, d = m3 - m4;
  o[0] = m0 + a + c;
  o[1] = b + 2.f * d;
  o[2] = a + 4.f * c;
  o[3] = b + 8.f * d + m5;
}

// The adjoint of transform_output
INLINE void transform_gradient(vec o[6], vec y0, vec y1, vec y2, vec y3) {
  vec a = y0 + y2, b = y1 + y3, c = y0 + 4.f * y2, d = 2.f * y1 + 8.f * y3;
  o[0] = y0;
  o[1] = a + b;
  o[2] = a - b;
  o[3] = c + d;
  o[4] = c - d;
  o[5] = y3;
}

typedef struct {
  ptrdiff_t image, top, left;  // of the tile's outputs
} Place;

INLINE Place place(ptrdiff_t tile, ptrdiff_t h, ptrdiff_t w) {
  const ptrdiff_t down = (h + 3) / 4, across = (w + 3) / 4;
  return (Place){tile / (down * across), tile / across % down * 4, tile % across * 4};
}

// Where a pixel's channels lie; `zeros` outside the image
INLINE const float *pixel(const float *x, const float *zeros, Place at, ptrdiff_t row, ptrdiff_t column, ptrdiff_t h,
                          ptrdiff_t w, ptrdiff_t channels) {
  const ptrdiff_t r = at.top + row, c = at.left + column;
  return r < 0 || r >= h || c < 0 || c >= w ? zeros : x + ((at.image * h + r) * w + c) * channels;
}

// V (36, BLOCK, C) of `count` tiles
static void transform_inputs(const float *x, const float *zeros, ptrdiff_t h, ptrdiff_t w, ptrdiff_t C, ptrdiff_t first,
                             ptrdiff_t count, float *V) {
  for (ptrdiff_t t = 0; t < count; t++) {
    const Place at = place(first + t, h, w);
    const float *in[6][6];
    for (int r = 0; r < 6; r++)
      for (int c = 0; c < 6; c++) in[r][c] = pixel(x, zeros, at, r - 1, c - 1, h, w, C);
    for (ptrdiff_t c = 0; c < C; c += WIDTH) {
      vec m[6][6], o[6];
      for (int j = 0; j < 6; j++) {
        transform_input(o, load(in[0][j] + c), load(in[1][j] + c), load(in[2][j] + c), load(in[3][j] + c),
                        load(in[4][j] + c), load(in[5][j] + c));
        for (int i = 0; i < 6; i++) m[i][j] = o[i];
      }
      for (int i = 0; i < 6; i++) {
        transform_input(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
        for (int j = 0; j < 6; j++) store(V + ((i * 6 + j) * BLOCK + t) * C + c, o[j]);
      }
    }
  }
}

// sums[ROWS][OUT] += a b for a (ROWS, n) and b (n, OUT); element (r, k) of a lies at a[r * row + k * column]
INLINE void multiply(float *sums, const float *a, ptrdiff_t row, ptrdiff_t column, const float *b, ptrdiff_t n) {
  vec s[ROWS][2];
  for (int r = 0; r < ROWS; r++) {
    s[r][0] = load(sums + r * OUT);
    s[r][1] = load(sums + r * OUT + WIDTH);
  }
  for (ptrdiff_t k = 0; k < n; k++) {
    const vec b0 = load(b + k * OUT), b1 = load(b + k * OUT + WIDTH);
    for (int r = 0; r < ROWS; r++) {
      const float v = a[r * row + k * column];
      s[r][0] += v * b0;
      s[r][1] += v * b1;
    }
  }
  for (int r = 0; r < ROWS; r++) {
    store(sums + r * OUT, s[r][0]);
    store(sums + r * OUT + WIDTH, s[r][1]);
  }
}

static void convolve_tiles(const float *x, const float *U, const float *bias, float *y, ptrdiff_t h, ptrdiff_t w,
                           ptrdiff_t C, ptrdiff_t K, float *work, ptrdiff_t begin, ptrdiff_t end) {
  float *V = work, *M = V + 36 * BLOCK * C, *zeros = M + 36 * BLOCK * OUT;
  memset(zeros, 0, C * sizeof(float));
  for (ptrdiff_t first = begin; first < end; first += BLOCK) {
    const ptrdiff_t count = end - first < BLOCK ? end - first : BLOCK;
    transform_inputs(x, zeros, h, w, C, first, count, V);
    for (ptrdiff_t k = 0; k < K; k += OUT) {
      memset(M, 0, 36 * BLOCK * OUT * sizeof(float));
      for (int e = 0; e < 36; e++)
        for (ptrdiff_t t = 0; t < count; t += ROWS)  // the last rows may hold nothing of use, and are not read
          multiply(M + (e * BLOCK + t) * OUT, V + (e * BLOCK + t) * C, C, 1, U + (k / OUT * 36 + e) * C * OUT, C);
      for (ptrdiff_t t = 0; t < count; t++) {
        const Place at = place(first + t, h, w);
        for (int half = 0; half < OUT; half += WIDTH) {
          const float *in = M + t * OUT + half;
          vec m[4][6], o[4];
          for (int j = 0; j < 6; j++) {
#define FREQUENCY(i) load(in + ((i) * 6 + j) * BLOCK * OUT)
            transform_output(o, FREQUENCY(0), FREQUENCY(1), FREQUENCY(2), FREQUENCY(3), FREQUENCY(4), FREQUENCY(5));
#undef FREQUENCY
            for (int i = 0; i < 4; i++) m[i][j] = o[i];
          }
          for (int i = 0; i < 4 && at.top + i < h; i++) {
            transform_output(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
            float *out = y + ((at.image * h + at.top + i) * w + at.left) * K + k + half;
            for (int j = 0; j < 4 && at.left + j < w; j++) store(out + j * K, o[j] + load(bias + k + half));
          }
        }
      }
    }
  }
}

// y (n, h, w, K) = x (n, h, w, C) convolved with the filters U, plus bias (K). `work`: 36 BLOCK (C + OUT) + C floats for
// each thread.
void winograd_convolve(const float *x, const float *U, const float *bias, float *y, ptrdiff_t n, ptrdiff_t h,
                       ptrdiff_t w, ptrdiff_t C, ptrdiff_t K, float *work, ptrdiff_t threads) {
  const ptrdiff_t tiles = n * ((h + 3) / 4) * ((w + 3) / 4), room = 36 * BLOCK * (C + OUT) + C;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (ptrdiff_t i = 0; i < threads; i++)
    convolve_tiles(x, U, bias, y, h, w, C, K, work + i * room, tiles * i / threads, tiles * (i + 1) / threads);
}

static void filter_gradient_of_tiles(const float *x, const float *dy, float *dU, ptrdiff_t h, ptrdiff_t w, ptrdiff_t C,
                                     ptrdiff_t K, float *work, ptrdiff_t begin, ptrdiff_t end) {
  float *V = work, *M = V + 36 * BLOCK * C, *zeros = M + 36 * BLOCK * K;
  memset(zeros, 0, (C > K ? C : K) * sizeof(float));
  for (ptrdiff_t first = begin; first < end; first += BLOCK) {
    const ptrdiff_t count = end - first < BLOCK ? end - first : BLOCK;
    transform_inputs(x, zeros, h, w, C, first, count, V);
    for (ptrdiff_t t = 0; t < count; t++) {
      const Place at = place(first + t, h, w);
      const float *in[4][4];
      for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) in[r][c] = pixel(dy, zeros, at, r, c, h, w, K);
      for (ptrdiff_t k = 0; k < K; k += WIDTH) {
        vec m[6][4], o[6];
        for (int j = 0; j < 4; j++) {
          transform_gradient(o, load(in[0][j] + k), load(in[1][j] + k), load(in[2][j] + k), load(in[3][j] + k));
          for (int i = 0; i < 6; i++) m[i][j] = o[i];
        }
        for (int i = 0; i < 6; i++) {
          transform_gradient(o, m[i][0], m[i][1], m[i][2], m[i][3]);
          for (int j = 0; j < 6; j++) store(M + ((k / OUT * 36 + i * 6 + j) * BLOCK + t) * OUT + k % OUT, o[j]);
        }
      }
    }
    for (ptrdiff_t e = 0; e < K / OUT * 36; e++)
      for (ptrdiff_t c = 0; c < C; c += ROWS) {
        const ptrdiff_t from = c + ROWS <= C ? c : C - ROWS;
        const float *a = V + e % 36 * BLOCK * C, *b = M + e * BLOCK * OUT;
        float *out = dU + (e * C + from) * OUT;
        if (from == c) {
          multiply(out, a + c, 1, C, b, count);
        } else {  // the last rows, of which those below c are done already
          float sums[ROWS * OUT] = {0};
          multiply(sums, a + from, 1, C, b, count);
          for (ptrdiff_t i = (c - from) * OUT; i < ROWS * OUT; i++) out[i] += sums[i];
        }
      }
  }
}

// dU (threads, K / OUT, 36, C, OUT) += each thread's share of the loss's gradient to the filters, from x (n, h, w, C) and
// the gradient dy (n, h, w, K) to the output. `work`: 36 BLOCK (C + K) + max(C, K) floats for each thread.
void winograd_filter_gradient(const float *x, const float *dy, float *dU, ptrdiff_t n, ptrdiff_t h, ptrdiff_t w,
                              ptrdiff_t C, ptrdiff_t K, float *work, ptrdiff_t threads) {
  const ptrdiff_t tiles = n * ((h + 3) / 4) * ((w + 3) / 4), room = 36 * BLOCK * (C + K) + (C > K ? C : K);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (ptrdiff_t i = 0; i < threads; i++)
    filter_gradient_of_tiles(x, dy, dU + i * 36 * C * K, h, w, C, K, work + i * room, tiles * i / threads,
                             tiles * (i + 1) / threads);
}
