/* A plan of a preparation: what is allowed, what is read, how it is mixed; see prepare.h. */
#include "prepare/geometry.h"
#include "prepare/isa.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "mcpd.h"

#define LEVEL 128       /* units of a sample and of a channel */
#define LEAST_ROI 0.001 /* pixels */

static const struct mcpd_prepare_format *format_of(uint32_t format)
{
    static const struct mcpd_prepare_format rgb24 = {1, 3, 0, 0, 0, {3, 0}, {0, 0, 0}, {0, 1, 2}};
    static const struct mcpd_prepare_format bgr24 = {1, 3, 0, 0, 0, {3, 0}, {0, 0, 0}, {2, 1, 0}};
    static const struct mcpd_prepare_format rgba = {1, 3, 0, 0, 0, {4, 0}, {0, 0, 0}, {0, 1, 2}};
    static const struct mcpd_prepare_format bgra = {1, 3, 0, 0, 0, {4, 0}, {0, 0, 0}, {2, 1, 0}};
    static const struct mcpd_prepare_format gray8 = {1, 1, 0, 0, 0, {1, 0}, {0, 0, 0}, {0, 0, 0}};
    static const struct mcpd_prepare_format nv12 = {2, 3, 1, 1, 1, {1, 2}, {0, 1, 1}, {0, 0, 1}};
    static const struct mcpd_prepare_format i420 = {3, 3, 1, 1, 1, {1, 1}, {0, 1, 2}, {0, 0, 0}};
    static const struct mcpd_prepare_format yuyv = {1, 3, 1, 1, 0, {2, 4}, {0, 0, 0}, {0, 1, 3}};

    switch (format) {
    case MCPD_RGB24: return &rgb24;
    case MCPD_BGR24: return &bgr24;
    case MCPD_RGBA: return &rgba;
    case MCPD_BGRA: return &bgra;
    case MCPD_GRAY8: return &gray8;
    case MCPD_NV12: return &nv12;
    case MCPD_I420: return &i420;
    case MCPD_YUYV422: return &yuyv;
    default: return NULL;
    }
}

/* ---- what is allowed ----------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int refuse(char *why, size_t nbytes,
                                                        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, nbytes, format, args);
    va_end(args);
    return -EINVAL;
}

static int check_roi(const struct mcpd_prepare_spec *s, char *why, size_t nbytes)
{
    const double *roi = s->roi;

    if (roi[0] == 0.0 && roi[1] == 0.0 && roi[2] == 0.0 && roi[3] == 0.0)
        return 0;
    /* Written so that what is not a number is refused too. */
    if (!(roi[0] >= 0.0 && roi[1] >= 0.0 && roi[2] >= LEAST_ROI && roi[3] >= LEAST_ROI &&
          roi[0] + roi[2] <= s->width && roi[1] + roi[3] <= s->height))
        return refuse(why, nbytes,
                      "roi %.17gx%.17g at (%.17g, %.17g) is not inside the frame of %ux%u, or below "
                      "%g pixels",
                      roi[2], roi[3], roi[0], roi[1], s->width, s->height, LEAST_ROI);
    return 0;
}

/* Values, as those of a float or of a byte. */
static int check_values(const struct mcpd_prepare_spec *s, char *why, size_t nbytes)
{
    int bytes = s->dtype == MCPD_OUT_UINT8 || s->dtype == MCPD_OUT_INT8;
    int32_t least = s->dtype == MCPD_OUT_INT8 ? -128 : 0, most = least + 255;
    double step = s->quant_scale == 0.0 ? 1.0 : s->quant_scale;

    if (!isfinite(s->scale) || !isfinite(s->pad_value))
        return refuse(why, nbytes, "scale and pad_value must be finite");
    if (!bytes && (s->quant_scale != 0.0 || s->zero_point != 0))
        return refuse(why, nbytes, "quant_scale and zero_point are for uint8 and int8 alone");
    if (!isfinite(step) || step < 0.0)
        return refuse(why, nbytes, "quant_scale %g must be finite and above 0", step);
    if (bytes && (s->zero_point < least || s->zero_point > most))
        return refuse(why, nbytes, "zero_point %d is outside %d..%d", s->zero_point, least, most);
    for (int c = 0; c < 3; c++) {
        double most_value;

        if (!isfinite(s->mean[c]) || !isfinite(s->std[c]) || s->std[c] == 0.0)
            return refuse(why, nbytes, "mean and std must be finite and std not 0 (channel %d)", c);
        most_value = (fabs(s->scale) * fmax(255.0, fabs(s->pad_value)) + fabs(s->mean[c])) /
                     fabs(s->std[c]) / step;
        if (!(most_value <= FLT_MAX))
            return refuse(why, nbytes,
                          "scale, mean, std and pad_value make values up to %g (channel %d), beyond "
                          "float32",
                          most_value, c);
    }
    return 0;
}

