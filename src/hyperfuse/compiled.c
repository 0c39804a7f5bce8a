/* What torch computes several times slower, image by image: here everything about some pixels stays in the cache.

`compiled.py` calls these functions and says what they compute. Single precision, no gradients. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
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

/* Of this file as it was compiled: `compiled.py` uses no library of another source. */
#ifdef DIGEST
const uint32_t source_digest = DIGEST;
#endif

/* The fine pixels of a coarse cell share their neighbours: up to LANES of them are worked on at once. */
typedef struct {
    int64_t height, width, fine_height, fine_width;
    int64_t keys, inputs, outputs, groups; /* outputs of one group */
    const int64_t *inputs_of;              /* (groups) */
    const float *coarse;                   /* (height + 6, width + 6, features), see `LocalRegression._coarse` */
    const float *const *planes;            /* (keys + 2 + inputs) of (fine_height, fine_width) */
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
        const int64_t place = places[from];
        for (int q = 0; q < keys; q++) key[q][lane] = of->planes[q][place];
        nearness[lane] = of->planes[keys][place];
        ridge[lane] = of->planes[keys + 1][place];
        for (int i = 0; i < inputs; i++) detail[i][lane] = of->planes[keys + 2 + i][place];
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
int local_regression(const Regression *of, int64_t first_row, int64_t last_row) {
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
    return 0;
}

enum { PLAIN, ONCE, TWICE, UNFAMILIAR, LEVELS, TOGETHER = 4, SPAN = 128 };

typedef struct {
    int64_t height, width, components, planes, images;
    const float *const *plane; /* (planes) of (height, width) */
    const float *const *image; /* (images) of (components, height, width) */
    const float *mixing;       /* (LEVELS, components, planes) */
    const float *gains;        /* (LEVELS, components, images) */
    const float *familiarity;  /* (height, width) */
    float *sum;                /* (components, height, width) */
} Mixture;

static inline vector load(const float *from, int64_t count) {
    vector values = {0};
    if (count >= LANES)
        memcpy(&values, from, sizeof values);
    else
        for (int i = 0; i < count; i++) values[i] = from[i];
    return values;
}

static inline void store(float *to, vector values, int64_t count) {
    if (count >= LANES)
        memcpy(to, &values, sizeof values);
    else
        for (int i = 0; i < count; i++) to[i] = values[i];
}

/* A row of (components, width): planes and images, mixed by the factors of a level. */
static inline void mix_row(const Mixture *of, int level, int64_t y, float *row) {
    const int64_t width = of->width, planes = of->planes, images = of->images, size = of->height * width;
    for (int64_t x = 0; x < width; x += LANES) {
        const int64_t count = width - x, place = y * width + x;
        for (int64_t first = 0; first < of->components; first += TOGETHER) {
            const int some = (int)(of->components - first < TOGETHER ? of->components - first : TOGETHER);
            const float *mixing = of->mixing + (level * of->components + first) * planes;
            vector sum[TOGETHER] = {{0}};
            if (some == TOGETHER)
                for (int q = 0; q < planes; q++) {
                    vector values = load(of->plane[q] + place, count);
                    for (int c = 0; c < TOGETHER; c++) sum[c] += values * mixing[c * planes + q];
                }
            else
                for (int q = 0; q < planes; q++) {
                    vector values = load(of->plane[q] + place, count);
                    for (int c = 0; c < some; c++) sum[c] += values * mixing[c * planes + q];
                }
            for (int c = 0; c < some; c++) {
                const float *gains = of->gains + (level * of->components + first + c) * images;
                for (int i = 0; i < images; i++)
                    sum[c] += load(of->image[i] + (first + c) * size + place, count) * gains[i];
                store(row + (first + c) * width + x, sum[c], count);
            }
        }
    }
}

/* (components, width) filtered by (1, 2, 1) / 4 along the row, the edge repeated. */
static inline void smooth_row(const float *row, float *smooth, int64_t components, int64_t width) {
    for (int64_t c = 0; c < components; c++, row += width, smooth += width) {
        for (int64_t x = 1; x < width - 1; x++) smooth[x] = (row[x - 1] + 2 * row[x] + row[x + 1]) * 0.25f;
        const int64_t last = width - 1;
        smooth[0] = (3 * row[0] + row[width > 1]) * 0.25f;
        smooth[last] = (3 * row[last] + row[last - (width > 1)]) * 0.25f;
    }
}

/* Adds the mean of three rows, weighted by (1, 2, 1) / 4. */
static inline void add_rows(float *row, const float *above, const float *middle, const float *below, int64_t count) {
    for (int64_t i = 0; i < count; i++) row[i] += (above[i] + 2 * middle[i] + below[i]) * 0.25f;
}

/* Rows of plain + h (once + h twice), h the binomial filter, or of unfamiliar where a pixel is. 1: no memory. */
FOR_EVERY_PROCESSOR
int weighted_sum(const Mixture *of, int64_t first, int64_t last) {
    const int64_t height = of->height, width = of->width, size = of->components * width;
    float *row = malloc(8 * size * sizeof(float));
    if (row == NULL) return 1;
    float *other = row + size, *twice[3], *once[3];
    for (int i = 0; i < 3; i++) twice[i] = row + (2 + i) * size, once[i] = row + (5 + i) * size;
#define ROW_OF(ring, y) ring[((y) < 0 ? 0 : (y) < height ? (y) : height - 1) % 3]
    /* A row is finished two rows after it was first looked at. */
    for (int64_t y = first > 2 ? first - 2 : 0; y < last + 2; y++) {
        if (y < height) {
            mix_row(of, TWICE, y, row);
            smooth_row(row, twice[y % 3], of->components, width);
        }
        int64_t before = y - 1;
        if (before >= 0 && before >= first - 1 && before < height && before <= last) {
            mix_row(of, ONCE, before, row);
            add_rows(row, ROW_OF(twice, before - 1), ROW_OF(twice, before), ROW_OF(twice, before + 1), size);
            smooth_row(row, once[before % 3], of->components, width);
        }
        int64_t done = y - 2;
        if (done >= first && done < last) {
            mix_row(of, PLAIN, done, row);
            mix_row(of, UNFAMILIAR, done, other);
            add_rows(row, ROW_OF(once, done - 1), ROW_OF(once, done), ROW_OF(once, done + 1), size);
            const float *familiarity = of->familiarity + done * width;
            for (int64_t c = 0; c < of->components; c++) {
                const float *familiar = row + c * width, *unfamiliar = other + c * width;
                float *sum = of->sum + (c * height + done) * width;
                for (int64_t x = 0; x < width; x++)
                    sum[x] = unfamiliar[x] + familiarity[x] * (familiar[x] - unfamiliar[x]);
            }
        }
    }
    free(row);
    return 0;
}

/* Adding and subtracting it rounds to the nearest whole number, of two to the even one, as rint. */
#define ROUNDING 6755399441055744.0

enum type { FLOAT32, UINT8, UINT16, INT16 };

typedef struct {
    int64_t bands, rows, columns, components, lines;
    int64_t plane, row;               /* distances between the planes and the rows of the components */
    int64_t target_plane, target_row; /* and of the target */
    int64_t nodata, instead;          /* numbers that equal nodata are stored as the other */
    const float *along;               /* (bands, lines, columns): coarse rows, interpolated along the columns */
    const int64_t *neighbours;        /* (rows, 4): lines around every fine row */
    const float *weights;             /* (rows, 4): theirs */
    const float *matrix;              /* (bands, components) */
    const float *image;               /* (components, rows, columns) */
    const float *below, *modulation;  /* (components, rows, columns), (bands, 3): see `modulate`; or NULL */
    const float *lowest;              /* (bands): smaller values are raised to it */
    const double *factors;            /* (bands): of values that are rounded */
    const int64_t *planes;            /* (bands): of the target */
    void *target;
    int64_t *clipped; /* counts values that do not fit */
} Bands;

/* Multiply, round, clip, keep apart from nodata and store numbers; counts those clipped. 1: some are NaN. */
#define STORE_AS(type)                                                                                        \
    static inline int store_##type(const float *values, type##_t *target, int64_t count, const Bands *of,     \
                                   double factor, double smallest, double largest, int64_t *clipped) {        \
        const int32_t nodata = (int32_t)of->nodata, instead = (int32_t)of->instead;                           \
        int32_t outside = 0, unknown = 0;                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                 \
            double number = (values[i] * factor + ROUNDING) - ROUNDING;                                       \
            outside += (number < smallest) | (number > largest);                                              \
            unknown |= number != number;                                                                      \
            number = number < smallest ? smallest : number;                                                   \
            number = number > largest ? largest : number;                                                     \
            int32_t whole = (int32_t)number;                                                                  \
            target[i] = (type##_t)(whole == nodata ? instead : whole);                                        \
        }                                                                                                     \
        *clipped += outside;                                                                                  \
        return unknown;                                                                                       \
    }

