/* Local regression on the fine grid, all in one pass: what `LocalRegression.predict` computes, without its gradients.

The fine pixels of a coarse cell share their neighbours: up to LANES of them are worked on at once, one in each lane of
a vector, and everything about a pixel stays in the cache. */

#include <stdint.h>
#include <string.h>

enum { LANES = 16, SIDE = 7, NEIGHBOURS = SIDE * SIDE, BLOCK = 6, MOST = 64 };

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t integers __attribute__((vector_size(4 * LANES)));

#ifndef FOR_EVERY_PROCESSOR
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), flatten))
#else
#define FOR_EVERY_PROCESSOR
#endif
#endif

typedef struct {
    int64_t height, width, fine_height, fine_width;
    int64_t keys, inputs, outputs, groups; /* outputs of one group */
    const int64_t *inputs_of;              /* (groups) */
    const float *coarse;                   /* (height + 6, width + 6, features), see `LocalRegression._coarse` */
    const float *pixels;                   /* (keys + 2 + inputs, fine_height, fine_width) */
    const float *above, *beside;           /* (fine_height, 7), (fine_width, 7): logarithms of weights by place */
    const int64_t *rows, *columns;         /* (height + 1), (width + 1): where the fine pixels of a cell begin */
    const float *ridge;                    /* (inputs, inputs) */
    float *predicted;                      /* (groups * outputs, fine_height, fine_width) */
} Regression;

static inline vector all(float value) { return value - (vector){0}; }

static inline vector where(integers condition, vector yes, vector no) {
    return (vector)((condition & (integers)yes) | (~condition & (integers)no));
}

static inline vector larger(vector a, vector b) { return where(a > b, a, b); }