static int check_spec(const struct mcpd_prepare_spec *s, const struct mcpd_prepare_format *format,
                      char *why, size_t nbytes)
{
    const uint32_t max = MCPD_PREPARE_MAX_SIDE;
    int failed;

    if (!format)
        return refuse(why, nbytes, "format %u is not a pixel format that can be prepared",
                      s->format);
    if ((uint32_t)s->layout > MCPD_NHWC || (uint32_t)s->dtype > MCPD_OUT_INT8 ||
        (uint32_t)s->channels > MCPD_OUT_GRAY || (uint32_t)s->resize > MCPD_CROP ||
        (uint32_t)s->sampling > MCPD_AREA)
        return refuse(why, nbytes,
                      "layout %u, dtype %u, channels %u, resize %u or sampling %u is unknown",
                      (uint32_t)s->layout, (uint32_t)s->dtype, (uint32_t)s->channels,
                      (uint32_t)s->resize, (uint32_t)s->sampling);
    if (s->width < 1 || s->width > max || s->height < 1 || s->height > max)
        return refuse(why, nbytes, "frame size %ux%u is outside 1..%u", s->width, s->height, max);
    if (s->out_width < 1 || s->out_width > max || s->out_height < 1 || s->out_height > max)
        return refuse(why, nbytes, "output size %ux%u is outside 1..%u", s->out_width,
                      s->out_height, max);
    if (s->format == MCPD_YUYV422 && s->width % 2 != 0)
        return refuse(why, nbytes, "yuyv422 needs an even width, not %u", s->width);
    if (s->rotation > 270 || s->rotation % 90 != 0)
        return refuse(why, nbytes, "rotation %u is not 0, 90, 180 or 270", s->rotation);
    if (s->nplanes != format->nplanes)
        return refuse(why, nbytes, "%u planes given, the format has %u", s->nplanes,
                      format->nplanes);
    if (format->yuv && s->matrix != MCPD_BT601 && s->matrix != MCPD_BT709)
        return refuse(why, nbytes, "colour matrix %u is neither BT.601 (1) nor BT.709 (2)",
                      s->matrix);
    if (format->yuv && s->range != MCPD_LIMITED && s->range != MCPD_FULL)
        return refuse(why, nbytes, "colour range %u is neither limited (1) nor full (2)", s->range);
    failed = check_roi(s, why, nbytes);
    return failed ? failed : check_values(s, why, nbytes);
}

/* Bytes of a row of a plane, and its rows. */
static void plane_extent(const struct mcpd_prepare_spec *s,
                         const struct mcpd_prepare_format *format, uint32_t plane,
                         uint32_t *row_nbytes, uint32_t *rows)
{
    int chroma = plane > 0;

    *rows = chroma ? mcpd_prepare_subsampled(s->height, format->chroma_shift_y) : s->height;
    *row_nbytes = chroma ? mcpd_prepare_subsampled(s->width, format->chroma_shift_x) * format->step[1]
                         : s->width * format->step[0];
}

/* Every plane has to lie in the source buffer; finds how many bytes that takes. */
static int check_planes(const struct mcpd_prepare_spec *s,
                        const struct mcpd_prepare_format *format, size_t *source_nbytes, char *why,
                        size_t nbytes)
{
    *source_nbytes = 0;
    for (uint32_t p = 0; p < format->nplanes; p++) {
        uint32_t row_nbytes, rows;
        uint64_t end;

        plane_extent(s, format, p, &row_nbytes, &rows);
        if (s->plane_stride[p] < row_nbytes)
            return refuse(why, nbytes, "plane %u has stride %llu, its rows have %u bytes", p,
                          (unsigned long long)s->plane_stride[p], row_nbytes);
        if (__builtin_mul_overflow(s->plane_stride[p], (uint64_t)(rows - 1), &end) ||
            __builtin_add_overflow(end, (uint64_t)row_nbytes, &end) ||
            __builtin_add_overflow(end, s->plane_offset[p], &end) || end > (uint64_t)PTRDIFF_MAX)
            return refuse(why, nbytes, "plane %u (offset %llu, stride %llu) is beyond any buffer",
                          p, (unsigned long long)s->plane_offset[p],
                          (unsigned long long)s->plane_stride[p]);
        if (end > *source_nbytes)
            *source_nbytes = (size_t)end;
    }
    return 0;
}