STORE_AS(uint8)
STORE_AS(uint16)
STORE_AS(int16)

static inline int store_row(enum type type, const Bands *of, const float *values, int64_t band, int64_t place,
                            int64_t count, int64_t *clipped) {
    const double factor = of->factors[band];
    place += of->planes[band] * of->target_plane;
    if (type == UINT8) return store_uint8(values, (uint8_t *)of->target + place, count, of, factor, 0, UINT8_MAX, clipped);
    if (type == UINT16)
        return store_uint16(values, (uint16_t *)of->target + place, count, of, factor, 0, UINT16_MAX, clipped);
    if (type == INT16)
        return store_int16(values, (int16_t *)of->target + place, count, of, factor, INT16_MIN, INT16_MAX, clipped);
    memcpy((float *)of->target + place, values, count * sizeof(float));
    return 0;
}

#define LARGEST_RATIO 4.0f

/* Values times the ratio of two mixtures, whose constant, trust and least denominator are given. */
static inline vector modulate(vector values, vector above, vector below, const float *given) {
    above += given[0], below += given[0];
    vector ratio = where(below > given[2], above / larger(below, all(1e-30f)), all(1));
    ratio = where(ratio < 1 / LARGEST_RATIO, all(1 / LARGEST_RATIO), ratio);
    ratio = where(ratio > LARGEST_RATIO, all(LARGEST_RATIO), ratio);
    return values * ((ratio - 1) * given[1] + 1);
}

