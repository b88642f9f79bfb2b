/*
 * Fused preparation: a frame in a slot becomes model input in one pass, with no intermediate image.
 *
 * A line is a row of the output, or a column of it where the frame is turned by 90 or 270 degrees;
 * a line always follows rows of the source. For each line one or two source rows are sampled at the
 * line's positions, blended, mixed into channels, normalised and stored; rows sampled for a line are
 * kept for the next. Only rows and columns that count are read. geometry.c makes the tables,
 * plan.c the plan; run.c goes through the lines, batch.c through images and threads; the inner
 * loops come from one set of files for each instruction set (isa.h).
 *
 * Arithmetic. Samples and channels are fixed-point in 1/128 of a level, weights in 1/32768; area sums
 * and normalisation are float. A pixel is within MCPD_PREPARE_ERROR of the
 * exact value, in levels of 0..255.
 *
 * Sampling. MCPD_HALF_PIXEL and MCPD_CORNER take two samples each way, as OpenCV's INTER_LINEAR and
 * TensorFlow 1's legacy resize: no antialiasing. MCPD_AREA is the mean over what an output pixel
 * covers, as OpenCV's INTER_AREA, along each axis of a plane that has more samples than the output
 * has pixels, and MCPD_HALF_PIXEL along the others.
 *
 * Colour. Matrix and range apply to the YUV formats; RGB and gray formats are taken as 0..255.
 * 4:2:0 and 4:2:2 chroma is sited as MPEG-2 and H.264 do by default: on even luma columns, and for
 * 4:2:0 half way between two luma rows. An odd width or height has a chroma sample for its last
 * column or row. A gray output is the luma of the frame's matrix.
 *
 * Quantised output is round_half_even(value / quant_scale) + zero_point, kept within the type.
 */
#ifndef MCPD_PREPARE_H
#define MCPD_PREPARE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MCPD_PREPARE_MAX_SIDE 16384u /* pixels, source and output */
#define MCPD_PREPARE_ERROR 0.1       /* levels, see above */
#define MCPD_PREPARE_MAX_THREADS 64u

/* Lines have entries to the end of a group, so that a vector is never half full. */
#define MCPD_PREPARE_GROUP 16u
#define MCPD_PREPARE_PADDED(n)                                                                     \
    (((size_t)(n) + MCPD_PREPARE_GROUP - 1) / MCPD_PREPARE_GROUP * MCPD_PREPARE_GROUP)

enum mcpd_prepare_layout { MCPD_NCHW, MCPD_NHWC };
enum mcpd_prepare_dtype { MCPD_OUT_FLOAT32, MCPD_OUT_FLOAT16, MCPD_OUT_UINT8, MCPD_OUT_INT8 };
enum mcpd_prepare_channels { MCPD_OUT_RGB, MCPD_OUT_BGR, MCPD_OUT_GRAY };
enum mcpd_prepare_resize { MCPD_STRETCH, MCPD_LETTERBOX, MCPD_CROP };
enum mcpd_prepare_sampling { MCPD_HALF_PIXEL, MCPD_CORNER, MCPD_AREA };

struct mcpd_prepare_spec {
    uint32_t format; /* enum mcpd_format, not an encoded one */
    uint32_t width;
    uint32_t height;
    uint32_t nplanes; /* given below; must be what the format has */
    uint64_t plane_offset[4];
    uint64_t plane_stride[4];
    uint32_t matrix; /* enum mcpd_matrix */
    uint32_t range;  /* enum mcpd_range */
    /*
     * The rectangle prepared: x, y, width, height in pixels of the frame as stored, which may be
     * fractions; all 0: the whole frame. Pixels that it does not touch are not looked at, its edges
     * are repeated.
     */
    double roi[4];
    uint32_t rotation; /* degrees clockwise that it is turned by first: 0, 90, 180 or 270 */
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
    double pad_value;   /* a pixel, 0..255, normalised as the others are */
    double quant_scale; /* of uint8 and int8; 0 is 1 */
    int32_t zero_point; /* likewise; within the type */
};

/* Where an axis of the output meets the frame: continuous source = ratio * output + start. */
struct mcpd_prepare_span {
    double ratio;
    double start;
    double low; /* the rectangle prepared, in source pixels */
    double high;
    uint32_t first; /* output pixels that show the source: first..first + count - 1 */
    uint32_t count;
};

/* Positions in the rows of one plane, one for each value of a line; padded with the last. */
struct mcpd_prepare_columns {
    int32_t *left;   /* byte of the first sample in a row, less the component's base */
    int16_t *weight; /* bilinear: of left and right, negated, in 1/32768 */
    float *share;    /* area: of sample t at value i: share[t * padded + i] */
    uint32_t step;   /* bytes from a sample to its right neighbour; 0 when there is none */
    uint32_t ntaps;  /* samples of a value */
    uint32_t first;  /* samples in use: first..last */
    uint32_t last;
};