/* ---- how it is mixed ----------------------------------------------------------------------- */

static int16_t fixed(double factor)
{
    return (int16_t)lround(factor * 32768.0);
}

/* ITU-R BT.601 and BT.709, with the ranges of 8-bit video. */
static void fill_colour(const struct mcpd_prepare_spec *s,
                        const struct mcpd_prepare_format *format, struct mcpd_prepare_mix *mix)
{
    double kr = s->matrix == MCPD_BT601 ? 0.299 : 0.2126;
    double kb = s->matrix == MCPD_BT601 ? 0.114 : 0.0722;
    double kg = 1.0 - kr - kb;
    int limited = s->range == MCPD_LIMITED, gray = s->channels == MCPD_OUT_GRAY;
    double chroma = limited ? 219.0 / 224.0 : 1.0; /* beside luma, whose factor is the gain's */
    double rv = 2.0 * (1.0 - kr) * chroma, bu = 2.0 * (1.0 - kb) * chroma;

    for (uint32_t c = 0; c < 3; c++) {
        mix->channel[c] = s->channels == MCPD_OUT_BGR ? 2 - c : c;
        mix->source[c] = format->ncomponents == 1 ? 0 : c;
    }
    if (format->yuv) {
        mix->how = gray ? MCPD_MIX_LUMA : MCPD_MIX_YUV;
        mix->white = (int16_t)((limited ? 219 : 255) * LEVEL);
        mix->red_of_v = fixed(rv - 1.0);
        mix->green_of_u = fixed(-bu * kb / kg);
        mix->green_of_v = fixed(-rv * kr / kg);
        mix->blue_of_u = fixed(bu - 1.0);
    } else {
        mix->how = gray && format->ncomponents == 3 ? MCPD_MIX_GRAY : MCPD_MIX_SAME;
        mix->gray[0] = fixed(kr);
        mix->gray[2] = fixed(kb);
        mix->gray[1] = (int16_t)(32768 - mix->gray[0] - mix->gray[2]);
    }
}

static void fill_values(const struct mcpd_prepare_spec *s, struct mcpd_prepare_plan *plan)
{
    struct mcpd_prepare_mix *mix = &plan->mix;
    int limited = mix->white == 219 * LEVEL;
    int bytes = plan->value_nbytes == 1;
    double step = bytes && s->quant_scale != 0.0 ? s->quant_scale : 1.0;
    int32_t least = s->dtype == MCPD_OUT_INT8 ? -128 : 0;

    mix->zero_point = bytes ? s->zero_point : 0;
    mix->low = (float)(least - mix->zero_point);
    mix->high = mix->low + 255.0f;
    mix->plain = 1;
    for (uint32_t c = 0; c < plan->nchannels; c++) {
        double gain = s->scale / s->std[c] / step, bias = -s->mean[c] / s->std[c] / step;
        float padding = (float)(s->pad_value * gain + bias), scratch;

        mix->gain[c] = (float)(gain * (limited ? 255.0 / 219.0 : 1.0) / LEVEL / 65536.0);
        mix->bias[c] = (float)bias;
        mix->plain &= bias == 0.0 && gain > 0.0;
        mcpd_prepare_store(plan, &padding, 1, &scratch, plan->padding[c]);
    }
}

/* ---- what is read -------------------------------------------------------------------------- */

/* Sorts the components into those that lie in one plane at the same positions. */
static void fill_sets(const struct mcpd_prepare_spec *s, const struct mcpd_prepare_format *format,
                      struct mcpd_prepare_plan *plan)
{
    int32_t black = s->range == MCPD_LIMITED ? 16 : 0;

    for (uint32_t k = 0; k < plan->ncomponents; k++) {
        uint32_t plane = format->plane[k], axis = format->yuv && k > 0;
        struct mcpd_prepare_set *set = plan->sets;

        while (set < plan->sets + plan->nsets && (set->plane != plane || set->axis != axis))
            set++;
        if (set == plan->sets + plan->nsets)
            plan->nsets++;
        set->plane = plane;
        set->axis = axis;
        set->zero = format->yuv ? (axis ? 128 : black) * LEVEL : 0;
        set->component[set->count] = k;
        set->base[set->count++] = format->base[k];
    }
}