static inline int mix(enum type type, int modulates, const Bands *of, int64_t first, int64_t last) {
    const int64_t columns = of->columns, components = of->components;
    int64_t clipped = 0;
    int unknown = 0;
    for (int64_t y = first; y < last; y++) {
        const int64_t *near = of->neighbours + 4 * y;
        const float *weights = of->weights + 4 * y;
        for (int64_t left = 0; left < columns; left += SPAN)
            for (int64_t from = 0; from < of->bands; from += TOGETHER) {
                const int some = (int)(of->bands - from < TOGETHER ? of->bands - from : TOGETHER);
                const float *matrix = of->matrix + from * components;
                const int64_t span = columns - left < SPAN ? columns - left : SPAN;
                float mixed[TOGETHER][SPAN];
                for (int64_t x = 0; x < span; x += LANES) {
                    const int64_t count = span - x;
                    const float *image = of->image + y * of->row + left + x;
                    vector sum[TOGETHER];
                    for (int b = 0; b < some; b++) {
                        const float *along = of->along + (from + b) * of->lines * columns + left + x;
                        sum[b] = load(along + near[0] * columns, count) * weights[0] +
                                 load(along + near[1] * columns, count) * weights[1] +
                                 load(along + near[2] * columns, count) * weights[2] +
                                 load(along + near[3] * columns, count) * weights[3];
                    }
                    if (modulates) {
                        vector above[TOGETHER] = {{0}}, below[TOGETHER] = {{0}};
                        for (int c = 0; c < components; c++) {
                            vector values = load(image + c * of->plane, count);
                            vector under = load(of->below + (c * of->rows + y) * columns + left + x, count);
                            for (int b = 0; b < some; b++) {
                                above[b] += values * matrix[b * components + c];
                                below[b] += under * matrix[b * components + c];
                            }
                        }
                        for (int b = 0; b < some; b++)
                            sum[b] = modulate(sum[b], above[b], below[b], of->modulation + 3 * (from + b));
                    } else if (some == TOGETHER)
                        for (int c = 0; c < components; c++) {
                            vector values = load(image + c * of->plane, count);
                            for (int b = 0; b < TOGETHER; b++) sum[b] += values * matrix[b * components + c];
                        }
                    else
                        for (int c = 0; c < components; c++) {
                            vector values = load(image + c * of->plane, count);
                            for (int b = 0; b < some; b++) sum[b] += values * matrix[b * components + c];
                        }
                    for (int b = 0; b < some; b++) {
                        vector lowest = all(of->lowest[from + b]), raised = where(sum[b] < lowest, lowest, sum[b]);
                        memcpy(mixed[b] + x, &raised, sizeof raised);
                    }
                }
                for (int b = 0; b < some; b++)
                    unknown |= store_row(type, of, mixed[b], from + b, y * of->target_row + left, span, &clipped);
            }
    }
    if (clipped) __atomic_fetch_add(of->clipped, clipped, __ATOMIC_RELAXED);
    return unknown;
}