/* e^x to 2e-7 (Cephes), 0 below -60; for |x| < 88 */
static inline vector exponential(vector x) {
    integers vanishes = x < -60.0f;
    x = where(vanishes, all(0), x);
    vector shifted = x * 1.44269504f;
    integers whole = __builtin_convertvector(shifted + where(shifted < 0, all(-0.5f), all(0.5f)), integers);
    vector n = __builtin_convertvector(whole, vector);
    vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vector y = ((((r * 1.9875691500e-4f + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
                1.6666665459e-1f) * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return where(vanishes, all(0), y * (vector)((whole + 127) << 23));
}

/* One to LANES fine pixels of the cell (a, b), at these places of the fine grid. */
static inline void regress(const Regression *of, int64_t a, int64_t b, const int64_t *places, const int64_t *y,
                           const int64_t *x, int count) {
    const int64_t keys = of->keys, inputs = of->inputs, plane = of->fine_height * of->fine_width;
    const int64_t entries = inputs * (inputs + 1) / 2, sums = entries + 2;
    const int64_t to_inputs = keys + 3, to_products = to_inputs + inputs, to_outputs = to_products + sums;
    const int64_t features = to_outputs + of->groups * of->outputs;
    vector key[MOST], detail[MOST], weight[NEIGHBOURS], above[SIDE], beside[SIDE], nearness, ridge;
    const float *neighbour[NEIGHBOURS];

    for (int lane = 0; lane < LANES; lane++) {
        int from = lane < count ? lane : count - 1;
        const float *pixel = of->pixels + places[from];
        for (int q = 0; q < keys; q++) key[q][lane] = pixel[q * plane];
        nearness[lane] = pixel[keys * plane];
        ridge[lane] = pixel[(keys + 1) * plane];
        for (int i = 0; i < inputs; i++) detail[i][lane] = pixel[(keys + 2 + i) * plane];
        for (int i = 0; i < SIDE; i++) {
            above[i][lane] = of->above[y[from] * SIDE + i];
            beside[i][lane] = of->beside[x[from] * SIDE + i];
        }
    }
    nearness = exponential(nearness);
    ridge = exponential(ridge);

    /* Weights: those by place sum to about 1 before the distance counts, so that no sum of weights vanishes. */
    vector most = all(-3e38f);
    for (int k = 0; k < NEIGHBOURS; k++) {
        neighbour[k] = of->coarse + ((a + k / SIDE) * (of->width + SIDE - 1) + b + k % SIDE) * features;
        weight[k] = (above[k / SIDE] + beside[k % SIDE]) * nearness + neighbour[k][keys + 2];
        most = larger(most, weight[k]);
    }
    for (int k = 0; k < NEIGHBOURS; k++) {
        vector distance = all(1);
        for (int q = 0; q < keys; q++) {
            vector difference = key[q] - neighbour[k][q];
            distance += difference * difference;
        }
        weight[k] = exponential(weight[k] - most) / distance;
    }

    /* Sums of weighted products; the last is that of the weights. */
    vector moment[MOST * (MOST + 1) / 2 + 2 + BLOCK];
    for (int first = 0; first < sums; first += BLOCK) {
        vector sum[BLOCK] = {{0}};
        int size = sums - first < BLOCK ? (int)(sums - first) : BLOCK;
        if (size == BLOCK)
            for (int k = 0; k < NEIGHBOURS; k++) {
                const float *product = neighbour[k] + to_products + first;
                for (int m = 0; m < BLOCK; m++) sum[m] += weight[k] * product[m];
            }
        else
            for (int k = 0; k < NEIGHBOURS; k++) {
                const float *product = neighbour[k] + to_products + first;
                for (int m = 0; m < size; m++) sum[m] += weight[k] * product[m];
            }
        for (int m = 0; m < size; m++) moment[first + m] = sum[m];
    }
    vector share = 1.0f / moment[sums - 1], own = moment[sums - 2] * share;

    /* LDL' of the system, in place: `moment` becomes L below its diagonal, `pivot` the diagonal of D. */
    vector pivot[MOST], scaled[MOST];
#define ENTRY(i, j) moment[(i) * ((i) + 1) / 2 + (j)]
    for (int i = 0; i < inputs; i++)
        for (int j = 0; j <= i; j++)
            ENTRY(i, j) = ENTRY(i, j) * share + ridge * of->ridge[i * inputs + j] + (i == j ? own : all(0));
    for (int j = 0; j < inputs; j++) {
        vector left = ENTRY(j, j);
        for (int k = 0; k < j; k++) {
            scaled[k] = ENTRY(j, k) * pivot[k];
            left -= ENTRY(j, k) * scaled[k];
        }
        /* Rounding may consume a tiny pivot; the ridge says how small a true one can be. */
        pivot[j] = larger(larger(left, ENTRY(j, j) * 1e-6f), all(1e-30f));
        for (int i = j + 1; i < inputs; i++) {
            vector entry = ENTRY(i, j);
            for (int k = 0; k < j; k++) entry -= ENTRY(i, k) * scaled[k];
            ENTRY(i, j) = entry / pivot[j];
        }
    }

    for (int group = 0; group < of->groups; group++) {
        /* The leading part of a factorisation is that of the leading part of the system. */
        const int64_t size = of->inputs_of[group], outputs = to_outputs + group * of->outputs;
        vector direction[MOST], factor[NEIGHBOURS];
        for (int i = 0; i < size; i++) {
            direction[i] = detail[i] * share;
            for (int k = 0; k < i; k++) direction[i] -= ENTRY(i, k) * direction[k];
        }
        for (int i = 0; i < size; i++) direction[i] /= pivot[i];
        for (int i = (int)size - 1; i >= 0; i--)
            for (int k = i + 1; k < size; k++) direction[i] -= ENTRY(k, i) * direction[k];
        for (int k = 0; k < NEIGHBOURS; k++) {
            vector product = all(0);
            for (int i = 0; i < size; i++) product += direction[i] * neighbour[k][to_inputs + i];
            factor[k] = product * weight[k];
        }
        for (int first = 0; first < of->outputs; first += BLOCK) {
            vector sum[BLOCK] = {{0}};
            int block = of->outputs - first < BLOCK ? (int)(of->outputs - first) : BLOCK;
            if (block == BLOCK)
                for (int k = 0; k < NEIGHBOURS; k++) {
                    const float *output = neighbour[k] + outputs + first;
                    for (int m = 0; m < BLOCK; m++) sum[m] += factor[k] * output[m];
                }
            else
                for (int k = 0; k < NEIGHBOURS; k++) {
                    const float *output = neighbour[k] + outputs + first;
                    for (int m = 0; m < block; m++) sum[m] += factor[k] * output[m];
                }
            for (int m = 0; m < block; m++) {
                float *image = of->predicted + (group * of->outputs + first + m) * plane;
                for (int lane = 0; lane < count; lane++) image[places[lane]] = sum[m][lane];
            }
        }
    }
}

/* The fine pixels of some rows of cells. */
FOR_EVERY_PROCESSOR
void predict(const Regression *of, int64_t first_row, int64_t last_row) {
    for (int64_t a = first_row; a < last_row; a++)
        for (int64_t b = 0; b < of->width; b++) {
            int64_t places[LANES], ys[LANES], xs[LANES];
            int count = 0;
            for (int64_t y = of->rows[a]; y < of->rows[a + 1]; y++)
                for (int64_t x = of->columns[b]; x < of->columns[b + 1]; x++) {
                    places[count] = y * of->fine_width + x;
                    ys[count] = y;
                    xs[count] = x;
                    if (++count == LANES) {
                        regress(of, a, b, places, ys, xs, count);
                        count = 0;
                    }
                }
            if (count) regress(of, a, b, places, ys, xs, count);
        }
}