static void fill_planes(const struct mcpd_prepare_spec *s,
                        const struct mcpd_prepare_format *format, struct mcpd_prepare_plan *plan)
{
    for (uint32_t p = 0; p < plan->nplanes; p++) {
        struct mcpd_prepare_plane *plane = &plan->planes[p];
        uint32_t end = 0, rows;

        plane_extent(s, format, p, &plane->row_nbytes, &rows);
        plane->offset = s->plane_offset[p];
        plane->stride = s->plane_stride[p];
        plane->axis = p > 0;
        plane->first = plane->row_nbytes;
        for (uint32_t i = 0; i < plan->nsets; i++) {
            const struct mcpd_prepare_set *set = &plan->sets[i];
            const struct mcpd_prepare_columns *columns = &plan->columns[set->axis];

            for (uint32_t k = 0; set->plane == p && k < set->count; k++) {
                uint32_t step = format->step[set->axis];
                uint32_t first = columns->first * step + set->base[k];
                uint32_t after = columns->last * step + set->base[k] + 1;

                plane->first = first < plane->first ? first : plane->first;
                end = after > end ? after : end;
            }
        }
        plane->nbytes = end - plane->first;
    }
}

int mcpd_prepare_plan_create(const struct mcpd_prepare_spec *spec, struct mcpd_prepare_plan **out,
                             char *why, size_t nbytes)
{
    static const size_t value_nbytes[] = {[MCPD_OUT_FLOAT32] = 4,
                                          [MCPD_OUT_FLOAT16] = 2,
                                          [MCPD_OUT_UINT8] = 1,
                                          [MCPD_OUT_INT8] = 1};
    const struct mcpd_prepare_format *format = format_of(spec->format);
    struct mcpd_prepare_span spans[2];
    struct mcpd_prepare_plan *plan;
    uint32_t luma_only, axes;
    int failed = check_spec(spec, format, why, nbytes);

    if (failed)
        return failed;
    plan = calloc(1, sizeof(*plan));
    if (!plan)
        return -ENOMEM;
    luma_only = format->yuv && spec->channels == MCPD_OUT_GRAY;
    plan->nchannels = spec->channels == MCPD_OUT_GRAY ? 1 : 3;
    plan->ncomponents = luma_only ? 1 : format->ncomponents;
    plan->nplanes = luma_only ? 1 : format->nplanes;
    plan->out_width = spec->out_width;
    plan->out_height = spec->out_height;
    plan->layout = spec->layout;
    plan->dtype = spec->dtype;
    plan->area = spec->sampling == MCPD_AREA;
    plan->value_nbytes = value_nbytes[spec->dtype];
    plan->image_nbytes =
        (size_t)spec->out_width * spec->out_height * plan->nchannels * plan->value_nbytes;
    failed = check_planes(spec, format, &plan->source_nbytes, why, nbytes);
    axes = plan->ncomponents == 3 && format->yuv ? 2 : 1;
    if (!failed)
        mcpd_prepare_place(spec, plan, spans);
    for (uint32_t axis = 0; !failed && axis < axes; axis++) {
        failed = mcpd_prepare_fill_columns(spec, format, &spans[0], plan, axis);
        if (!failed)
            failed = mcpd_prepare_fill_rows(spec, format, &spans[1], plan, axis);
    }
    if (!failed) {
        fill_colour(spec, format, &plan->mix);
        fill_values(spec, plan);
        fill_sets(spec, format, plan);
        fill_planes(spec, format, plan);
        failed = mcpd_prepare_isa_choose(plan, why, nbytes);
    }
    if (failed) {
        mcpd_prepare_plan_free(plan);
        return failed;
    }
    *out = plan;
    return 0;
}

void mcpd_prepare_plan_free(struct mcpd_prepare_plan *plan)
{
    if (!plan)
        return;
    for (int axis = 0; axis < 2; axis++) {
        free(plan->columns[axis].left);
        free(plan->columns[axis].weight);
        free(plan->columns[axis].share);
        free(plan->rows[axis].upper);
        free(plan->rows[axis].lower);
        free(plan->rows[axis].weight);
        free(plan->rows[axis].ahead);
        free(plan->rows[axis].share);
    }
    free(plan->tables);
    free(plan->spare);
    free(plan);
}

const char *mcpd_prepare_plan_isa(const struct mcpd_prepare_plan *plan)
{
    return plan->isa->name;
}