/* Interpolate between lines, add a mixture of components or multiply by a ratio of two, and store. 1: a number is
   missing. */
#define MIX_TO(name, type)                                                                                           \
    FOR_EVERY_PROCESSOR                                                                                              \
    int mix_to_##name(const Bands *of, int64_t first, int64_t last) { return mix(type, 0, of, first, last); }         \
    FOR_EVERY_PROCESSOR                                                                                              \
    int modulate_to_##name(const Bands *of, int64_t first, int64_t last) { return mix(type, 1, of, first, last); }

MIX_TO(float32, FLOAT32)
MIX_TO(uint8, UINT8)
MIX_TO(uint16, UINT16)
MIX_TO(int16, INT16)

#define ROUND_TO(type)                                                                    \
    FOR_EVERY_PROCESSOR                                                                   \
    int round_to_##type(const float *values, type##_t *stored, int64_t count, double factor, \
                        double smallest, double largest, double nodata) {                 \
        int all_fit = 1;                                                                  \
        for (int64_t i = 0; i < count; i++) {                                             \
            double number = (values[i] * factor + ROUNDING) - ROUNDING;                   \
            all_fit &= (number >= smallest) & (number <= largest) & (number != nodata);   \
            stored[i] = (type##_t)(int32_t)number;                                        \
        }                                                                                 \
        return !all_fit;                                                                  \
    }

/* Multiply, round and convert. 1: a number is missing, too large or small, or equals nodata. */
ROUND_TO(uint8)
ROUND_TO(int16)
ROUND_TO(uint16)
ROUND_TO(int32)

/* Two images of a window, in doubles: NaN where either has no value. */
enum { AT_ONCE = 8, TAPS = 11, HALO = TAPS / 2, CHUNK = 256, STRIPE = 96, WIDE = STRIPE + TAPS - 1 + AT_ONCE };

enum stored { STORED_UINT8, STORED_UINT16, STORED_INT16, STORED_FLOAT32, STORED_FLOAT64 };

typedef struct {
    int64_t bands, height, width;
    int64_t top, bottom, left, right; /* of the core, without which windows of SSIM are incomplete */
    int64_t types[2];
    const void *values[2];   /* (bands, height, width) */
    const double *scales[2]; /* (bands) */
    const double *offsets[2];
    double nodata[2]; /* NaN: none */
    double c1, c2, flat;
    const double *taps;
    double *found;      /* (bands, 8): see `compare_bands` */
    double *difference; /* (bottom - top, right - left): see `compare_spectra` */
    double *total;
} Comparison;

#define READ_AS(kind, type)                                                                     \
    case kind:                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                   \
            double stored = ((const type *)values)[i], number = stored * scale + offset;        \
            to[i] = (stored == nodata) | !(number - number == 0) ? missing : number;            \
        }                                                                                       \
        break;

/* Physical values of a part of a row. */
static inline void read_row(const Comparison *of, int image, int64_t band, int64_t y, int64_t x, int64_t count,
                            double *to) {
    const int64_t from = (band * of->height + y) * of->width + x;
    const double scale = of->scales[image][band], offset = of->offsets[image][band], nodata = of->nodata[image];
    const double missing = (double)NAN;
    const int size[] = {1, 2, 2, 4, 8};
    const void *values = (const char *)of->values[image] + from * size[of->types[image]];
    switch (of->types[image]) {
        READ_AS(STORED_UINT8, uint8_t)
        READ_AS(STORED_UINT16, uint16_t)
        READ_AS(STORED_INT16, int16_t)
        READ_AS(STORED_FLOAT32, float)
        READ_AS(STORED_FLOAT64, double)
    }
}

/* Sums, in lanes so that they are computed as vectors. */
typedef double lanes[AT_ONCE];

static inline double sum_of(const lanes values) {
    double sum = 0;
    for (int i = 0; i < AT_ONCE; i++) sum += values[i];
    return sum;
}

/* NaN wherever either has no value, and the products. */
static inline void multiply_rows(double *restrict u, double *restrict v, double *restrict squares,
                                 double *restrict product, int64_t count) {
    for (int64_t x = 0; x < count; x++) {
        double both = u[x] * v[x], a = both == both ? u[x] : (double)NAN, b = both == both ? v[x] : (double)NAN;
        u[x] = a, v[x] = b, squares[x] = a * a + b * b, product[x] = both;
    }
}

