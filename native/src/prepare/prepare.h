/*
 * Fused preparation: a frame in a slot becomes model input in one pass, with no intermediate image.
 *
 * For each output row two source rows are blended and sampled at the output's columns, mixed into
 * channels, normalised and stored. Only rows and columns that count are read. Tables for rows and
 * columns are made once, in plan.c; run.c goes through the rows; the inner loops come from one file
 * for each instruction set (isa.h), and which one runs is chosen with the plan.
 *
 * Arithmetic. Bilinear with two taps each way, as OpenCV's INTER_LINEAR and TensorFlow 1's legacy
 * resize: no antialiasing. Rows are blended in 1/64 of a level; all else is float. A pixel is within
 * MCPD_PREPARE_ERROR of the exact value, in levels of 0..255.
 *
 * Colour. Matrix and range apply to the YUV formats; RGB and gray formats are taken as 0..255.
 * 4:2:0 and 4:2:2 chroma is sited as MPEG-2 and H.264 do by default: on even luma columns, and for
 * 4:2:0 half way between two luma rows. A gray output is the luma of the frame's matrix.
 */
#ifndef MCPD_PREPARE_H
#define MCPD_PREPARE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MCPD_PREPARE_MAX_SIDE 16384u /* pixels, source and output */
#define MCPD_PREPARE_ERROR 0.1       /* levels, see above */

/* Rows of columns have entries to the end of a group, so that a vector is never half full. */
#define MCPD_PREPARE_GROUP 16u
#define MCPD_PREPARE_PADDED(n)                                                                     \
    (((size_t)(n) + MCPD_PREPARE_GROUP - 1) / MCPD_PREPARE_GROUP * MCPD_PREPARE_GROUP)

enum mcpd_prepare_layout { MCPD_NCHW, MCPD_NHWC };
enum mcpd_prepare_dtype { MCPD_OUT_FLOAT32, MCPD_OUT_FLOAT16, MCPD_OUT_UINT8 };
enum mcpd_prepare_channels { MCPD_OUT_RGB, MCPD_OUT_BGR, MCPD_OUT_GRAY };
enum mcpd_prepare_resize { MCPD_STRETCH, MCPD_LETTERBOX, MCPD_CROP };
enum mcpd_prepare_sampling { MCPD_HALF_PIXEL, MCPD_CORNER };

struct mcpd_prepare_spec {
    uint32_t format; /* enum mcpd_format, not an encoded one */
    uint32_t width;
    uint32_t height;
    uint32_t nplanes; /* given below; must be what the format has */
    uint64_t plane_offset[4];
    uint64_t plane_stride[4];
    uint32_t matrix; /* enum mcpd_matrix */
    uint32_t range;  /* enum mcpd_range */
    uint32_t out_width;
    uint32_t out_height;
    enum mcpd_prepare_layout layout;
    enum mcpd_prepare_dtype dtype;
    enum mcpd_prepare_channels channels;
    enum mcpd_prepare_resize resize;
    enum mcpd_prepare_sampling sampling;
    double scale; /* value = (pixel * scale - mean[c]) / std[c] */
    double mean[3];
    double std[3];
    double pad_value; /* a pixel, 0..255, normalised as the others are */
};

/* The columns of one plane that the output columns are sampled from; padded with the last. */
struct mcpd_prepare_columns {
    int32_t *left;  /* element of the blended row, less the component's base */
    float *weight;  /* of the element at left + step */
    uint32_t step;  /* elements from a sample to its right neighbour; 0 when there is none */
    uint32_t first; /* samples in use: first..last */
    uint32_t last;
};

/* The two rows that each output row is blended from; the same one where the weight is 0. */
struct mcpd_prepare_rows {
    uint32_t *upper;
    uint32_t *lower;
    int16_t *weight; /* of the lower row, in 1/32768 */
};

struct mcpd_prepare_plane {
    uint64_t offset;
    uint64_t stride;
    uint32_t first;  /* bytes of a row in use: first..first + nbytes */
    uint32_t nbytes;
    uint32_t row_nbytes; /* of a whole row, without what the stride adds */
    uint32_t axis;   /* index into columns and rows: 0 luma and RGB, 1 chroma */
};

/* A value that each pixel has: y, u or v, or r, g or b. */
struct mcpd_prepare_component {
    uint32_t plane;
    uint32_t axis;
    uint32_t base; /* byte of its first sample in a row */
};

/* The components that a channel is a sum of. */
struct mcpd_prepare_mix {
    uint32_t nterms; /* 1 to 3 */
    uint32_t component[3];
    float factor[3];
    float offset;
    float gain; /* value = pixel * gain + bias */
    float bias;
};

struct mcpd_prepare_isa;

/* Immutable once made but for `spare`, so that several threads may run it at once. */
struct mcpd_prepare_plan {
    const struct mcpd_prepare_isa *isa;
    void *tables;          /* the instruction set's own; one allocation */
    _Atomic(void *) spare; /* row buffers that no run is using, or NULL */
    uint32_t out_width;
    uint32_t out_height;
    uint32_t left; /* the rectangle of the output that shows the source; the rest is padding */
    uint32_t top;
    uint32_t columns_used;
    uint32_t rows_used;
    enum mcpd_prepare_layout layout;
    enum mcpd_prepare_dtype dtype;
    uint32_t nchannels;   /* 1 or 3 */
    uint32_t ncomponents; /* 1 or 3 */
    uint32_t nplanes;     /* in use */
    struct mcpd_prepare_plane planes[3];
    struct mcpd_prepare_component components[3];
    struct mcpd_prepare_columns columns[2];
    struct mcpd_prepare_rows rows[2];
    struct mcpd_prepare_mix mix[3];
    unsigned char padding[3][4]; /* a padding pixel in the output's type */
    double transform[4];  /* ax, bx, ay, by: source x = ax * output x + bx, continuous */
    size_t source_nbytes; /* the source buffer must have */
    size_t image_nbytes;  /* of one output image */
    size_t value_nbytes;
};

/*
 * Makes a plan. 0, -ENOMEM, or -EINVAL with `why` (of nbytes bytes) saying which value is out of
 * which limit. Release it with mcpd_prepare_plan_free. MCPD_PREPARE in the environment ("scalar",
 * "avx2") says which instruction set to use in place of the fastest; portable code still runs frames
 * too narrow for the one named.
 */
int mcpd_prepare_plan_create(const struct mcpd_prepare_spec *spec, struct mcpd_prepare_plan **out,
                             char *why, size_t nbytes);
void mcpd_prepare_plan_free(struct mcpd_prepare_plan *plan);

/* The name of the instruction set that runs it: "avx2" or "scalar". */
const char *mcpd_prepare_plan_isa(const struct mcpd_prepare_plan *plan);

/*
 * Writes one image to `out`, which has image_nbytes bytes and is aligned to value_nbytes; `source`
 * has source_nbytes. From any thread: row buffers are taken from the plan and put back, so that only
 * a run beside another, or the first, allocates. 0 or -ENOMEM (row buffers).
 */
int mcpd_prepare_run(struct mcpd_prepare_plan *plan, const uint8_t *source, void *out);

#endif