/* The rows that each line is made of. */
struct mcpd_prepare_rows {
    uint32_t *upper; /* bilinear: the two rows; the same one where the weight is 0. area: the first */
    uint32_t *lower;
    int16_t *weight; /* of the lower row, in 1/32768 */
    uint32_t *ahead; /* bilinear: [y][upper, lower]: the row to ask for when it is sampled; or itself */
    float *share;    /* area: of row upper + t at line y: share[y * ntaps + t] */
    uint32_t ntaps;
};

struct mcpd_prepare_plane {
    uint64_t offset;
    uint64_t stride;
    uint32_t first;      /* bytes of a row in use: first..first + nbytes */
    uint32_t nbytes;
    uint32_t row_nbytes; /* of a whole row, without what the stride adds */
    uint32_t axis;       /* index into rows: 0 luma and RGB, 1 chroma */
};

/* Components (y, u or v, or r, g or b) that lie in one plane at the same positions. */
struct mcpd_prepare_set {
    uint32_t plane;
    uint32_t axis; /* index into columns and rows: 0 luma and RGB, 1 chroma */
    uint32_t count;
    uint32_t component[3];
    uint32_t base[3]; /* byte of its first sample in a row */
    int32_t zero;     /* of black, or of no colour: what is taken off a sample, in 1/128 */
};

enum mcpd_prepare_mixing {
    MCPD_MIX_YUV,  /* three components to three channels */
    MCPD_MIX_LUMA, /* luma to gray */
    MCPD_MIX_SAME, /* channels are components */
    MCPD_MIX_GRAY, /* r, g and b to gray */
};

/*
 * From components in 1/128 of a level to normalised channels. Of YUV the factor of luma is left to the
 * gain, so that channels are luma and what u and v add.
 */
struct mcpd_prepare_mix {
    enum mcpd_prepare_mixing how;
    int16_t white;       /* the most of a channel */
    int16_t red_of_v;    /* above 1, as is blue_of_u: 1 less, in 1/32768 as the others */
    int16_t green_of_u;
    int16_t green_of_v;
    int16_t blue_of_u;
    int16_t gray[3];     /* factors of r, g and b in 1/32768 */
    uint32_t channel[3]; /* where red, green and blue go, or gray */
    uint32_t source[3];  /* MCPD_MIX_SAME: the component of red, green and blue */
    float gain[3];       /* value = 65536 * channel * gain + bias, by output channel */
    float bias[3];
    int plain; /* every bias is 0 and every gain positive */
    float low; /* uint8 and int8: least and most of a value, before the zero point is added */
    float high;
    int32_t zero_point;
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
    uint32_t shown_width;
    uint32_t shown_height;
    int turned;      /* by 90 or 270 degrees: lines are columns of the output */
    uint32_t lines;
    uint32_t values; /* of a line */
    int area;
    enum mcpd_prepare_layout layout;
    enum mcpd_prepare_dtype dtype;
    uint32_t nchannels; /* 1 or 3 */
    uint32_t ncomponents;
    uint32_t nplanes; /* in use */
    uint32_t nsets;
    struct mcpd_prepare_plane planes[3];
    struct mcpd_prepare_set sets[3];
    struct mcpd_prepare_columns columns[2];
    struct mcpd_prepare_rows rows[2];
    struct mcpd_prepare_mix mix;
    unsigned char padding[3][4]; /* a padding pixel in the output's type */
    double affine[6];     /* source x = a[0]*x + a[1]*y + a[2], y = a[3]*x + a[4]*y + a[5], continuous */
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

/* One image of a batch. Buffers as for mcpd_prepare_run; images must not overlap. */
struct mcpd_prepare_job {
    struct mcpd_prepare_plan *plan;
    const uint8_t *source;
    void *out;
    int padded; /* `out` holds the plan's padding already: it is left as it is */
};

/*
 * Writes `n` images with up to `threads` threads (1..MCPD_PREPARE_MAX_THREADS), the caller's and as
 * many more as can be started and have work; they end before it returns. The same result to the bit
 * whatever their number. 0, or -ENOMEM (row buffers): images are then undefined.
 */
int mcpd_prepare_run_batch(const struct mcpd_prepare_job *jobs, size_t n, unsigned threads);

/*
 * Writes one image to `out`, which has image_nbytes bytes and is aligned to value_nbytes; `source`
 * has source_nbytes. From any thread: row buffers are taken from the plan and put back, so that only
 * a run beside another, or the first, allocates. 0 or -ENOMEM (row buffers).
 */
int mcpd_prepare_run(struct mcpd_prepare_plan *plan, const uint8_t *source, void *out);

#endif