/* Pixels, squared error, sum and sum of squares of the reference. */
static inline void add_errors(const double *u, const double *v, int64_t count, lanes *sums) {
    for (int64_t x = 0; x < count; x += AT_ONCE)
        for (int i = 0; i < AT_ONCE; i++) {
            const int64_t at = x + i < count ? x + i : count - 1;
            const double error = u[at] - v[at], there = (x + i < count) & (error == error) ? 1 : 0;
            sums[0][i] += there;
            sums[1][i] += there > 0 ? error * error : 0;
            sums[2][i] += there > 0 ? v[at] : 0;
            sums[3][i] += there > 0 ? v[at] * v[at] : 0;
        }
}

/* Means over Gaussian windows along a row. */
static inline double smoothed_at(const double *row, const double *taps) {
    double sum = row[HALO] * taps[HALO];
    for (int i = 0; i < HALO; i++) sum += (row[i] + row[TAPS - 1 - i]) * taps[i];
    return sum;
}

/* Complete windows, SSIM and UIQI. */
static inline void similarity_of_row(const Comparison *of, double *const *smooth, const double *taps, int64_t count,
                                     double *restrict complete, double *restrict similarity, double *restrict quality) {
    const double *restrict first = smooth[0], *restrict second = smooth[1], *restrict third = smooth[2];
    const double *restrict fourth = smooth[3];
    const double c1 = of->c1, c2 = of->c2, flat = of->flat;
    for (int64_t x = 0; x < count; x++) {
        double u = smoothed_at(first + x, taps), v = smoothed_at(second + x, taps);
        double both = smoothed_at(third + x, taps), times = smoothed_at(fourth + x, taps);
        double means = 2 * u * v, mean_squares = u * u + v * v, covariances = 2 * times - means;
        /* Rounding must not make the sum of the variances negative. */
        double variances = both - mean_squares;
        variances = variances < 0 ? 0 : variances;
        double ssim = (means + c1) * (covariances + c2) / ((mean_squares + c1) * (variances + c2));
        /* Brightness times structure, in one division. */
        int lit = mean_squares > 0, varies = variances > flat * both;
        double above = (lit ? means : 1) * (varies ? covariances : 1);
        double below = (lit ? mean_squares : 1) * (varies ? variances : 1);
        int whole = ssim - ssim == 0;
        complete[x] = whole ? 1 : 0;
        similarity[x] = whole ? ssim : 0;
        quality[x] = whole ? above / below : 0;
    }
}

static inline void add_row(const double *row, int64_t count, double *sum) {
    int64_t x = 0;
    for (; x + AT_ONCE <= count; x += AT_ONCE)
        for (int i = 0; i < AT_ONCE; i++) sum[i] += row[x + i];
    for (; x < count; x++) sum[0] += row[x];
}

/* Of every band: pixels of the core in both images, their squared error, sum and sum of squares of the reference, pixels of
   the reference; complete windows, and their sums of SSIM and UIQI. */
FOR_EVERY_PROCESSOR
int compare_bands(const Comparison *of, int64_t first, int64_t last) {
    /* So narrow that all rows of a window stay in the first cache. */
    double *rows = malloc((4 * TAPS + 7) * WIDE * sizeof(double));
    if (rows == NULL) return 1;
    double *smooth[4], *maps[3], taps[TAPS];
    for (int i = 0; i < TAPS; i++) taps[i] = of->taps[i];
    for (int k = 0; k < 4; k++) smooth[k] = rows + (4 * TAPS + k) * WIDE;
    for (int k = 0; k < 3; k++) maps[k] = rows + (4 * TAPS + 4 + k) * WIDE;
#define ROW(k, y) (rows + ((k) * TAPS + (y) % TAPS) * WIDE)
    for (int64_t band = first; band < last; band++) {
        lanes errors[4] = {{0}}, similar[3] = {{0}};
        int64_t known = 0;
        for (int64_t left = 0; left < of->width; left += STRIPE) {
            /* Columns that are counted, and those that the windows around them need. */
            const int64_t own = of->width - left < STRIPE ? of->width - left : STRIPE;
            const int64_t needed = of->width - left < STRIPE + TAPS - 1 ? of->width - left : STRIPE + TAPS - 1;
            const int64_t from = of->left > left ? of->left - left : 0;
            const int64_t to = of->right - left < own ? of->right - left : own;
            for (int64_t y = 0; y < of->height; y++) {
                double *fused = ROW(0, y), *reference = ROW(1, y);
                read_row(of, 0, band, y, left, needed, fused);
                read_row(of, 1, band, y, left, needed, reference);
                const int counts = y >= of->top && y < of->bottom && to > from;
                if (counts)
                    for (int64_t x = from; x < to; x++) known += reference[x] == reference[x];
                multiply_rows(fused, reference, ROW(2, y), ROW(3, y), needed);
                if (counts) add_errors(fused + from, reference + from, to - from, errors);
                if (y < TAPS - 1 || needed < TAPS) continue;
                for (int k = 0; k < 4; k++) {
                    double *restrict sum = smooth[k];
                    const double *ring[TAPS];
                    for (int i = 0; i < TAPS; i++) ring[i] = ROW(k, y - i);
#pragma GCC ivdep
                    for (int64_t x = 0; x < needed; x++) {
                        double mean = ring[HALO][x] * taps[HALO];
                        for (int i = 0; i < HALO; i++) mean += (ring[i][x] + ring[TAPS - 1 - i][x]) * taps[i];
                        sum[x] = mean;
                    }
                }
                const int64_t complete = needed - TAPS + 1 < own ? needed - TAPS + 1 : own;
                similarity_of_row(of, smooth, taps, complete, maps[0], maps[1], maps[2]);
                for (int k = 0; k < 3; k++) add_row(maps[k], complete, similar[k]);
            }
        }
        double *found = of->found + 8 * band;
        for (int k = 0; k < 4; k++) found[k] = sum_of(errors[k]);
        found[4] = (double)known;
        for (int k = 0; k < 3; k++) found[5 + k] = sum_of(similar[k]);
    }
    free(rows);
    return 0;
}

/* For spectral angles between unit spectra u and v in the core: |u - v|^2 and |u|^2 + |v|^2, NaN without any band. */
FOR_EVERY_PROCESSOR
int compare_spectra(const Comparison *of, int64_t first, int64_t last) {
    const int64_t width = of->right - of->left, padded = CHUNK + AT_ONCE;
    double *rows = calloc((2 + 3 * 1) * padded, sizeof(double));
    if (rows == NULL) return 1;
    double *fused = rows, *reference = rows + padded, *u_length = rows + 2 * padded, *v_length = rows + 3 * padded;
    double *apart = rows + 4 * padded;
    for (int64_t row = first; row < last; row++)
        for (int64_t left = 0; left < width; left += CHUNK) {
            const int64_t count = width - left < CHUNK ? width - left : CHUNK, y = of->top + row, x = of->left + left;
            uint8_t any[CHUNK] = {0};
            for (int64_t i = 0; i < count; i++) u_length[i] = v_length[i] = apart[i] = 0;
            for (int64_t band = 0; band < of->bands; band++) {
                read_row(of, 0, band, y, x, count, fused);
                read_row(of, 1, band, y, x, count, reference);
                for (int64_t i = 0; i < count; i++) {
                    const double u = fused[i], v = reference[i], both = u * v;
                    const int there = both == both;
                    u_length[i] += there ? u * u : 0;
                    v_length[i] += there ? v * v : 0;
                    any[i] |= there;
                }
            }
            double *difference = of->difference + row * width + left, *total = of->total + row * width + left;
            for (int64_t i = 0; i < count; i++) {
                total[i] = any[i] ? (u_length[i] > 0) + (v_length[i] > 0) : (double)NAN;
                u_length[i] = u_length[i] > 0 ? 1 / __builtin_sqrt(u_length[i]) : 0;
                v_length[i] = v_length[i] > 0 ? 1 / __builtin_sqrt(v_length[i]) : 0;
            }
            for (int64_t band = 0; band < of->bands; band++) {
                read_row(of, 0, band, y, x, count, fused);
                read_row(of, 1, band, y, x, count, reference);
                /* In two steps: contracted, the difference of equal spectra would be what rounding leaves. */
                for (int64_t i = 0; i < count; i++) fused[i] *= u_length[i], reference[i] *= v_length[i];
                for (int64_t i = 0; i < count; i++) {
                    const double both = fused[i] - reference[i];
                    apart[i] += both == both ? both * both : 0;
                }
            }
            for (int64_t i = 0; i < count; i++) difference[i] = any[i] ? apart[i] : (double)NAN;
        }
    free(rows);
    return 0;
}

/* Smallest and largest value of every band of the first image; infinite without any. */
FOR_EVERY_PROCESSOR
int find_range(const Comparison *of, int64_t first, int64_t last) {
    double row[CHUNK];
    for (int64_t band = first; band < last; band++) {
        lanes smallest, largest;
        for (int i = 0; i < AT_ONCE; i++) smallest[i] = __builtin_inf(), largest[i] = -__builtin_inf();
        for (int64_t y = 0; y < of->height; y++)
            for (int64_t left = 0; left < of->width; left += CHUNK) {
                const int64_t count = of->width - left < CHUNK ? of->width - left : CHUNK;
                read_row(of, 0, band, y, left, count, row);
                for (int64_t x = count; x < CHUNK; x++) row[x] = (double)NAN;
                for (int64_t x = 0; x < CHUNK; x += AT_ONCE)
                    for (int i = 0; i < AT_ONCE; i++) {
                        smallest[i] = row[x + i] < smallest[i] ? row[x + i] : smallest[i];
                        largest[i] = row[x + i] > largest[i] ? row[x + i] : largest[i];
                    }
            }
        double *found = of->found + 8 * band;
        found[0] = smallest[0], found[1] = largest[0];
        for (int i = 1; i < AT_ONCE; i++) {
            found[0] = smallest[i] < found[0] ? smallest[i] : found[0];
            found[1] = largest[i] > found[1] ? largest[i] : found[1];
        }
    }
    return 0;
}

typedef struct {
    int64_t bands, height, width, plane, row; /* distances between planes and rows of what is stored */
    int64_t type;
    const void *values;
    const double *scales; /* (bands) */
    double nodata;        /* NaN: none */
    float *scaled;        /* (bands, height, width) */
} Scaling;

#define SCALE_FROM(kind, type)                                                                     \
    case kind:                                                                                     \
        for (int64_t y = 0; y < of->height; y++) {                                                 \
            const type *from = (const type *)of->values + band * of->plane + y * of->row;          \
            float *to = of->scaled + (band * of->height + y) * of->width;                          \
            if (nodata != nodata)                                                                  \
                for (int64_t x = 0; x < of->width; x++) to[x] = (float)(from[x] * scale);          \
            else                                                                                   \
                for (int64_t x = 0; x < of->width; x++) to[x] = from[x] == nodata ? NAN : (float)(from[x] * scale); \
        }                                                                                          \
        break;

/* Physical values in single precision, of integers without an offset. */
FOR_EVERY_PROCESSOR
int scale_values(const Scaling *of, int64_t first, int64_t last) {
    const double nodata = of->nodata;
    for (int64_t band = first; band < last; band++) {
        const double scale = of->scales[band];
        switch (of->type) {
            SCALE_FROM(STORED_UINT8, uint8_t)
            SCALE_FROM(STORED_UINT16, uint16_t)
            SCALE_FROM(STORED_INT16, int16_t)
        }
    }
    return 0;
}

typedef struct {
    int64_t height, width, out_height, out_width, row_taps, column_taps;
    int64_t plane, row;         /* distances between planes and rows of the images */
    const int64_t *row_first;   /* (out_height): the first row that each row of the result is made of */
    const float *row_weights;   /* (out_height, row_taps) */
    const int64_t *column_first;
    const float *column_weights;
    const float *images; /* (planes, height, width) */
    float *results;      /* (planes, out_height, out_width) */
} Separable;

/* LANES rows, combined along the columns: each lane is a row. */
static inline void combine_columns(const Separable *of, const float *rows, int64_t distance, int64_t count, float *across,
                                   float *results) {
    for (int64_t x = 0; x < of->width; x++)
        for (int r = 0; r < LANES; r++) across[x * LANES + r] = r < count ? rows[r * distance + x] : 0;
    for (int64_t x = 0; x < of->out_width; x++) {
        const float *from = across + of->column_first[x] * LANES, *weights = of->column_weights + x * of->column_taps;
        vector sum = {0};
        for (int64_t k = 0; k < of->column_taps; k++) sum += load(from + k * LANES, LANES) * weights[k];
        for (int r = 0; r < count; r++) results[r * of->out_width + x] = sum[r];
    }
}

/* A row of the result from rows of an image. */
static inline void combine_rows(const Separable *of, const float *image, int64_t distance, int64_t y, int64_t width,
                                float *result) {
    const float *from = image + of->row_first[y] * distance, *weights = of->row_weights + y * of->row_taps;
    for (int64_t x = 0; x < width; x += LANES) {
        const int64_t count = width - x;
        vector sum = {0};
        for (int64_t k = 0; k < of->row_taps; k++) sum += load(from + k * distance + x, count) * weights[k];
        store(result + x, sum, count);
    }
}

/* Combinations of a few neighbouring rows and columns each, of some planes; the cheaper first. 1: no memory. */
FOR_EVERY_PROCESSOR
int combine_neighbours(const Separable *of, int64_t first, int64_t last) {
    const int rows_first = of->out_height * of->width <= of->height * of->out_width;
    const int64_t held = rows_first ? LANES * of->width : (of->height + LANES) * of->out_width;
    float *between = malloc((held + of->width * LANES) * sizeof(float));
    if (between == NULL) return 1;
    float *across = between + held;
    for (int64_t plane = first; plane < last; plane++) {
        const float *image = of->images + plane * of->plane;
        float *result = of->results + plane * of->out_height * of->out_width;
        if (rows_first)
            for (int64_t y = 0; y < of->out_height; y += LANES) {
                const int64_t count = of->out_height - y < LANES ? of->out_height - y : LANES;
                for (int64_t r = 0; r < count; r++)
                    combine_rows(of, image, of->row, y + r, of->width, between + r * of->width);
                combine_columns(of, between, of->width, count, across, result + y * of->out_width);
            }
        else {
            for (int64_t y = 0; y < of->height; y += LANES) {
                const int64_t count = of->height - y < LANES ? of->height - y : LANES;
                combine_columns(of, image + y * of->row, of->row, count, across, between + y * of->out_width);
            }
            for (int64_t y = 0; y < of->out_height; y++)
                combine_rows(of, between, of->out_width, y, of->out_width, result + y * of->out_width);
        }
    }
    free(between);
    return 0;
}

typedef struct {
    int64_t planes, height, width, points, slopes;
    const double *coefficients;   /* (planes, height, width) */
    const double *rows, *columns; /* (points), from 0 to the size - 1 */
    double *results;              /* (planes, points), or with slopes (3, planes, points) */
} Spline;

/* Weights of four neighbours at t from 0 to 1 behind the second one, and their derivatives. */
static inline void spline_weights(double t, double *weights, double *slopes) {
    const double s = 1 - t;
    weights[0] = s * s * s / 6, weights[3] = t * t * t / 6;
    weights[1] = (4 - 6 * t * t + 3 * t * t * t) / 6, weights[2] = (4 - 6 * s * s + 3 * s * s * s) / 6;
    slopes[0] = -s * s / 2, slopes[3] = t * t / 2;
    slopes[1] = (3 * t - 4) * t / 2, slopes[2] = (4 - 3 * s) * s / 2;
}

static inline int64_t mirrored(int64_t i, int64_t size) {
    if (size == 1) return 0;
    i = i < 0 ? -i : i;
    return i < size ? i : 2 * (size - 1) - i < 0 ? 0 : 2 * (size - 1) - i;
}

FOR_EVERY_PROCESSOR
int sample_spline(const Spline *of, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
        const int64_t y = (int64_t)of->rows[i], x = (int64_t)of->columns[i];
        double down[4], right[4], down_slope[4], right_slope[4];
        int64_t rows[4], columns[4];
        spline_weights(of->rows[i] - y, down, down_slope);
        spline_weights(of->columns[i] - x, right, right_slope);
        for (int k = 0; k < 4; k++) {
            rows[k] = mirrored(y - 1 + k, of->height) * of->width;
            columns[k] = mirrored(x - 1 + k, of->width);
        }
        for (int64_t plane = 0; plane < of->planes; plane++) {
            const double *from = of->coefficients + plane * of->height * of->width;
            double value = 0, along_y = 0, along_x = 0;
            for (int k = 0; k < 4; k++) {
                const double *row = from + rows[k];
                double sum = 0, slope = 0;
                for (int l = 0; l < 4; l++) sum += row[columns[l]] * right[l];
                value += down[k] * sum;
                if (!of->slopes) continue;
                for (int l = 0; l < 4; l++) slope += row[columns[l]] * right_slope[l];
                along_y += down_slope[k] * sum, along_x += down[k] * slope;
            }
            of->results[plane * of->points + i] = value;
            if (!of->slopes) continue;
            of->results[(of->planes + plane) * of->points + i] = along_y;
            of->results[(2 * of->planes + plane) * of->points + i] = along_x;
        }
    }
    return 0;
}
